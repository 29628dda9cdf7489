"""The chip as the formulas of kernel times see it: its peaks, and what L2 serves."""

from __future__ import annotations

from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware.devices import Gpu

Floats: TypeAlias = NDArray[np.float64]

_L2_USABLE: Final = 0.9
"""Fraction of L2 that bytes fill of which half are there the next time."""
_L2_SHARPNESS: Final = 24.0
"""How fast the share of bytes that are still there drops with their number."""
_L2_WHOLE: Final = 2**20 / 1e6
"""The same if all of L2 is usable, whose datasheets count 2^20 bytes as a MB."""
WEIGHTS_SHARPNESS: Final = 16.0
"""The same of weights, which are read one after another in every run."""


class Machine(NamedTuple):
    """A chip in one data type."""

    flops_per_second: float
    """Dense matrix peak."""
    bytes_per_second: float
    """Of device memory."""
    sms: int
    l2_bytes: float
    cold: bool
    """Whether L2 has nothing of the last run."""

    @classmethod
    def of(cls, gpu: Gpu, dtype: str, *, cold: bool = False) -> Self:
        """A GPU."""
        return cls(
            gpu.tflops(dtype) * 1e12, gpu.bandwidth_gb_s * 1e9, gpu.sms, gpu.l2_mb * 1e6, cold
        )  # fmt: skip

    def hits(
        self, moved: Floats, usable: float = _L2_USABLE, sharpness: float = _L2_SHARPNESS
    ) -> Floats:
        """Share of some bytes that L2 serves if the last run moved the same."""
        if self.cold:
            return np.zeros_like(moved)
        filled = np.log(np.maximum(moved, 1.0) / (self.l2_bytes * usable)) * sharpness
        # Less than a millionth is nothing: as if they were cold, to the last digit.
        share: Floats = np.where(filled < 14, 1 / (1 + np.exp(np.minimum(filled, 50))), 0.0)
        return share

    def least_seconds(self, flops: Floats, moved: Floats) -> tuple[Floats, Floats]:
        """Of products at the peak, and of the bytes that L2 does not serve at the bandwidth."""
        missed = moved - moved * self.hits(moved, _L2_WHOLE, WEIGHTS_SHARPNESS)
        return flops / self.flops_per_second, missed / self.bytes_per_second

    def memory_seconds(
        self, moved: Floats, c: records.Coefficients, usable: float = _L2_USABLE,
        sharpness: float = _L2_SHARPNESS,
    ) -> Floats:  # fmt: skip
        """Seconds per byte of a kernel that moves so many."""
        # L2 is no slower than memory, whatever small kernels lack of the bandwidth.
        saved = 1 / c.memory_share - 1 / max(c.l2_share, c.memory_share)
        hits = self.hits(moved, usable, sharpness)
        seconds: Floats = (1 / c.memory_share - hits * saved) / self.bytes_per_second
        return seconds
