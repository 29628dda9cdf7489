"""Learned position tables, resized to the grid of an image."""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count, ceil_div, maximum
from dsocr_analyze.costs.movement import FP32_BYTES, cast
from dsocr_analyze.costs.sums import combined, scaled
from dsocr_analyze.work import Work

__all__ = ["bicubic_resize", "linear_resize"]


def bicubic_resize(source: int, target: Count, channels: int, element_bytes: int) -> Work:
    """`[C, s, s] -> [C, t, t]`, bicubic and antialiased, in fp32 between two casts; none for s = t.

    One dimension after the other, last first, 2 FLOPs a tap. A window has 2 h + 1 taps with
    `h = ceil(2 max(1, s / t))`: shrinking widens the filter (Keys 1981; ATen's
    `_upsample_bicubic2d_aa`).

    Args:
        source: Entries s a side of the table.
        target: Entries t a side wanted.
        channels: C.
        element_bytes: Bytes of an entry of the table.
    """
    half = maximum(2, ceil_div(2 * source, target))
    flops = 2 * (2 * half + 1) * channels * target * (source + target)
    before, after = source * source * channels, target * target * channels
    resampling = Work(
        vector_flops=flops, bytes_read=FP32_BYTES * before, bytes_written=FP32_BYTES * after
    )
    work = combined(
        (
            cast(before, element_bytes, FP32_BYTES),
            resampling,
            cast(after, FP32_BYTES, element_bytes),
        )
    )
    return scaled(work, 1 * (target != source))


def linear_resize(source: int, target: Count, d: int, element_bytes: int) -> Work:
    """`[s, d] -> [t, d]`, linear, in fp32 between two casts; none for s = t.

    2 taps of 2 FLOPs an output.

    Source: `get_rel_pos` (`deepencoder.py`).

    Args:
        source: Rows s of the table.
        target: Rows t wanted.
        d: Features of a row.
        element_bytes: Bytes of a feature.
    """
    before, after = source * d, target * d
    resampling = Work(
        vector_flops=4 * after, bytes_read=FP32_BYTES * before, bytes_written=FP32_BYTES * after
    )
    work = combined(
        (
            cast(before, element_bytes, FP32_BYTES),
            resampling,
            cast(after, FP32_BYTES, element_bytes),
        )
    )
    return scaled(work, 1 * (target != source))
