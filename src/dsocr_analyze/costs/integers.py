"""Arithmetic that takes an integer as well as an array of integers.

A formula written with `+ - *` and these functions holds for one workload (Python integers, exact at
any size) and for a million of them (numpy arrays, `int64` or `object`). numpy is imported only
where an array comes in.
"""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = [
    "Count",
    "ceil_div",
    "ceil_log2",
    "is_integer",
    "is_nothing",
    "is_one_token",
    "largest",
    "maximum",
    "minimum",
    "several",
]

Count: TypeAlias = int
"""An integer or an array of integers; spelled `int`, whose operators both of them have."""


def is_integer(count: object) -> bool:
    """Whether this is one integer, not an array of them."""
    return isinstance(count, int)


def is_nothing(count: object) -> bool:
    """Whether this is the integer 0, which needs no addition."""
    return isinstance(count, int) and count == 0


def is_one_token(T: object) -> bool:
    """Whether this is a decode step's one new token; a prompt, or an array of prompts, is not."""
    return isinstance(T, int) and T == 1


def several(count: Any) -> Count:
    """1 where there is more than one, else 0."""
    more: Count = 1 * (count > 1)
    return more


def ceil_div(dividend: Count, divisor: Count) -> Count:
    """`ceil(dividend / divisor)`."""
    return -(-dividend // divisor)


def maximum(a: Any, b: Any) -> Any:
    """The larger one, element by element."""
    if is_integer(a) and is_integer(b):
        return a if a > b else b
    import numpy as np

    return np.maximum(a, b)


def largest(counts: Any) -> int:
    """The largest of an array of integers; the integer itself; 0 of an empty array."""
    if is_integer(counts):
        return int(counts)
    return int(counts.max()) if len(counts) else 0


def minimum(a: Any, b: Any) -> Any:
    """The smaller one, element by element."""
    return -maximum(-a, -b)


def ceil_log2(n: Any) -> Any:
    """`ceil(log2(n))` for n from 1: bits of `n - 1`."""
    if is_integer(n):
        return (n - 1).bit_length()
    import numpy as np

    if n.dtype == object:
        return np.frompyfunc(lambda item: (int(item) - 1).bit_length(), 1, 1)(n)
    # A float64's exponent counts bits; by halves, since beyond 2^53 it would be rounded up.
    high, low = (n - 1) >> 32, (n - 1) & 0xFFFFFFFF
    exponents = np.where(high > 0, np.frexp(high)[1] + 32, np.frexp(low)[1])
    return exponents.astype(np.int64)
