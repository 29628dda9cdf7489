"""Learned position tables, resized to an image's grid."""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import Kernels, cast
from dsocr_analyze.costs.sums import repeated
from dsocr_analyze.dtypes import FLOAT32, Dtype
from dsocr_analyze.kernels import Elements, Kernel, Work
from dsocr_analyze.tape.integers import ceil_div, maximum

__all__ = ["bicubic_resize", "linear_resize"]


def bicubic_resize(source: int, target: Count, channels: int, dtype: Dtype) -> Kernels:
    """`[C, s, s] -> [C, t, t]`, bicubic and antialiased, in fp32 between two casts; none for s = t.

    One dimension after another, last first, 2 FLOPs per tap of the window: an upper bound. A window
    has 2 h + 1 taps with `h = ceil(2 max(1, s / t))`, as in ATen's `_upsample_bicubic2d_aa`; the
    filter is only `4 max(1, s / t)` wide (Keys 1981), and taps outside it have weight zero:
    9 taps for a width of 6.4 from 64 to 40.

    Args:
        source: Entries s per side of the table.
        target: Entries t per side of the result.
        channels: C.
        dtype: Type of the table.
    """
    half = maximum(2, ceil_div(2 * source, target))
    flops = 2 * (2 * half + 1) * channels * target * (source + target)
    before, after = source * source * channels, target * target * channels
    resized = _resized("_upsample_bicubic2d_aa", before, after, flops, dtype)
    return repeated(resized, 1 * (target != source))


def linear_resize(source: int, target: Count, d: int, dtype: Dtype) -> Kernels:
    """`[s, d] -> [t, d]`, linear, in fp32 between two casts; none for s = t.

    2 taps of 2 FLOPs per output.

    Source: `get_rel_pos` (`deepencoder.py`).

    Args:
        source: Rows s of the table.
        target: Rows t of the result.
        d: Features per row.
        dtype: Type of the table.
    """
    before, after = source * d, target * d
    resized = _resized("upsample_linear1d", before, after, 4 * after, dtype)
    return repeated(resized, 1 * (target != source))


def _resized(operator: str, before: Count, after: Count, flops: Count, dtype: Dtype) -> Kernels:
    """`before` elements resampled to `after` in fp32, cast before and cast back."""
    name, nbytes = FLOAT32
    work = Work(vector_flops=flops, bytes_read=nbytes * before, bytes_written=nbytes * after)
    return (
        *cast(before, dtype, FLOAT32),
        Kernel("interpolation", operator, Elements(after), name, name, work),
        *cast(after, FLOAT32, dtype),
    )
