"""The chip as the formulas of kernel times see it: peaks, what L2 serves, and how work fills it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware.devices import Gpu

Floats: TypeAlias = NDArray[np.float64]
Sizes: TypeAlias = Mapping[str, Floats]
Needs: TypeAlias = tuple[Floats, Floats, Floats]
"""A formula's seconds, the necessary FLOPs and the bytes that have to be moved."""

_L2_USABLE: Final = 0.9
"""Fraction of L2 that bytes fill of which half are there the next time."""
_L2_WHOLE: Final = 2**20 / 1e6
"""That fraction if all of L2 is usable, whose datasheets count 2^20 bytes as a MB."""
_L2_SHARPNESS: Final = 24.0
"""How fast the share of bytes that are still there drops with their number."""
WEIGHTS_SHARPNESS: Final = 16.0
"""The same of weights, which are read one after another in every run."""
_HOPPER: Final = 9.0
_RTX_BLACKWELL: Final = 12.0
"""Compute capabilities from which products run on groups of warps, and again as on Ampere."""


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
    has_192: bool = False
    """Whether libraries have tiles of 192 rows for its products."""

    @classmethod
    def of(cls, gpu: Gpu, dtype: str, *, cold: bool = False) -> Self:
        """A GPU."""
        return cls(
            gpu.tflops(dtype) * 1e12, gpu.bandwidth_gb_s * 1e9, gpu.sms, gpu.l2_mb * 1e6, cold,
            _HOPPER <= gpu.compute_capability < _RTX_BLACKWELL,
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


# --- how work fills it ---------------------------------------------------------------------

RAMP: Final = 0.25
"""Fraction beyond a library's limit within which its next kernel takes over."""
_BEGUN: Final = 0.5
"""Fraction of a second tile in which it is begun; of the n + 1st, an n-th of it."""
_WAVE_BEGUN: Final = 0.15


def whole(share: Floats, within: float | None = None) -> Floats:
    """Whole tiles or waves, at least one; a further one is begun `within` a fraction of it.

    Of tiles, the fewer there are, the more gradually: one unit adds as much to one as to many. So
    times are continuous in sizes of which multiples were measured, or some well beyond them.
    """
    low = np.floor(share)
    begun = (share - low) / (within or _BEGUN / np.maximum(1.0, low))
    rounded: Floats = np.maximum(1.0, low + np.minimum(1.0, begun))
    return rounded


def waves(units: Floats, sms: int, weight: float, slots: int = 1) -> Floats:
    """Waves in which the SMs process `units` of work, at least one.

    The mean of whole waves, with this `weight`, and fractional ones. With several `slots` per SM,
    later waves come in multiples of them: an SM that is done refills them all.
    """
    share, early = units / sms, _WAVE_BEGUN / 2
    rounded = whole(share + early, _WAVE_BEGUN)
    if slots > 1:
        later = slots * whole(share / slots + early, _WAVE_BEGUN)
        rounded = np.where(later > slots, later, np.minimum(rounded, slots))
    mixed: Floats = np.maximum(1.0, (weight * rounded + share) / (1 + weight))
    return mixed


def overlapped(first: Floats, second: Floats, norm: float) -> Floats:
    """The (1 + norm)-norm of two times: a little above their maximum if they are alike."""
    power = 1 + norm
    longer: Floats = np.maximum(first, second)
    return longer * (1 + (np.minimum(first, second) / longer) ** power) ** (1 / power)


def beside(values: Sequence[float] | Floats, axes: int) -> Floats:
    """Numbers `[n]` along a new first axis of arrays that have so many axes."""
    return np.array(values, np.float64).reshape(-1, *[1] * axes)


def by_range(
    size: Floats, bounds: Floats, seconds: Callable[[Floats], Floats],
    *, ramp: float = 0.0, may_fall: NDArray[np.bool_] | bool = False,
    at_bounds: Callable[[Floats], Floats] | None = None,
) -> Floats:  # fmt: skip
    """Seconds of a kernel that a library chooses by the range of a size, up to each of `bounds`.

    `seconds` are those of sizes `[1 + bounds, *sizes]`, each with the kernel of its range. Beyond a
    bound the next one takes over, within a fraction `ramp` of it. Where it takes less time than the
    last one did, both take their geometric mean around the bound, as more takes no less time,
    unless it `may_fall`: `at_bounds` are the seconds there, whatever else depends on a size.
    """
    lowest, highest = np.zeros_like(bounds[:1]), np.full_like(bounds[:1], np.inf)
    own = seconds(np.clip(size, np.append(lowest, bounds, 0), np.append(bounds, highest, 0)))
    edges = [np.append(bounds[:1], bounds, 0), np.append(bounds, bounds[-1:], 0)]
    starts, ends = (at_bounds or seconds)(np.array(edges))
    taken: Floats = own[0]
    reached, least = np.zeros(()), np.where(may_fall, 0.0, 1.0)
    for bound, longer, last, first in zip(bounds, own[1:], ends, starts[1:], strict=False):
        reached = np.maximum(reached * least, last)
        falls = (first < reached) & (least > 0)
        level = np.where(falls, np.sqrt(first * reached), np.inf)
        taken, reached = np.minimum(taken, level), np.minimum(reached, level)
        begun = np.clip((size / bound - 1) / ramp, 0.0, 1.0) if ramp else 1.0 * (size > bound)
        taken = taken * np.maximum(least, longer / taken) ** begun
    return taken
