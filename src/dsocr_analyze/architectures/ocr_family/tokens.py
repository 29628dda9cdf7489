"""How many tokens a view becomes."""

from __future__ import annotations

__all__ = ["tokens_per_side"]


def tokens_per_side(size: int) -> int:
    """Tokens per side of a square view: `ceil((size // 16) / 4)`.

    This is what the vendor's `infer()` lays out, and what the encoders yield for every size, not
    only for multiples of 64: the patch convolution (kernel 16, stride 16) floors to `size // 16`,
    and each of the two convolutions after SAM (kernel 3, stride 2, padding 1) rounds half of its
    input up; rounding halves up twice is rounding a quarter up once.

    Args:
        size: Pixels per side, at least 16.
    """
    return -(-(size // 16) // 4)
