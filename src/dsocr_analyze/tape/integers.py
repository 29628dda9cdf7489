"""Sizes that are no polynomials of others, for integers as well as arrays of integers."""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["Size", "ceil_div", "ceil_log2", "largest", "maximum", "minimum", "quotient"]


Size: TypeAlias = Any
"""An integer, an array of integers or a `Polynomial`.

Spelled `Any` because all of them support the same operators.
"""


def maximum(a: Size, b: Size) -> Size:
    """The larger of both, element by element."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    import numpy as np

    return np.maximum(a, b)


def largest(counts: Size) -> int:
    """The largest of an integer array; the integer itself; 0 for an empty array."""
    if isinstance(counts, int):
        return counts
    return int(counts.max()) if len(counts) else 0


def minimum(a: Size, b: Size) -> Size:
    """The smaller of both, element by element."""
    return -maximum(-a, -b)


def quotient(dividend: Size, divisor: Size) -> Size:
    """`floor(dividend / divisor)`."""
    return dividend // divisor


def ceil_div(dividend: Size, divisor: Size) -> Size:
    """`ceil(dividend / divisor)`."""
    return -(-dividend // divisor)


def ceil_log2(n: Size) -> Size:
    """`ceil(log2(n))` for n >= 1: the number of bits of `n - 1`."""
    if isinstance(n, int):
        return (n - 1).bit_length()
    import numpy as np

    if n.dtype.kind == "O":
        return np.frompyfunc(lambda item: (int(item) - 1).bit_length(), 1, 1)(n)
    # A float64's exponent counts bits; in two halves, since beyond 2^53 it would be rounded up.
    high, low = (n - 1) >> 32, (n - 1) & 0xFFFFFFFF
    exponents = np.where(high > 0, np.frexp(high)[1] + 32, np.frexp(low)[1])
    return exponents.astype(np.int64)
