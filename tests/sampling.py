"""Which cases of a test the default run tries; `make exhaustive` tries the others."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

__all__ = ["every", "first", "named", "sampled"]

leaves_out = False
"""Whether nobody selects what is marked `exhaustive`, so that it need not be collected."""

Choice = Callable[[int, Any], bool]
"""Whether the default run tries a case, by its number and its value, or its id if it has one."""


def every(step: int, start: int = 0) -> Choice:
    """Every n-th case, starting with the first or another."""
    return lambda number, _: number % step == start


def first(count: int) -> Choice:
    """The first cases."""
    return lambda number, _: number < count


def named(*names: Any) -> Choice:
    """The cases of these values or ids."""
    return lambda _, name: name in names


def sampled(
    argnames: str | tuple[str, ...], cases: Iterable[Any], chosen: Choice, **options: Any
) -> Any:
    """`pytest.mark.parametrize`, where cases that are not chosen are marked `exhaustive`."""
    single = isinstance(argnames, str) and "," not in argnames
    rows = []
    for number, case in enumerate(cases):
        row = case if hasattr(case, "marks") else pytest.param(*((case,) if single else case))
        if not chosen(number, case.id if row is case else case):
            row = row._replace(marks=[*row.marks, pytest.mark.exhaustive])
        rows.append(row)
    tried = [row for row in rows if pytest.mark.exhaustive not in row.marks]
    assert 0 < len(tried) < len(rows), f"{argnames}: all or none; use pytest.mark.parametrize"
    return pytest.mark.parametrize(argnames, tried if leaves_out else rows, **options)
