"""Tables of any length as CSV or Parquet files, written batch by batch and atomically."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from dsocr_analyze.errors import FormatError
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.output_files import replacing, write_files
from dsocr_analyze.report.opening import dump_json

if TYPE_CHECKING:
    import pyarrow as pa

    from dsocr_analyze.columns.setting import CountOpening

__all__ = ["METADATA_KEY", "csv_writer", "sidecar", "table_format", "table_writer"]

METADATA_KEY: Final = b"dsocr_analyze"
"""Key of the `CountOpening` in a Parquet file's metadata, as JSON."""

_SUFFIXES: Final = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}

Write = Callable[["pa.RecordBatch"], None]


def table_format(path: Path) -> str:
    """`csv` or `parquet`, from the file's name.

    Raises:
        FormatError: The name has neither extension.
    """
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise FormatError(
            f"cannot tell the format of {str(path)!r}; give a name that ends in "
            f"{', '.join(_SUFFIXES)}"
        )
    return _SUFFIXES[suffix]


@contextlib.contextmanager
def table_writer(path: Path, opening: CountOpening) -> Iterator[Write]:
    """Yields a function that writes batches; the file is created or replaced only on success.

    Args:
        path: The file; its extension sets the format.
        opening: Metadata, stored in the Parquet file itself or in the `sidecar` of a CSV file.

    Raises:
        FormatError: Its format is unknown.
        OutputError: The file cannot be written.
    """
    beside = sidecar(path)
    with replacing(path) as temporary:
        if table_format(path) == "csv":
            with temporary.open("wb") as file, csv_writer(file) as write:
                yield write
        else:
            with _parquet_writer(temporary, opening) as write:
                yield write
        if beside is not None:
            write_files({beside: dump_json(opening)})


def sidecar(path: Path) -> Path | None:
    """The file for a CSV file's metadata: `rows.csv.json` next to `rows.csv`.

    None for a format with metadata of its own, and for a device or a pipe.
    """
    is_special = path.exists() and not path.is_file()
    if table_format(path) != "csv" or is_special:
        return None
    return path.with_name(f"{path.name}.json")


@contextlib.contextmanager
def csv_writer(file: IO[bytes]) -> Iterator[Write]:
    """Yields a function that writes batches of one schema, the first one with a header.

    Args:
        file: The file to write to.
    """
    from pyarrow import csv

    def begin(schema: pa.Schema) -> Any:
        file.write((",".join(schema.names) + "\n").encode())
        has_free_text = any(name in schema.names for name in ("path", "problem"))
        options = csv.WriteOptions(
            include_header=False, quoting_style="needed" if has_free_text else "none"
        )
        return csv.CSVWriter(file, schema, write_options=options)

    yield from _written_from(begin)


@contextlib.contextmanager
def _parquet_writer(path: Path, opening: CountOpening) -> Iterator[Write]:
    import msgspec
    from pyarrow import parquet

    text = json.dumps(msgspec.to_builtins(opening), sort_keys=True)

    def begin(schema: pa.Schema) -> Any:
        about = schema.with_metadata({METADATA_KEY: text.encode()})
        return parquet.ParquetWriter(path, about, compression="zstd")

    yield from _written_from(begin)


def _written_from(begin: Callable[[pa.Schema], Any]) -> Iterator[Write]:
    """Yields a function that writes batches with the writer that `begin` opens at the first."""
    with contextlib.ExitStack() as stack:
        writer: Any = None

        def write(batch: pa.RecordBatch) -> None:
            nonlocal writer
            if writer is None:
                writer = stack.enter_context(begin(batch.schema))
            writer.write_batch(batch)
            safe_point()

        yield write
