"""What a list of pages is, whatever its file format."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.archive.rows import LENGTH_COLUMNS, SIZE_COLUMNS, check_columns
from dsocr_analyze.errors import PageError
from dsocr_analyze.row_files.kind import RowKind

__all__ = ["PAGES"]


def _wanted_columns(what: str, names: list[str]) -> tuple[str, ...]:
    """The columns to read from a file with these columns.

    Raises:
        WorkloadError: One is missing or duplicated.
    """
    check_columns(names, what)
    return tuple(name for name in (*SIZE_COLUMNS, *LENGTH_COLUMNS) if name in names)


PAGES: Final = RowKind(
    what="list of pages",
    right="give a Parquet or CSV file with columns width and height, or a folder of images and"
    " PDFs",
    columns=_wanted_columns,
    known=(*SIZE_COLUMNS, *LENGTH_COLUMNS),
    row=f"one page, with columns {', '.join((*SIZE_COLUMNS, *LENGTH_COLUMNS))}",
    error=PageError,
)
"""Lists of pages; rows from image and PDF files also have columns `path` and `file_page`."""
