"""Output lengths from a file with one row per page."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.row_files import (
    RowKind,
    open_rows,
    problem_text,
    wanted_columns,
    whole_numbers,
)
from dsocr_analyze.timing.assumptions import OutputLengths
from dsocr_analyze.workload import LARGEST_COUNT

_LENGTH_COLUMN: Final = "new_tokens"
"""Column of a page's tokens; a file's only column may have any name."""


def read_lengths(path: Path, *, warn: Callable[[str], None] = lambda _: None) -> OutputLengths:
    """The distribution of the lengths in a Parquet or CSV file.

    A row is a page, with its tokens in the column `new_tokens` or the only one. A CSV file has a
    header and may be compressed. `warn` is told of columns that are not read.

    Raises:
        WorkloadError: The file is missing, unreadable or has no rows, it has no such column or two
            of them, or a row is not a whole number from 1 to `LARGEST_COUNT`.
    """
    pages = np.zeros(LARGEST_COUNT + 1, np.int64)
    source = open_rows(path, _KIND)
    for warning in source.warnings:
        warn(warning)
    for rows in source.batches:
        (name,) = rows.columns.schema.names
        lengths, reasons = whole_numbers(name, rows.columns.column(0), LARGEST_COUNT)
        problems = [*rows.rejected.items()]
        for row in np.flatnonzero(reasons)[:1].tolist():
            reason, value = int(reasons[row]), rows.value(0, row)
            said = problem_text(_LENGTH_COLUMN, reason, LARGEST_COUNT, value)
            problems.append((int(rows.numbers[row]), said))
        if problems:
            number, problem = min(problems)
            raise WorkloadError(f"row {number} of {str(path)!r}: {problem}")
        counted = np.bincount(lengths)
        pages[: len(counted)] += counted
    distinct = np.flatnonzero(pages)
    if not len(distinct):
        raise WorkloadError(f"{str(path)!r} has no rows; {_KIND.right}")
    counts = zip(distinct.tolist(), pages[distinct].tolist(), strict=True)
    return OutputLengths.of_counts(dict(counts))


def _wanted_column(what: str, names: list[str]) -> tuple[str, ...]:
    if len(names) != 1:
        return wanted_columns(what, names, _KIND.known, needed=_KIND.known, right=_KIND.right)
    if re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?", names[0].strip()):
        raise WorkloadError(
            f"the only column of {what} is called {names[0]!r}, which is a number; "
            f"start a CSV file with a header: {_LENGTH_COLUMN}"
        )
    return (names[0],)


_KIND: Final = RowKind(
    what="list of output lengths",
    right=f"give a Parquet or CSV file with a column {_LENGTH_COLUMN}, in tokens, or one column",
    columns=_wanted_column,
    known=(_LENGTH_COLUMN,),
    row="the output of one page",
)
