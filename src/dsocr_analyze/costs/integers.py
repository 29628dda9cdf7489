"""Arithmetic for integers as well as arrays of integers.

A formula written with `+ - *` and these functions works for one workload (Python integers, exact at
any size) and for a million of them (numpy arrays, `int64` or `object`). numpy is imported only
if an array is passed.
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
    "maximum",
    "minimum",
    "several",
]

Count: TypeAlias = int
"""An integer or an array of integers; spelled `int` because both support its operators."""


def is_integer(count: object) -> bool:
    """Whether this is a single integer rather than an array."""
    return isinstance(count, int)


def is_nothing(count: object) -> bool:
    """Whether this is the integer 0, which need not be added."""
    return isinstance(count, int) and count == 0


def is_one_token(T: object) -> bool:
    """Whether this is a decode step's single new token, not a prompt or an array of prompts."""
    return isinstance(T, int) and T == 1


def several(count: Any) -> Count:
    """1 if there is more than one, otherwise 0."""
    more: Count = 1 * (count > 1)
    return more


def ceil_div(dividend: Count, divisor: Count) -> Count:
    """`ceil(dividend / divisor)`."""
    return -(-dividend // divisor)


def maximum(a: Any, b: Any) -> Any:
    """The larger of both, elementwise."""
    if is_integer(a) and is_integer(b):
        return a if a > b else b
    import numpy as np

    return np.maximum(a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of both, elementwise."""
    return -maximum(-a, -b)


def ceil_log2(n: Any) -> Any:
    """`ceil(log2(n))` for n >= 1: the number of bits of `n - 1`."""
    if is_integer(n):
        return (n - 1).bit_length()
    import numpy as np

    if n.dtype == object:
        return np.frompyfunc(lambda item: (int(item) - 1).bit_length(), 1, 1)(n)
    # A float64's exponent counts bits; in two halves, since beyond 2^53 it would be rounded up.
    high, low = (n - 1) >> 32, (n - 1) & 0xFFFFFFFF
    exponents = np.where(high > 0, np.frexp(high)[1] + 32, np.frexp(low)[1])
    return exponents.astype(np.int64)
