"""The chip as formulas see it: peaks, SMs, L2, and waves of work."""

from __future__ import annotations

from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.hardware.coefficients import (
    Coefficients,
    ExpertsCoefficients,
    GenerationCoefficients,
)
from dsocr_analyze.hardware.devices import Gpu

__all__ = ["Floats", "Machine", "overlapped", "relative_seconds", "waves"]


Floats: TypeAlias = NDArray[np.float64]

_L2_USABLE: Final = 0.8
"""Fraction of L2 that bytes may fill to be there the next time."""


class Machine(NamedTuple):
    """A chip in one data type."""

    flops_per_second: float
    """Dense matrix peak."""
    bytes_per_second: float
    """Of device memory."""
    sms: int
    l2_bytes: float
    """0 to read everything from device memory."""

    @classmethod
    def of(cls, gpu: Gpu, dtype: str, *, cold: bool = False) -> Self:
        """A GPU; if `cold`, without its L2."""
        l2_bytes = 0.0 if cold else gpu.l2_mb * 1e6
        return cls(gpu.tflops(dtype) * 1e12, gpu.bandwidth_gb_s * 1e9, gpu.sms, l2_bytes)

    def in_l2(self, nbytes: Floats | NDArray[np.int64] | float) -> NDArray[np.bool_]:
        """Whether this many bytes may still be in L2."""
        return np.asarray(nbytes) < _L2_USABLE * self.l2_bytes

    def bandwidth(self, moved: Floats, c: Coefficients) -> Floats:
        """Bytes per second of a kernel that moves so many."""
        share = np.where(self.in_l2(moved), c.l2_share, c.memory_share)
        return share * self.bytes_per_second


def waves(units: Floats, sms: int, whole: float, slots: int = 1) -> Floats:
    """Waves in which the SMs process `units` of work, at least one.

    The mean of whole waves, weighted by `whole`, and fractional ones. With several `slots` per SM,
    later waves come in multiples of them: an SM that is done refills them all.
    """
    share = units / sms
    rounded = np.ceil(share)
    if slots > 1:
        rounded = np.where(share <= slots, rounded, slots * np.ceil(share / slots))
    mixed: Floats = np.maximum(1.0, (whole * rounded + share) / (1 + whole))
    return mixed


def overlapped(first: Floats, second: Floats, norm: float) -> Floats:
    """The (1 + norm)-norm of two times: a little above their maximum if they are alike."""
    power = 1 + norm
    longer: Floats = np.maximum(first, second)
    return longer * (1 + (np.minimum(first, second) / longer) ** power) ** (1 / power)


def relative_seconds(
    moved: Floats,
    machine: Machine,
    c: ExpertsCoefficients | GenerationCoefficients,
    sharpness: float,
) -> Floats:
    """Seconds per byte, relative to the bandwidth, if the last run moved the same bytes.

    The more L2 they fill, the fewer of them are still there; `sharpness` is how fast that drops.
    """
    hit: Floats = np.zeros_like(moved)
    if machine.l2_bytes:
        filled = np.log(moved / (machine.l2_bytes * c.l2_part)) * sharpness
        hit = 1 / (1 + np.exp(np.clip(filled, -50, 50)))
    return hit / c.l2_share + (1 - hit) / c.memory_share
