"""Measured kernel times as columns for the formulas, and the formulas' predictions for them.

Whole groups of rows are held out of every fit, chosen by a hash of the sizes that define a group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.hardware.kernel_times import coefficients as records
from dsocr_analyze.hardware.kernel_times.attention import (
    AttentionSizes,
    generation_attention_seconds,
    masked_attention_seconds,
    masked_bytes,
    prefill_attention_seconds,
)
from dsocr_analyze.hardware.kernel_times.experts import ExpertSizes, experts_seconds
from dsocr_analyze.hardware.kernel_times.gemm import gemm_seconds, scaled_gemm_seconds
from dsocr_analyze.hardware.kernel_times.machine import Floats, Machine, movement_seconds

__all__ = ["Rows", "held_out_groups", "machine_of", "predicted"]

_HELD_OUT_BELOW: Final = 77
"""Threshold for a hash's first byte: 77 of 256, three groups in ten."""
_NBYTES: Final = {"float8": 1, "float32": 4}
"""Bytes per element in types other than the 16-bit ones."""


@dataclass(frozen=True)
class Rows:
    """Rows of one table.

    Attributes:
        sizes: Columns by name, floats. `batch` of products and `cold` are optional: without them
            every row is one product, and its bytes may be in L2.
        seconds: Measured seconds.
        held_out: Whether a row's group is held out.
        within: Whether a row is in the range for which errors are stated.
        group: Sizes that define the group, one row per row.
        version: What launched the kernels, with its version.
    """

    sizes: dict[str, Floats]
    seconds: Floats
    held_out: NDArray[np.bool_]
    within: NDArray[np.bool_]
    group: NDArray[np.int64]
    version: str

    def taken(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Rows:
        """Some of the rows."""
        return Rows(
            {name: column[which] for name, column in self.sizes.items()},
            self.seconds[which], self.held_out[which], self.within[which], self.group[which],
            self.version,
        )  # fmt: skip


def held_out_groups(groups: Sequence[tuple[int, ...]]) -> NDArray[np.bool_]:
    """Whether each row's group is held out of a fit, given one group per row."""
    known: dict[tuple[int, ...], bool] = {}
    for group in set(groups):
        digest = hashlib.sha256(",".join(map(str, group)).encode()).digest()
        known[group] = digest[0] < _HELD_OUT_BELOW
    return np.array([known[group] for group in groups], dtype=bool)


def machine_of(gpu: Gpu, dtype: str, *, cold: bool = False) -> Machine:
    """The chip in a data type; `cold` to read everything from device memory."""
    l2_bytes = 0.0 if cold else gpu.l2_mb * 1e6
    return Machine(gpu.tflops(dtype) * 1e12, gpu.bandwidth_gb_s * 1e9, gpu.sms, l2_bytes)


def predicted(kind: str, rows: Rows, gpu: Gpu, dtype: str, c: records.Coefficients) -> Floats:
    """The formula's seconds for each row."""
    cold = rows.sizes.get("cold")
    if cold is None:
        return _predicted(kind, rows.sizes, gpu, dtype, c, cold=False)
    seconds = np.empty(len(cold))
    for value in (False, True):
        those = (cold > 0) == value
        sizes = {name: column[those] for name, column in rows.sizes.items()}
        seconds[those] = _predicted(kind, sizes, gpu, dtype, c, cold=value)
    return seconds


def _predicted(
    kind: str, size: dict[str, Floats], gpu: Gpu, dtype: str, c: records.Coefficients, *, cold: bool
) -> Floats:
    nbytes = _NBYTES.get(dtype, 2)
    machine = machine_of(gpu, dtype, cold=cold)
    if isinstance(c, records.GemmCoefficients):
        return gemm_seconds(
            size["m"], size["n"], size["k"], nbytes, machine, c, batch=size.get("batch", 1.0),
            activation_bytes=max(2, nbytes),
        )  # fmt: skip
    if isinstance(c, records.ScaledGemmCoefficients):
        return scaled_gemm_seconds(size["m"], size["n"], size["k"], machine, c)
    if isinstance(c, records.ExpertsCoefficients):
        experts = ExpertSizes(
            size["tokens"], size["hidden"], size["inter"], size["experts"], size["top_k"],
            size["touched"], size["gated"] > 0, size["fallback"] > 0,
        )  # fmt: skip
        return experts_seconds(experts, machine, c, weight_bytes=nbytes)
    if isinstance(c, records.MovementCoefficients):
        return movement_seconds(size["moved"], machine, c)
    machine = machine_of(gpu, "bfloat16", cold=cold)  # 8-bit keys are multiplied in 16 bits
    attention = AttentionSizes(*(size[name] for name in AttentionSizes._fields))
    if isinstance(c, records.MaskedCoefficients):
        return masked_attention_seconds(attention, masked_bytes(attention), machine, c)
    if isinstance(c, records.PrefillCoefficients):
        causal = kind == "context_attention"
        return prefill_attention_seconds(attention, machine, c, causal=causal, element_bytes=nbytes)
    return generation_attention_seconds(attention, machine, c, element_bytes=nbytes)
