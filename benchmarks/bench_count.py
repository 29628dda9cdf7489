"""Counting a module against its bare forward pass, on `meta` and on the CPU, in one process.

    python benchmarks/bench_count.py [--slack 1.2]

Prints a line per device with the median over the modules of `counted_modules.py` and one per module
above the limit; exits 1 where any is.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from conditions import is_within, print_environment, rounds, slack
from counted_modules import COUNTED, made

from dsocr_analyze import count
from dsocr_analyze.model.forward import running

ROUNDS = 11
LIMIT = 1.8


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()  # other processes may be using the machine
    run()
    return time.process_time() - start


def ratios(name: str, device: str) -> list[float]:
    """Counting over the bare pass, round by round; both have run before."""
    module, inputs, named = made(name, device)

    def bare() -> object:
        with torch.no_grad():
            return module(*inputs, **named)

    def answered() -> object:
        with running(torch.device(device)):
            return module(*inputs, **named)

    run = bare
    try:
        bare()
    except (RuntimeError, NotImplementedError):  # it reads a value, which plain `meta` lacks
        run = answered

    def counted() -> object:
        return count(module, *inputs, **named).total

    counted()
    gc.collect()
    measured = rounds([partial(seconds, each) for each in (run, counted)], ROUNDS)
    return [own / other for other, own in measured]


def main() -> int:
    print_environment()
    factor, met = slack(), True
    torch.set_num_threads(1)
    for device in ("meta", "cpu"):
        medians = list[float]()
        for name in COUNTED:
            found = ratios(name, device)
            medians.append(statistics.median(found))
            met &= is_within(f"count {name} on {device} / bare pass", found, LIMIT, factor)
        print(f"{device}: median of {len(medians)} modules {statistics.median(medians):.2f}")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
