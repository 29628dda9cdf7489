"""Learned position tables, resampled in fp32 for another grid.

Source: `get_abs_pos_sam`, `get_abs_pos` and `get_rel_pos` (`deepencoder.py`).
"""

from __future__ import annotations

from dsocr_analyze.dtypes import FLOAT32
from dsocr_analyze.kernels import Elements, Work
from dsocr_analyze.tape import Operand, Tape, Tensor

__all__ = ["bicubic", "linear1d"]


def bicubic(t: Tape, grid: Operand, source: int, target: int, d: int) -> Operand:
    """`[d, source, source] -> [d, target, target]`, antialiased; fp32 in, the model's type out.

    One dimension after another, last first, 2 FLOPs per tap of the window: an upper bound. A window
    has 2 h + 1 taps with `h = ceil(2 max(1, source / target))`, as in ATen's
    `_upsample_bicubic2d_aa`; the filter is only `4 max(1, source / target)` wide (Keys 1981), and
    taps outside it have weight zero: 9 taps for a width of 6.4 from 64 to 40.
    """
    half = max(2, -(-2 * source // target))
    flops = 2 * (2 * half + 1) * d * target * (source + target)
    return _interpolated(t, "_upsample_bicubic2d_aa", grid, target * target * d, flops)


def linear1d(t: Tape, columns: Operand, rows: int, d: int) -> Operand:
    """`[d, source] -> [d, rows]`, fp32 in, the model's type out: 2 taps of 2 FLOPs per output."""
    return _interpolated(t, "upsample_linear1d", columns, rows * d, 4 * rows * d)


def _interpolated(t: Tape, operator: str, table: Operand, n: int, flops: int) -> Operand:
    work = Work(0, flops, 0, table.nbytes, n * FLOAT32.nbytes)
    t.record("interpolation", operator, Elements(n), FLOAT32, FLOAT32, work)
    return t.cast(Tensor(t, n, FLOAT32), t.dtype)
