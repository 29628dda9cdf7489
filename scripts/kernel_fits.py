"""Measured kernel times, and fits of the formulas' coefficients to them.

A fit is robust least squares on log time, from several starts. Its error is stated on groups of
rows, chosen by a hash of their sizes, that are held out of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.hardware.kernel_times import formula_seconds
from dsocr_analyze.hardware.machine import Floats, Machine

_HELD_OUT_BELOW: Final = 77
"""Limit of a hash's first byte: three groups in ten."""


@dataclasses.dataclass(frozen=True)
class MeasuredRows:
    """Rows of one table.

    Attributes:
        sizes: Columns by name; without `cold`, bytes may be in L2.
        within: Whether errors are stated for a row.
        group: Sizes that define a row's group.
        version: What launched the kernels, with its version.
    """

    sizes: dict[str, Floats]
    seconds: Floats
    held_out: NDArray[np.bool_]
    within: NDArray[np.bool_]
    group: NDArray[np.int64]
    version: str

    def taken(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> MeasuredRows:
        """Some of the rows."""
        return MeasuredRows(
            {name: column[which] for name, column in self.sizes.items()},
            self.seconds[which], self.held_out[which], self.within[which], self.group[which],
            self.version,
        )  # fmt: skip


def held_out_groups(groups: Sequence[tuple[int, ...]]) -> NDArray[np.bool_]:
    """Whether the group of each row is held out of a fit."""
    known = {
        group: hashlib.sha256(",".join(map(str, group)).encode()).digest()[0] < _HELD_OUT_BELOW
        for group in set(groups)
    }
    return np.array([known[group] for group in groups], dtype=bool)


def predicted(
    kind: str, rows: MeasuredRows, gpu: Gpu, dtype: str, c: records.Coefficients
) -> Floats:
    """The formula's seconds for each row."""
    # 8-bit keys are multiplied in 16 bits.
    computed = "bfloat16" if kind.endswith("attention") else dtype
    is_cold = rows.sizes.get("cold", np.zeros(len(rows.seconds))) > 0
    seconds = np.empty(len(rows.seconds))
    for cold in set(is_cold.tolist()):
        those = is_cold == cold
        sizes = {name: column[those] for name, column in rows.sizes.items()}
        seconds[those] = formula_seconds(
            c, sizes, Machine.of(gpu, computed, cold=cold), 1 if dtype == "float8" else 2,
        )  # fmt: skip
    return seconds


# --- fits ------------------------------------------------------------------------------------

SEED: Final = 20240715
SCALE: Final = 0.03
_ATTENTIONS_SCALE: Final = 0.06
"""Attention's; a smaller one finds fits whose largest errors are larger."""

_SCALED: Final = records.ScaledGemmCoefficients(
    0, 0.4, 0.5, 0.5, 0.6, 0.7, 0.5, 1.0, 2.0, 0.8, 1.5, 1.0, 2.0, 2.0, 0.1, 0.5, 2.0, 0.7,
    1.0,
)  # fmt: skip
_STARTS: Final[dict[str, records.Coefficients]] = {
    "gemm": records.GemmCoefficients(
        0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.5, 0.5, 1.5, 1.0, 0.1, 0.7, 1.5, 1.5, 1.5, 1.0, 0.05, 0, 0,
        0.3,
    ),
    "encoder_attention": records.EncoderCoefficients(
        128, 128, 1, 1, 0, 0.8, 40.0, 0.05, 1.0, 1.0, 3.0, 0.7, 2.0, 2.0, 5.0, 3.0, 300.0, 0.1,
        0.03, 0.05,
    ),
    "context_attention": records.PrefillCoefficients(
        128, 128, 1, 1, 0, 0.8, 40.0, 0.05, 1.0, 1.0, 3.0, 0.7, 2.0, 2.0, 2.0, 5.0, 3.0, 300.0,
        0.1,
    ),
    "generation_attention": records.GenerationCoefficients(
        128, 1, 0, 0, 2.0, 0.5, 0.1, 0.5, 0.6, 1.0, 0.2, 0.9, 2.0, 0.8, 1.0, 7.0, 1.0, 0.3, 1.0,
        0.5,
    ),
    "experts": records.ExpertsCoefficients(
        0, 1, 0.7, 1.2, 2.0, 0.55, 1.0, 1.0, 0.1, 0.9, 0.05, 2.0, 0.9, 5.0, 2.0, 1.0, 12.0,
        0.3, 10.0, 1.8,
    ),
    "movement": records.MovementCoefficients(0.8, 1.5, 0.1, 2.0, 0.9, 0.5, 0.06),
}  # fmt: skip

_LIMITS: Final = (
    # Libraries split keys so that SMs are evenly busy. The tables have only powers of two, which
    # whole waves would fit just as well, with wrong times for the sizes in between.
    (r"generation_attention\.whole_waves", (1e-4, 0.7)),
    (r".*\.tile_width", (1e-4, 1.5)),
    (r"experts\.l2_share", (0.5, 8.0)),
    (r"(experts|generation_attention)\.l2_part", (0.3, 1.5)),
    (r"experts\.ramp_mb", (1e-4, 30.0)),
    (r".*\.(l2|movement)_share", (0.3, 8.0)),
    (r".*\.quantize_share", (0.1, 8.0)),
    (r".*\..*share.*", (0.02, 1.0)),
    (r".*\.rate.*", (0.02, 20.0)),
    (r".*_us", (1e-3, 300.0)),
    (r".*\.norm", (0.05, 30.0)),
    (r".*\.late_keys", (10.0, 3000.0)),
    (r".*\.wide_memory", (1e-3, 1.0)),
    (r".*\.unaligned_ns", (1e-4, 3.0)),
    (r".*\.(uneven_head|heat)", (1e-4, 0.5)),
    (r".*\.fallback_movement", (0.05, 1.0)),
    (r".*", (1e-4, 1e3)),
)
"""Smallest and largest value of a kind's coefficient; the first pattern that fits counts."""


@dataclasses.dataclass(frozen=True)
class FitErrors:
    """Relative errors of a fit, on its own rows and on those held out."""

    training_rows: int
    training_median: float
    held_out_rows: int
    held_out_groups: int
    held_out_median: float
    held_out_p90: float


def first_guess(kind: str, dtype: str) -> records.Coefficients:
    """Where the fit of a kind in a data type starts."""
    return _SCALED if (kind, dtype) == ("gemm", "float8") else _STARTS[kind]


def fitted(
    kind: str, rows: MeasuredRows, gpu: Gpu, dtype: str, start: records.Coefficients,
    *, starts: int, evaluations: int, scale: float | None = None,
) -> tuple[records.Coefficients, float]:  # fmt: skip
    """Coefficients from robust least squares on log time, and the remaining cost.

    The first start is at `start`, whose integer coefficients are kept, the others are near it; each
    takes at most so many evaluations. A row whose error in log time is beyond `scale` counts by it,
    and no longer by its square.
    """
    from scipy.optimize import least_squares

    whole = {f.name for f in dataclasses.fields(start) if isinstance(getattr(start, f.name), int)}
    names = [f.name for f in dataclasses.fields(start) if f.name not in whole]
    limits = [next(found for pattern, found in _LIMITS if re.fullmatch(pattern, f"{kind}.{name}"))
              for name in names]  # fmt: skip
    low, high = np.log(np.array(limits)).T
    centre = np.clip(np.log([getattr(start, name) for name in names]), low + 1e-3, high - 1e-3)
    target = np.log(rows.seconds)
    random = np.random.default_rng(SEED)

    def record(x: NDArray[np.float64]) -> records.Coefficients:
        return dataclasses.replace(start, **dict(zip(names, np.exp(x).tolist(), strict=True)))

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(predicted(kind, rows, gpu, dtype, record(x))) - target)

    found = []
    for number in range(starts):
        jitter = random.normal(0, 0.3, len(names)) if number else 0.0
        at = np.clip(centre + jitter, low + 1e-3, high - 1e-3)
        found.append(least_squares(
            residuals, at, bounds=(low, high), loss="soft_l1", max_nfev=evaluations,
            f_scale=scale or _ATTENTIONS_SCALE if kind.endswith("attention") else SCALE,
        ))  # fmt: skip
    best = min(found, key=attrgetter("cost"))
    return record(np.array([float(f"{value:.6g}") for value in best.x])), float(best.cost)


def _relative_errors(measured: MeasuredRows, seconds: NDArray[np.float64]) -> tuple[float, float]:
    """Median and 90th percentile of the relative error."""
    error = np.abs(seconds / measured.seconds - 1)
    return float(np.median(error)), float(np.percentile(error, 90))


def fit_errors(
    kind: str, rows: MeasuredRows, gpu: Gpu, dtype: str, fit: records.Coefficients
) -> FitErrors:
    """Errors of a fit to the training groups of some rows."""
    held, training = rows.taken(rows.held_out & rows.within), rows.taken(~rows.held_out)
    median, ninety = _relative_errors(held, predicted(kind, held, gpu, dtype, fit))
    trained, _ = _relative_errors(training, predicted(kind, training, gpu, dtype, fit))
    groups = len(np.unique(held.group, axis=0))
    return FitErrors(len(training.seconds), trained, len(held.seconds), groups, median, ninety)
