"""A table of strings, independent of the output format."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Table"]

_NUMBER: Final = re.compile(r"[~?<(+-]*\d")
_LONGEST_FIGURE: Final = 30


@dataclass(frozen=True)
class Table:
    """A titled table of strings; the first `label_columns` columns label its rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    label_columns: int = 1
    emphasized_rows: int = 0
    """How many rows at the end are sums."""
    optional: tuple[str, ...] = ()
    """Columns that a narrow terminal may leave out, in the order in which they are left out."""

    def is_numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which are right-aligned and never wrapped."""
        return column >= self.label_columns and all(_is_number(row[column]) for row in self.rows)


def _is_number(cell: str) -> bool:
    """Whether a cell is empty or one or two numbers, rather than prose that starts with one."""
    if cell in ("", "-"):
        return True
    return _NUMBER.match(cell) is not None and max(map(len, cell.split("\n"))) <= _LONGEST_FIGURE
