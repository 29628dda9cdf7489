"""Fit the coefficients of a kind's formula to its measured kernels."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np

from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.hardware.kernel_times import coefficients as records
from dsocr_analyze.hardware.kernel_times.experts import BEST_64, BEST_128, BY_EXPERTS, BY_TOKENS
from dsocr_analyze.hardware.kernel_times.fitting import (
    SEED,
    first_guess,
    fit_errors,
    fitted,
    with_slow_sizes,
)
from dsocr_analyze.hardware.kernel_times.rows import Rows
from dsocr_analyze.hardware.profile import kind_text

__all__ = ["fitted_kind", "is_enough"]

_PREFILL: Final[dict[str, tuple[int, ...]]] = {
    "tile_queries": (64, 128, 192, 256), "tile_keys": (64, 128), "slots": (1, 2),
    "head_step": (32,), "splits": (0, 1),
}  # fmt: skip
_CHOICES: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "gemm": {},
    "encoder_attention": _PREFILL,
    "context_attention": _PREFILL,
    "generation_attention": {
        "tile_heads": (64,), "tile_keys": (64, 128), "slots": (1, 2), "split_needs_groups": (0,),
    },
    "masked_attention": {"tile_queries": (32, 64, 128), "tile_keys": (64, 128)},
    "experts": {"tiles": (BEST_64, BEST_128, BY_TOKENS, BY_EXPERTS), "inter_step": (1,)},
    "movement": {},
}  # fmt: skip
"""Integer coefficients to try for each kind."""

_FEW: Final = 150
"""Rows used to try them."""
_LEAST_ROWS: Final = 24
_LEAST_HELD_OUT: Final = 8


def is_enough(rows: Rows) -> bool:
    """Whether there are enough rows, training and held-out, for a fit and its error."""
    held_out = int(rows.held_out.sum())
    return len(rows.seconds) - held_out >= _LEAST_ROWS and held_out >= _LEAST_HELD_OUT


def fitted_kind(kind: str, dtype: str, rows: Rows, gpu: Gpu) -> tuple[str, float]:
    """The tables of a profile for a kind in a data type, and its held-out median error."""
    coefficients = _coefficients(kind, dtype, rows.taken(~rows.held_out), gpu)
    errors = fit_errors(kind, rows, gpu, dtype, coefficients)
    return kind_text(kind, dtype, coefficients, errors, rows.version), errors.held_out_median


def _coefficients(kind: str, dtype: str, training: Rows, gpu: Gpu) -> records.Coefficients:
    choices = _CHOICES[kind]
    guess: Any = first_guess(kind, dtype)
    tried: list[records.Coefficients] = [
        replace(guess, **dict(zip(choices, values, strict=True)))
        for values in product(*choices.values())
    ]
    first = tried[0]
    if len(tried) > 1:
        order = np.random.default_rng(SEED).permutation(len(training.seconds))
        few = training.taken(order[:_FEW])
        costs = [fitted(kind, few, gpu, dtype, each, starts=1, evaluations=12) for each in tried]
        first = min(costs, key=lambda pair: pair[1])[0]
    found = fitted(kind, training, gpu, dtype, first, starts=3, evaluations=50)[0]
    if isinstance(found, records.GemmCoefficients) and dtype == "bfloat16":
        slowed = with_slow_sizes(found, training, gpu)
        found = fitted(kind, training, gpu, dtype, slowed, starts=1, evaluations=50)[0]
    return found
