"""The chip as the formulas see it: peaks, SMs and L2, and how work is divided into waves.

Elementwise kernels, normalizations and copies are bytes over its bandwidth, plus a fixed cost.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.hardware.kernel_times.coefficients import MovementCoefficients

__all__ = ["Floats", "Machine", "blocks", "movement_seconds", "overlapped", "waves"]


Floats: TypeAlias = NDArray[np.float64]

_L2_USABLE: Final = 0.8
"""Fraction of L2 that bytes may fill and still be there the next time."""


class Machine(NamedTuple):
    """A chip in one data type.

    Attributes:
        flops_per_second: Dense matrix peak.
        bytes_per_second: Device memory bandwidth.
        sms: Streaming multiprocessors (compute units).
        l2_bytes: Level-2 cache; 0 to read everything from device memory.
    """

    flops_per_second: float
    bytes_per_second: float
    sms: int
    l2_bytes: float

    @classmethod
    def of(cls, gpu: Gpu, dtype: str, *, cold: bool = False) -> Self:
        """The chip in a data type; `cold` to read everything from device memory."""
        l2_bytes = 0.0 if cold else gpu.l2_mb * 1e6
        return cls(gpu.tflops(dtype) * 1e12, gpu.bandwidth_gb_s * 1e9, gpu.sms, l2_bytes)

    def in_l2(self, nbytes: Floats | NDArray[np.int64] | float) -> NDArray[np.bool_]:
        """Whether this many bytes may still be in L2, given its usable fraction."""
        return np.asarray(nbytes) < _L2_USABLE * self.l2_bytes


def blocks(size: Floats, block: float) -> Floats:
    """Number of blocks that cover `size`."""
    return np.ceil(size / block)


def waves(units: Floats, sms: int, whole: float, slots: int = 1) -> Floats:
    """Number of waves in which the SMs process `units` of work, at least one.

    A mean of whole and fractional waves, with weight `whole` on the whole ones. With several
    `slots` per SM, later waves come in multiples of `slots`: an SM that is done refills them all.
    """
    share = units / sms
    rounded = np.ceil(share)
    if slots > 1:
        rounded = np.where(share <= slots, rounded, slots * np.ceil(share / slots))
    mixed: Floats = np.maximum(1.0, (whole * rounded + share) / (1 + whole))
    return mixed


def overlapped(first: Floats, second: Floats, norm: float) -> Floats:
    """The (1 + norm)-norm of two times: their maximum, larger if they are close to each other."""
    power = 1 + norm
    longer = np.maximum(first, second)
    shorter = np.minimum(first, second)
    softened: Floats = longer * (1 + (shorter / longer) ** power) ** (1 / power)
    return softened


def movement_seconds(moved: Floats, machine: Machine, c: MovementCoefficients) -> Floats:
    """Seconds of a kernel that reads and writes `moved` bytes in total and computes little."""
    in_l2 = machine.in_l2(moved)
    bandwidth = np.where(in_l2, c.l2_share, c.memory_share) * machine.bytes_per_second
    seconds: Floats = (moved + c.ramp_mb * 1e6) / bandwidth + c.launch_us * 1e-6
    return seconds
