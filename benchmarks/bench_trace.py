"""The traced prefill pass against the bare one, both on `meta`, in one process.

    python benchmarks/bench_trace.py

Prints one line with every module traced and one with alike modules traced once; exits 1 where the
median ratio of the full trace is above the target.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable

from dsocr_analyze.running.forward import running
from dsocr_analyze.running.generation import empty_cache
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.trace.passes import trace_passes

PAGE = (1191, 1684)
ROUNDS = 9
TARGET = 1.6


def seconds(run: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()  # other processes may be using the machine
    run()
    return time.process_time() - start


def main() -> int:
    session = DeepSeekOCRSession.from_local()
    model, architecture = session.loaded, session.architecture
    workload = session.plan(page=PAGE)
    alike = architecture.forms.repeats(architecture.forms.dimensions(model.directory.config))

    def bare() -> object:
        with running(model.device):
            inputs = architecture.prefill_inputs(model.device, model.dtype, workload)
            return model.module(**inputs, past_key_values=empty_cache(model.directory))

    def full() -> object:
        return trace_passes(model, workload, architecture, step_numbers=())

    def folded() -> object:
        return trace_passes(model, workload, architecture, step_numbers=(), repeats=alike)

    runs = (bare, full, folded)
    for warm_up in runs:
        warm_up()
    rounds = [[seconds(run) for run in runs] for _ in range(ROUNDS)]
    base, full_ratio, folded_ratio = (
        statistics.median(each[index] / (each[0] if index else 1) for each in rounds)
        for index in range(len(runs))
    )
    print(
        f"every module traced / bare prefill pass on meta: {full_ratio:.2f} (target <= {TARGET});"
        f" bare {base:.2f} s, median of {ROUNDS} rounds"
    )
    print(f"alike modules traced once / bare prefill pass on meta: {folded_ratio:.2f}")
    return int(full_ratio > TARGET)


if __name__ == "__main__":
    sys.exit(main())
