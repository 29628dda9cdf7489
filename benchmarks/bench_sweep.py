"""A sweep's workloads per second on one core, against plain numpy in the same process.

    python benchmarks/bench_sweep.py [--slack 1.2]

Every workload is a page of its own with a text, a number of new tokens and a batch of its own, as
a sweep evaluates them: whole-model FLOPs, bytes and page totals of each. In turn with it, numpy
multiplies and adds arrays as long as the sweep's, so that the ratio depends on no machine. Exits
with 1 where a sweep costs more such operations than the limit.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import numpy as np
from conditions import is_within, print_environment, rounds, slack

from dsocr_analyze.archive.evaluate import Workloads, cost_columns
from dsocr_analyze.archive.setting import Setting, published_model
from dsocr_analyze.kernels import BFLOAT16

CHUNK = 65_536
CHUNKS = 8
ROUNDS = 5
ARRAYS = 64
OPERATIONS = 500
"""Additions and multiplications by numpy per chunk, in each round."""

LIMIT = 450
"""Operations by numpy in the time that a sweep takes for as many workloads."""


def swept_seconds() -> float:
    """Seconds of a sweep."""
    random = np.random.default_rng(20240715)
    workloads = CHUNK * CHUNKS
    widths, heights = random.integers(200, 5000, (2, workloads))
    text_tokens = random.integers(1, 2000, workloads)
    max_new_tokens = random.integers(1, 4096, workloads)
    batch_sizes = random.integers(1, 65, workloads)
    model = published_model()
    architecture = model.architecture
    setting = Setting(architecture.modes[architecture.default_mode], BFLOAT16)
    page_rule = architecture.forms.model.page_rule
    start = time.process_time()
    for first in range(0, workloads, CHUNK):
        part = slice(first, first + CHUNK)
        codes = page_rule.codes(widths[part], heights[part])
        chunk = Workloads(codes, text_tokens[part], max_new_tokens[part], batch_sizes[part])
        cost_columns(model, setting, chunk, are_batches=True)
    return time.process_time() - start


def numpy_seconds() -> float:
    """Seconds of numpy's operations."""
    counts = [np.arange(CHUNK) + number for number in range(ARRAYS)]  # beyond a core's own cache
    start = time.process_time()
    for number in range(CHUNKS * OPERATIONS // 2):
        counts[number % ARRAYS] * counts[number // ARRAYS % ARRAYS] + number
    return time.process_time() - start


def main() -> int:
    print_environment()
    factor = slack()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    measured = rounds((swept_seconds, numpy_seconds), ROUNDS)
    rate = CHUNK * CHUNKS / statistics.median(seconds for seconds, _ in measured)
    print(f"sweep: {rate / 1e6:.2f} million workloads a second on one core")
    ratios = [OPERATIONS * swept / plain for swept, plain in measured]
    return int(not is_within("sweep / one operation by numpy", ratios, LIMIT, factor))


if __name__ == "__main__":
    sys.exit(main())
