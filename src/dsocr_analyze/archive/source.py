"""Lists of pages opened: a Parquet or CSV file of sizes, or a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dsocr_analyze.archive.csv_pages import open_csv
from dsocr_analyze.archive.image_pages import open_folder
from dsocr_analyze.archive.page_list import RIGHT, PageList, unreadable
from dsocr_analyze.archive.parquet_pages import open_parquet
from dsocr_analyze.errors import PageError

__all__ = ["open_pages"]

_PARQUET_MAGIC: Final = b"PAR1"
_PARQUET_SUFFIXES: Final = (".parquet", ".pq")


def open_pages(path: Path) -> PageList:
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
        if path.is_dir():
            return open_folder(path)
        if not path.exists():
            raise PageError(f"no list of pages {str(path)!r}; {RIGHT}")
        if not path.is_file():
            raise PageError(f"list of pages {str(path)!r} is no file; {RIGHT}")
        with path.open("rb") as file:
            start = file.read(len(_PARQUET_MAGIC))
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error
    if start == _PARQUET_MAGIC:
        return open_parquet(path)
    if path.suffix.lower() in _PARQUET_SUFFIXES:
        raise PageError(f"{str(path)!r} is not a Parquet file; {RIGHT}")
    return open_csv(path)
