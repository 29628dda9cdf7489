"""Arithmetic that takes an integer as well as an array of integers.

A formula written with `+ - *` and these functions holds for one workload (Python integers, exact at
any size) and for a million of them (numpy arrays, `int64` or `object`). numpy is imported only
where an array comes in.
"""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["Count", "Test", "ceil_div", "ceil_log2", "maximum", "minimum", "only_if"]

Count: TypeAlias = int
"""An integer or an array of integers; spelled `int`, whose operators both of them have."""

Test: TypeAlias = bool
"""A truth value or an array of them."""


def ceil_div(dividend: Count, divisor: Count) -> Count:
    """`ceil(dividend / divisor)`."""
    return -(-dividend // divisor)


def maximum(a: Count, b: Count) -> Count:
    """The larger one, element by element."""
    if isinstance(a, int) and isinstance(b, int):
        return a if a > b else b
    import numpy as np

    larger: Any = np.maximum(a, b)
    return larger  # type: ignore[no-any-return]  # an array, see Count


def minimum(a: Count, b: Count) -> Count:
    """The smaller one, element by element."""
    return -maximum(-a, -b)


def only_if(test: Test, value: Count) -> Count:
    """`value` where `test` holds, else 0."""
    return test * value


def ceil_log2(n: Count) -> Count:
    """`ceil(log2(n))` for n from 1: bits of `n - 1`."""
    if isinstance(n, int):
        return (n - 1).bit_length()
    import numpy as np

    array: Any = n
    if array.dtype == object:
        lengths: Any = np.frompyfunc(lambda item: (int(item) - 1).bit_length(), 1, 1)(array)
        return lengths  # type: ignore[no-any-return]  # an array, see Count
    # The exponent of a float64 is exact up to 2^53; a count of tokens is far below.
    exponents: Any = np.frexp((array - 1).astype(np.float64))[1].astype(np.int64)
    return exponents  # type: ignore[no-any-return]  # an array, see Count
