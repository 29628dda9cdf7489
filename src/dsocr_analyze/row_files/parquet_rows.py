"""Rows in Parquet; only the wanted columns are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dsocr_analyze.row_files.kind import RawRows, RowKind, RowSource

__all__ = ["open_parquet"]

_BATCH_ROWS: Final = 131_072
_BUFFER_BYTES: Final = 1 << 20


def open_parquet(path: Path, kind: RowKind) -> RowSource:
    """Open a Parquet file.

    Args:
        path: The file.
        kind: The kind of rows.

    Raises:
        WorkloadError: It is unreadable (`kind.error`), or has the wrong columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # For column names that are not UTF-8, pyarrow raises UnicodeDecodeError, not its own error.
    damage = (OSError, UnicodeDecodeError, pa.ArrowException)
    try:
        file = pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        names = list(file.schema_arrow.names)
    except damage as error:
        raise kind.unreadable(path, str(error)) from error
    columns = kind.columns(repr(str(path)), names)

    def batches() -> Iterator[RawRows]:
        import numpy as np

        first = 1
        try:
            for rows in file.iter_batches(_BATCH_ROWS, columns=list(columns), use_threads=False):
                yield RawRows(rows, np.arange(first, first + rows.num_rows))
                first += rows.num_rows
            if not file.metadata.num_rows:  # what is written from no rows has columns all the same
                schema = pa.schema([file.schema_arrow.field(name) for name in columns])
                yield RawRows(pa.RecordBatch.from_pylist([], schema), np.arange(0))
        except damage as error:
            raise kind.unreadable(path, str(error)) from error
        finally:
            file.close()

    warnings = kind.warnings(path, names, columns)
    return RowSource(batches(), file.metadata.num_rows, warnings)
