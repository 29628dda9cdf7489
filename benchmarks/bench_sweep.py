"""Workloads a second on one core: whole-model FLOPs, bytes and page totals of each.

    python benchmarks/bench_sweep.py

Every workload is a page of its own with a text, a number of new tokens and a batch of its own, as
a sweep evaluates them. Prints one line; exits with 1 where it is too slow.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from dsocr_analyze.columns.counted_model import published_model
from dsocr_analyze.columns.evaluate import Workloads, evaluate
from dsocr_analyze.columns.results import batch_columns
from dsocr_analyze.columns.setting import Setting

TARGET = 1_000_000
WORKLOADS = 2_000_000
CHUNK = 65_536
ROUNDS = 3


def seconds_of_a_round() -> float:
    random = np.random.default_rng(20240715)
    widths, heights = random.integers(200, 5000, (2, WORKLOADS))
    text_tokens = random.integers(1, 2000, WORKLOADS)
    max_new_tokens = random.integers(1, 4096, WORKLOADS)
    batch_sizes = random.integers(1, 65, WORKLOADS)
    model = published_model()
    setting, crop_grids = Setting.named(model.architecture), model.architecture.forms.crop_grids
    start = time.perf_counter()
    for first in range(0, WORKLOADS, CHUNK):
        part = slice(first, first + CHUNK)
        workloads = Workloads(
            crop_grids.codes(widths[part], heights[part]),
            text_tokens[part],
            max_new_tokens[part],
            batch_sizes[part],
        )
        batch_columns(evaluate(model, setting, workloads), batch_sizes[part])
    return time.perf_counter() - start


def main() -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rate = WORKLOADS / min(seconds_of_a_round() for _ in range(ROUNDS))
    met = rate >= TARGET
    print(
        f"sweep: {rate / 1e6:.2f} million workloads a second on one core "
        f"(target: at least {TARGET / 1e6:.0f}) {'ok' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
