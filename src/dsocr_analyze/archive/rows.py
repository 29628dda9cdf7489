"""The page sizes and lengths in an Arrow batch, row by row, and what is wrong with a row.

A bad value marks its row as faulty instead of raising: a list of a million pages has some.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.row_files.kind import columns_text, meant_columns
from dsocr_analyze.row_files.whole_numbers import Reason, problem_text, whole_numbers
from dsocr_analyze.workload.page import LARGEST_SIDE
from dsocr_analyze.workload.workload import LARGEST_COUNT

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = [
    "LENGTH_COLUMNS",
    "SIZE_COLUMNS",
    "PageRows",
    "check_columns",
    "fault_column",
    "fault_text",
    "fault_texts",
    "read_rows",
]

SIZE_COLUMNS: Final = ("width", "height")
"""Required columns of a list of pages, in pixels."""

LENGTH_COLUMNS: Final = ("text_tokens", "max_new_tokens")
"""Optional columns; without them all pages have the same length."""

_MOST: Final = {
    "width": LARGEST_SIDE,
    "height": LARGEST_SIDE,
    "text_tokens": LARGEST_COUNT,
    "max_new_tokens": LARGEST_COUNT,
}

_REASONS: Final = len(Reason)


@dataclass(frozen=True)
class PageRows:
    """The pages of a batch; in a faulty row every number is 1.

    Attributes:
        widths: Pixels, `[n]`.
        heights: Pixels, `[n]`.
        text_tokens: `[n]`, or None if the batch has no such column.
        max_new_tokens: `[n]`, or None if the batch has no such column.
        faults: `[n]`, 0 for a good row; see `fault_text`.
    """

    widths: NDArray[np.int64]
    heights: NDArray[np.int64]
    text_tokens: NDArray[np.int64] | None
    max_new_tokens: NDArray[np.int64] | None
    faults: NDArray[np.uint8]

    @property
    def is_good(self) -> NDArray[np.bool_]:
        """Which rows are pages, `[n]`."""
        return self.faults == 0  # type: ignore[no-any-return]  # a comparison of arrays


def fault_text(fault: int, value: object = None) -> str:
    """What is wrong with a row, with the value if one is given.

    Args:
        fault: One of `PageRows.faults`, not 0.
        value: The row's value in the column that `fault_column` returns.
    """
    reason = (fault - 1) % _REASONS + 1
    column = fault_column(fault)
    return problem_text(column, reason, _MOST[column], value)


def fault_column(fault: int) -> str:
    """The first bad column of a faulty row."""
    return (*SIZE_COLUMNS, *LENGTH_COLUMNS)[(fault - 1) // _REASONS]


def fault_texts() -> list[str | None]:
    """The text of every fault by number; None for 0."""
    count = _REASONS * len(_MOST)
    return [None, *(fault_text(fault) for fault in range(1, count + 1))]


def read_rows(batch: pa.RecordBatch | pa.Table) -> PageRows:
    """The numbers of a batch.

    Args:
        batch: Columns `width` and `height`, optionally `text_tokens` and `max_new_tokens`; whole
            numbers in any numeric type, or as text.

    Raises:
        WorkloadError: A column is missing, duplicated, or of a non-numeric type.
    """
    import numpy as np

    names = batch.schema.names
    check_columns(names)
    values: dict[str, NDArray[np.int64]] = {}
    faults = np.zeros(batch.num_rows, np.uint8)
    for position, name in enumerate((*SIZE_COLUMNS, *LENGTH_COLUMNS)):
        if name not in names:
            continue
        column, reasons = whole_numbers(name, batch.column(name), _MOST[name])
        values[name] = column
        if reasons is not None:
            first = (faults == 0) & (reasons != 0)
            faults[first] = _REASONS * position + reasons[first]
    if faults.any():
        for column in values.values():
            column[faults != 0] = 1
    return PageRows(
        values["width"],
        values["height"],
        values.get("text_tokens"),
        values.get("max_new_tokens"),
        faults,
    )


def check_columns(names: list[str], what: str = "a list of pages") -> None:
    """Raise WorkloadError unless every required column is there exactly once."""
    for name in (*SIZE_COLUMNS, *LENGTH_COLUMNS):
        found = names.count(name)
        if found > 1:
            raise WorkloadError(f"{what} has {found} columns {name!r}; give one")
        if not found and name in SIZE_COLUMNS:
            meant = meant_columns(names, [each for each in _MOST if each not in names])
            raise WorkloadError(
                f"{what} has no column {name!r} (it has {columns_text(names)}); "
                f"{meant}give columns width and height, in pixels"
            )
