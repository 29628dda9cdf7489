"""Markdown tables: written whole, or with the cells that people wrote kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["rows_of", "table"]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    lines += [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def rows_of(body: str) -> list[list[str]]:
    """The cells of a table's rows, without its header."""
    rows = re.findall(r"^\|(.*)\|$", body, re.M)
    return [[cell.strip().replace("&#124;", "|") for cell in row.split("|")] for row in rows[2:]]
