"""The rows of a list: those that are pages, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.archive.rows import PageRows, fault_column, fault_text, read_rows
from dsocr_analyze.columns.evaluate import Workloads

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from dsocr_analyze.architectures.crop_grid import CropRule
    from dsocr_analyze.row_files.kind import RawRows

__all__ = ["REPORTED_ROWS", "Malformed", "Pages", "read_pages"]

REPORTED_ROWS: Final = 10
"""Malformed rows to report individually; the rest are only counted."""


@dataclass
class Malformed:
    """Rows that are not pages.

    Attributes:
        rows: Number of such rows.
        reported: Row number and reason of the first `REPORTED_ROWS` of them.
    """

    rows: int = 0
    reported: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Malformed) -> None:
        """Add the malformed rows of a later part of the list."""
        self.rows += other.rows
        self.reported = (self.reported + other.reported)[:REPORTED_ROWS]


@dataclass(frozen=True)
class Pages:
    """The n pages of some rows of a list.

    Attributes:
        numbers: Each page's number in the list, `[n]`, from 1.
        paths: Each page's file, `[n]`; None if the list does not consist of files.
        file_pages: Each page's number in its file, `[n]`, from 1; None if `paths` is.
        widths: Pixels, `[n]`.
        heights: Pixels, `[n]`.
        text_tokens: Prompt tokens in addition to the visual ones, per page or for all.
        max_new_tokens: Tokens generated, per page or for all.
        malformed: The rows that are not pages.
    """

    numbers: NDArray[np.int64]
    paths: pa.Array | None
    file_pages: pa.Array | None
    widths: NDArray[np.int64]
    heights: NDArray[np.int64]
    text_tokens: NDArray[np.int64] | int
    max_new_tokens: NDArray[np.int64] | int
    malformed: Malformed

    @property
    def rows(self) -> int:
        """Number of rows, malformed ones included."""
        return len(self.numbers) + self.malformed.rows

    def workloads(self, crop_grids: CropRule) -> Workloads:
        """The pages as workloads with batch size 1."""
        grids = crop_grids.codes(self.widths, self.heights)
        return Workloads(grids, self.text_tokens, self.max_new_tokens)


def read_pages(
    batches: Iterable[RawRows], *, text_tokens: int, max_new_tokens: int
) -> Iterator[Pages]:
    """The pages of a list, batch by batch.

    Args:
        batches: Its rows.
        text_tokens: Prompt tokens in addition to the visual ones, if the list has no such column.
        max_new_tokens: Tokens generated, if the list has no such column.

    Raises:
        PageError: The list cannot be read to its end.
        WorkloadError: A column is not numeric.
    """
    for raw in batches:
        rows = read_rows(raw.columns)
        malformed = _malformed(raw, rows)
        is_page: Any = rows.is_good if rows.faults.any() else slice(None)
        yield Pages(
            raw.numbers[is_page],
            _column(raw, rows, "path"),
            _column(raw, rows, "file_page"),
            rows.widths[is_page],
            rows.heights[is_page],
            text_tokens if rows.text_tokens is None else rows.text_tokens[is_page],
            max_new_tokens if rows.max_new_tokens is None else rows.max_new_tokens[is_page],
            malformed,
        )


def _column(raw: RawRows, rows: PageRows, name: str) -> pa.Array | None:
    """A column's values for the pages; None if there is no such column."""
    import pyarrow as pa

    if name not in raw.columns.schema.names:
        return None
    return raw.columns.column(name).filter(pa.array(rows.is_good))


def _malformed(raw: RawRows, rows: PageRows) -> Malformed:
    """Faulty and rejected rows, in order of row number."""
    import numpy as np

    faulty = np.flatnonzero(rows.faults)
    reported = sorted(raw.rejected.items())[:REPORTED_ROWS]
    for index in faulty[:REPORTED_ROWS].tolist():
        fault = int(rows.faults[index])
        value = raw.value(fault_column(fault), index)
        reported.append((int(raw.numbers[index]), fault_text(fault, value)))
    return Malformed(len(faulty) + len(raw.rejected), sorted(reported)[:REPORTED_ROWS])
