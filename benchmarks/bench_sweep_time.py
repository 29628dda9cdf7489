"""Workloads a second on one core, with predicted seconds of each under a serving engine.

    python benchmarks/bench_sweep_time.py

A sweep over pages, modes, lengths and 1 to 32 pages at a time on one GPU, as `sweep` runs it.
Prints one line; exits with 1 where it is too slow.
"""

from __future__ import annotations

import os
import sys
import time

from conditions import print_environment

from dsocr_analyze.archive.combinations import Sweep, sweep_over
from dsocr_analyze.archive.seconds import TimeRequested
from dsocr_analyze.archive.setting import published_model
from dsocr_analyze.hardware.profile import all_profiles
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.timing.runtimes import SERVERS

TARGET = 20_000
ROUNDS = 3


def combinations() -> Sweep:
    job = Assumptions(SERVERS["vllm"])
    return sweep_over(
        published_model().architecture,
        page="600:3000:800x800:4000:800",
        mode="all",
        text_tokens="10:210:40",
        max_new_tokens="1,100:2000:211",
        batch_size="1:32",
        dtype="bfloat16",
        flash_attention=False,
        sliding_window=None,
        time=TimeRequested([all_profiles()["h100-sxm"]], job, lengths="1 to 2,000"),
    )


def seconds_of_a_round(sweep: Sweep) -> float:
    start = time.perf_counter()
    rows = sum(batch.num_rows for batch in sweep.batches(published_model()))
    assert rows == sweep.rows
    return time.perf_counter() - start


def main() -> int:
    print_environment()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sweep = combinations()
    rate = sweep.rows / min(seconds_of_a_round(sweep) for _ in range(ROUNDS))
    met = rate >= TARGET
    print(
        f"sweep with seconds: {rate / 1e3:.0f} thousand workloads a second on one core, of"
        f" {sweep.rows:,} (target: at least {TARGET / 1e3:.0f}) {'ok' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
