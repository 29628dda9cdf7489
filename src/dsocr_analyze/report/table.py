"""A table of strings, whatever it is shown as."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Table"]


@dataclass(frozen=True)
class Table:
    """A titled table of strings; the first `label_columns` columns name what a row is about."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    label_columns: int = 1
    emphasized_rows: int = 0
    """How many rows at the end are sums."""

    def is_numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which stand flush right and are never wrapped."""
        return column >= self.label_columns and all(
            not row[column] or row[column][0].isdigit() or row[column] == "-" for row in self.rows
        )
