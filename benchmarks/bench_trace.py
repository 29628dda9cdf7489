"""The traced prefill pass against the bare one, both on `meta`, in one process.

    python benchmarks/bench_trace.py [--slack 1.2]

Prints one line with every module traced and one with alike modules traced once; exits 1 where the
median ratio of the full trace is above its limit.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from functools import partial

from conditions import is_within, print_environment, rounds, slack

from dsocr_analyze.model.forward import running
from dsocr_analyze.model.generation import empty_cache
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.trace.passes import trace_passes

PAGE = (1191, 1684)
ROUNDS = 9
LIMIT, FOLDED_LIMIT = 0.65, 0.4  # torch works out equal calls of a bare pass again


def seconds(run: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()  # other processes may be using the machine
    run()
    return time.process_time() - start


def main() -> int:
    print_environment()
    factor = slack()
    session = DeepSeekOCRSession.from_local()
    model, architecture = session.loaded, session.architecture
    workload = session.plan(page=PAGE)
    alike = architecture.forms.model.repeats(architecture.forms.dimensions(model.directory.config))

    def bare() -> object:
        with running(model.device):
            inputs = architecture.prefill_inputs(model.device, model.dtype, workload)
            return model.module(**inputs, past_key_values=empty_cache(model.directory))

    def full() -> object:
        return trace_passes(model, workload, architecture, step_numbers=())

    def folded() -> object:
        return trace_passes(model, workload, architecture, step_numbers=(), repeats=alike)

    measured = rounds([partial(seconds, run) for run in (bare, full, folded)], ROUNDS)
    every, once = ([row[column] / row[0] for row in measured] for column in (1, 2))
    what = "/ bare prefill pass on meta"
    met = is_within(f"every module traced {what}", every, LIMIT, factor)
    met &= is_within(f"alike modules traced once {what}", once, FOLDED_LIMIT, factor)
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
