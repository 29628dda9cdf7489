"""The traced prefill pass against the bare one, both on `meta`, in one process.

    python benchmarks/bench_trace.py

Prints one line; exits 1 where the median ratio is above the target.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from dsocr_analyze.analysis import DeepSeekOCRSession
from dsocr_analyze.trace.passes import run_prefill, trace_passes

PAGE = (1191, 1684)
ROUNDS = 7
TARGET = 1.5


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> int:
    session = DeepSeekOCRSession.from_local()
    workload = session.plan(page=PAGE)

    def bare() -> object:
        return run_prefill(session.loaded, workload)

    def traced() -> object:
        return trace_passes(session.loaded, workload, decode_steps=0)

    def every_module() -> object:
        return trace_passes(session.loaded, workload, decode_steps=0, repeat_equal_modules=False)

    for warm_up in (bare, traced):
        warm_up()
    pairs = [(seconds(bare), seconds(traced)) for _ in range(ROUNDS)]
    ratio = statistics.median(trace / plain for plain, trace in pairs)
    plain, trace = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"traced / bare prefill pass on meta: {ratio:.2f} (target <= {TARGET});"
        f" {trace:.2f} s / {plain:.2f} s, median of {ROUNDS} pairs;"
        f" with every module run: {seconds(every_module) / plain:.2f}"
    )
    return int(ratio > TARGET)


if __name__ == "__main__":
    sys.exit(main())
