"""Tables as CSV or Parquet files, written batch by batch and atomically."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from dsocr_analyze.errors import FormatError
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.output_files import replacing, write_files
from dsocr_analyze.report.opening import dump_json

if TYPE_CHECKING:
    import pyarrow as pa

    from dsocr_analyze.archive.setting import CountOpening

METADATA_KEY: Final = b"dsocr_analyze"
"""Key of the `CountOpening`, as JSON, in Parquet metadata."""

_SUFFIXES: Final = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}


def table_format(path: Path) -> str:
    """`csv` or `parquet`, from the file's extension; raises FormatError for others."""
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise FormatError(
            f"cannot tell the format of {str(path)!r}; give a name that ends in "
            f"{', '.join(_SUFFIXES)}"
        )
    return _SUFFIXES[suffix]


def sidecar(path: Path) -> Path | None:
    """The file for a CSV file's metadata, `rows.csv.json`; none for a device or a pipe."""
    if table_format(path) != "csv" or (path.exists() and not path.is_file()):
        return None
    return path.with_name(f"{path.name}.json")


@contextlib.contextmanager
def table_writer(path: Path, opening: CountOpening) -> Iterator[BatchWriter]:
    """Yields a writer; the file, and a CSV file's `sidecar`, appear only on success.

    Raises FormatError if its format is unknown, OutputError if it cannot be written.
    """
    inside = None if table_format(path) == "csv" else opening
    with replacing(path) as file:
        with BatchWriter(file, inside) as writer:
            yield writer
        if (beside := sidecar(path)) is not None:
            write_files({beside: dump_json(opening)})


class BatchWriter(contextlib.ExitStack):
    """Writes batches of one schema into an open file."""

    def __init__(self, file: IO[bytes], opening: CountOpening | None = None) -> None:
        super().__init__()
        self._file, self._opening = file, opening
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes a batch, after the header of a CSV file."""
        if self._writer is None:
            self._writer = self.enter_context(self._begun(batch.schema))
        self._writer.write_batch(batch)
        safe_point()

    def _begun(self, schema: pa.Schema) -> Any:
        if self._opening is not None:
            from pyarrow import parquet

            text = json.dumps(msgspec.to_builtins(self._opening), sort_keys=True)
            about = schema.with_metadata({METADATA_KEY: text.encode()})
            return parquet.ParquetWriter(self._file, about, compression="zstd")
        from pyarrow import csv

        self._file.write((",".join(schema.names) + "\n").encode())
        has_free_text = any(name in schema.names for name in ("path", "problem"))
        options = csv.WriteOptions(
            include_header=False, quoting_style="needed" if has_free_text else "none"
        )
        return csv.CSVWriter(self._file, schema, write_options=options)
