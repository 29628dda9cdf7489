"""Evaluates closed forms on arrays once per distinct combination of values.

Millions of pages share few distinct sizes and lengths, so a closed form over arrays costs one
evaluation per distinct input plus one lookup per page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from dsocr_analyze.costs.integers import is_integer

__all__ = ["distinct", "looked_up"]

_MOST_KEYS: Final = 1 << 24
"""Widest range of distinct values looked up in a table."""

_CHUNK: Final = 1 << 14
"""Elements evaluated at a time if there are many distinct values, so that arrays fit in cache."""


Counts = TypeVar("Counts", bound=tuple[Any, ...])


def looked_up(function: Callable[..., list[Counts]], *arguments: Any) -> list[Counts]:
    """Evaluates `function(*arguments)` once per distinct combination of the arrays' values.

    Args:
        function: Closed forms over integers or arrays, computed elementwise.
        arguments: Integers, and arrays of equal length.

    Returns:
        The results of `function`: named tuples of counts, integers or arrays of that length.
    """
    arrays = [argument for argument in arguments if not is_integer(argument)]
    if not arrays or not len(arrays[0]) or arrays[0].dtype == object:
        return function(*arguments)
    found = _combinations(arrays)
    if found is None:
        return _in_chunks(function, arguments, len(arrays[0]))
    chosen, index = found
    works = function(*_replaced(arguments, chosen))
    return [
        type(work)(*(c if is_integer(c) else _taken(c, index) for c in work))  # one per result
        for work in works
    ]


def _taken(counts: Any, index: Any) -> Any:
    """`counts[index]`, for an index known to be in range."""
    return counts.take(index, mode="clip")


def _combinations(arrays: list[Any]) -> tuple[list[Any], Any] | None:
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
    return [argument if is_integer(argument) else next(new) for argument in arguments]


def _in_chunks(
    function: Callable[..., list[Counts]], arguments: Iterable[Any], n: int
) -> list[Counts]:
    """`function(*arguments)` in chunks small enough for their arrays to stay in the CPU cache."""
    import numpy as np

    parts = [
        function(*(a if is_integer(a) else a[start : start + _CHUNK] for a in arguments))
        for start in range(0, n, _CHUNK)
    ]
    if len(parts) == 1:
        return parts[0]
    joined = []
    for works in zip(*parts, strict=True):
        counts: list[Any] = [
            column[0] if is_integer(column[0]) else np.concatenate(column)
            for column in zip(*works, strict=True)
        ]
        joined.append(type(works[0])(*counts))
    return joined
