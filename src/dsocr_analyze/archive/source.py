"""Opens lists of pages: a Parquet or CSV file of sizes, an image, a PDF, or a folder of these."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dsocr_analyze.archive.folder import (
    DEFAULT_PDF_DPI,
    FolderFiles,
    is_countable,
    open_file,
    open_folder,
)
from dsocr_analyze.archive.page_list import PAGES
from dsocr_analyze.input_files import is_folder, is_regular
from dsocr_analyze.row_files.kind import RowSource
from dsocr_analyze.row_files.source import open_rows
from dsocr_analyze.workload.page import LARGEST_SIDE
from dsocr_analyze.workload.workload import check_count

__all__ = ["PageSource", "open_pages"]


@dataclass(frozen=True)
class PageSource(RowSource):
    """Pages that are read once, in order.

    Attributes:
        files: What the files of a folder are, complete once all pages have been read; None for a
            list of sizes.
    """

    files: FolderFiles | None = None


def open_pages(path: Path, *, pdf_dpi: int = DEFAULT_PDF_DPI) -> PageSource:
    """Open a list of pages; only a header is read yet.

    Parquet is recognised by content, not by name. A folder and all folders in it are searched, in
    order of names, for files with the extension of an image or PDF; a single such file is a list
    of its pages.

    Args:
        path: The file or folder.
        pdf_dpi: Resolution assumed for rendering PDF pages, in pixels per inch.

    Raises:
        PageError: It is missing, unreadable, or not a list of pages.
        WorkloadError: A column is missing or duplicated.
    """
    check_count("pdf_dpi", pdf_dpi, 1, LARGEST_SIDE, " pixels to an inch")
    if is_folder(path):
        source, files = open_folder(path, pdf_dpi)
    elif is_regular(path) and is_countable(path):
        source, files = open_file(path, pdf_dpi)
    else:
        source, files = open_rows(path, PAGES), None
    return PageSource(source.batches, source.length, source.warnings, files)
