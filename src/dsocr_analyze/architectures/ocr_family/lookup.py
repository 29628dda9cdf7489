"""Evaluates functions of arrays once per distinct combination of values.

Millions of pages share few distinct sizes and lengths, so an evaluation over arrays costs one
evaluation per distinct input plus one lookup per page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

__all__ = ["combinations", "distinct", "looked_up", "taken"]

_MOST_KEYS: Final = 1 << 24
"""Widest range of distinct values looked up in a table."""

_CHUNK: Final = 1 << 14
"""Elements evaluated at a time if there are many distinct values, so that arrays fit in cache."""


def looked_up(function: Callable[..., list[Any]], *arguments: Any) -> list[Any]:
    """Evaluates `function(*arguments)` once per distinct combination of the arrays' values.

    Args:
        function: A function of integers or arrays, computed element by element.
        arguments: Integers, and arrays of equal length.

    Returns:
        The columns that `function` returns, integers or arrays of that length.
    """
    arrays = [argument for argument in arguments if not isinstance(argument, int)]
    if not arrays or not len(arrays[0]) or arrays[0].dtype == object:
        return function(*arguments)
    found = combinations(arrays)
    if found is None:
        return _in_chunks(function, arguments, len(arrays[0]))
    chosen, index = found
    return [taken(column, index) for column in function(*_replaced(arguments, chosen))]


def taken(column: Any, index: Any) -> Any:
    """`column[index]`, for an index known to be in range; the integer itself if it is one."""
    return column if isinstance(column, int) else column.take(index, mode="clip")


def combinations(arrays: list[Any]) -> tuple[list[Any], Any] | None:
    """Distinct combinations of the arrays' values, and each element's index among them.

    None if there are too many for a lookup to pay off.
    """
    pairs = []
    for array in arrays:
        pair = distinct(array)
        if pair is None:
            return None
        pairs.append(pair)
    key = pairs[0][1]
    for values, codes in pairs[1:]:
        key = key * len(values) + codes
    joint = distinct(key)
    if joint is None or 2 * len(joint[0]) > len(key):
        return None
    keys, index = joint
    chosen = []
    for values, _ in reversed(pairs):
        chosen.append(values[keys % len(values)])
        keys = keys // len(values)
    return chosen[::-1], index


def distinct(array: Any) -> tuple[Any, Any] | None:
    """An array's distinct values, ascending, and each element's index among them.

    None if the values span too wide a range for a table.
    """
    import numpy as np

    low = int(array.min())
    width = int(array.max()) - low + 1
    if width > min(_MOST_KEYS, 64 * len(array) + 4096):
        return None
    offsets = array - low if low else array
    seen = np.zeros(width, dtype=bool)
    seen[offsets] = True
    values = np.flatnonzero(seen)
    if len(values) == width:
        return values + low, offsets
    place = np.empty(width, dtype=np.int64)
    place[values] = np.arange(len(values))
    return values + low, place.take(offsets, mode="clip")


def _replaced(arguments: Iterable[Any], arrays: Iterable[Any]) -> list[Any]:
    """The arguments, with their arrays replaced, in order, by others."""
    new = iter(arrays)
    return [argument if isinstance(argument, int) else next(new) for argument in arguments]


def _in_chunks(function: Callable[..., list[Any]], arguments: Iterable[Any], n: int) -> list[Any]:
    """`function(*arguments)` in chunks small enough for their arrays to stay in the CPU cache."""
    import numpy as np

    parts = [
        function(*(a if isinstance(a, int) else a[start : start + _CHUNK] for a in arguments))
        for start in range(0, n, _CHUNK)
    ]
    if len(parts) == 1:
        return parts[0]
    return [
        column[0] if isinstance(column[0], int) else np.concatenate(column)
        for column in zip(*parts, strict=True)
    ]
