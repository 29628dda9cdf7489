"""Opens Parquet and CSV files of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dsocr_analyze.input_files import opened
from dsocr_analyze.row_files.csv_rows import open_csv
from dsocr_analyze.row_files.kind import RowKind, RowSource
from dsocr_analyze.row_files.parquet_rows import open_parquet

__all__ = ["open_rows"]

_PARQUET_MAGIC: Final = b"PAR1"
_PARQUET_SUFFIXES: Final = (".parquet", ".pq")


def open_rows(path: Path, kind: RowKind) -> RowSource:
    """Open a file of rows; only a header is read yet.

    Parquet is recognised by content, not by name.

    Args:
        path: The file.
        kind: The kind of rows.

    Raises:
        WorkloadError: It is missing, unreadable or in another format (`kind.error`), or has the
            wrong columns.
    """
    try:
        with opened(path) as file:
            start = file.read(len(_PARQUET_MAGIC))
    except FileNotFoundError as error:
        raise kind.error(f"no {kind.what} {str(path)!r}; {kind.right}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise kind.unreadable(path, reason or str(error)) from error
    if start == _PARQUET_MAGIC:
        return open_parquet(path, kind)
    if path.suffix.lower() in _PARQUET_SUFFIXES:
        raise kind.error(f"{str(path)!r} is not a Parquet file; {kind.right}")
    return open_csv(path, kind)
