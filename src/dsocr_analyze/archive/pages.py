"""The rows of a list, read: those that describe a page, and what is wrong with the others."""

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

    from dsocr_analyze.architectures.architecture import CropGrids
    from dsocr_analyze.row_files.kind import RawRows

__all__ = ["REPORTED_ROWS", "Malformed", "Pages", "read_pages"]

REPORTED_ROWS: Final = 10
"""Malformed rows that are named; the others are only counted."""


@dataclass
class Malformed:
    """Rows that describe no page.

    Attributes:
        rows: How many.
        reported: Number and reason of the first `REPORTED_ROWS` of them.
    """

    rows: int = 0
    reported: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Malformed) -> None:
        """Counts the rows of a later part of the list too."""
        self.rows += other.rows
        self.reported = (self.reported + other.reported)[:REPORTED_ROWS]


@dataclass(frozen=True)
class Pages:
    """The n pages of some rows of a list.

    Attributes:
        numbers: Each page's number in the list, `[n]`, from 1.
        paths: The file that each is in, `[n]`; None where the list is not one of files.
        file_pages: Each page's number in its file, `[n]`, from 1; None likewise.
        widths: Pixels, `[n]`.
        heights: Pixels, `[n]`.
        text_tokens: Tokens besides the visual ones, for each page or for all.
        max_new_tokens: Tokens generated, for each page or for all.
        malformed: The rows that describe no page.
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
        """Rows of the list, malformed ones included."""
        return len(self.numbers) + self.malformed.rows

    def workloads(self, crop_grids: CropGrids) -> Workloads:
        """The pages as workloads, each alone."""
        grids = crop_grids.codes(self.widths, self.heights)
        return Workloads(grids, self.text_tokens, self.max_new_tokens)


def read_pages(
    batches: Iterable[RawRows], *, text_tokens: int, max_new_tokens: int
) -> Iterator[Pages]:
    """The pages of a list, batch by batch.

    Args:
        batches: Its rows.
        text_tokens: Tokens besides the visual ones, where the list does not say.
        max_new_tokens: Tokens generated, where the list does not say.

    Raises:
        PageError: The list cannot be read to its end.
        WorkloadError: A column holds no numbers.
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
    """What a column says of the pages; None where there is none."""
    import pyarrow as pa

    if name not in raw.columns.schema.names:
        return None
    return raw.columns.column(name).filter(pa.array(rows.is_good))


def _malformed(raw: RawRows, rows: PageRows) -> Malformed:
    """Faulty and rejected rows, in the order of their numbers."""
    import numpy as np

    faulty = np.flatnonzero(rows.faults)
    reported = sorted(raw.rejected.items())[:REPORTED_ROWS]
    for index in faulty[:REPORTED_ROWS].tolist():
        fault = int(rows.faults[index])
        value = raw.columns.column(fault_column(fault))[index].as_py()
        reported.append((int(raw.numbers[index]), fault_text(fault, value)))
    return Malformed(len(faulty) + len(raw.rejected), sorted(reported)[:REPORTED_ROWS])
