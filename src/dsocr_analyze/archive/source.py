"""Lists of pages opened: a Parquet or CSV file of sizes, or a folder of images."""

from __future__ import annotations

from pathlib import Path

from dsocr_analyze.archive.image_pages import open_folder
from dsocr_analyze.archive.page_list import PAGES
from dsocr_analyze.row_files.kind import RowSource
from dsocr_analyze.row_files.source import open_rows

__all__ = ["open_pages"]


def open_pages(path: Path) -> RowSource:
    """Opens a list of pages; nothing but a header is read yet.

    A file's content tells whether it is Parquet, its name does not. A folder is searched with all
    folders in it, in the order of names, for files with an image extension.

    Args:
        path: The file or folder.

    Raises:
        PageError: It is missing, unreadable, or no list of pages.
        WorkloadError: A column is missing, or there twice.
    """
    try:
        is_folder = path.is_dir()
    except OSError as error:
        raise PAGES.unreadable(path, error.strerror or str(error)) from error
    return open_folder(path) if is_folder else open_rows(path, PAGES)
