"""Lists of pages: a Parquet or CSV file of sizes, or a folder of images, batch by batch."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dsocr_analyze.errors import PageError, WorkloadError
from dsocr_analyze.sweep.csv_pages import open_csv
from dsocr_analyze.sweep.page_list import (
    RIGHT,
    PageBatch,
    PageList,
    unreadable,
    wanted_columns,
)
from dsocr_analyze.sweep.rows import SIZE_COLUMNS
from dsocr_analyze.workload import page_of_image

__all__ = ["open_pages"]

_BATCH_ROWS: Final = 131_072
_IMAGES_A_BATCH: Final = 512
_PARQUET_BUFFER_BYTES: Final = 1 << 20
_PARQUET_MAGIC: Final = b"PAR1"
_PARQUET_SUFFIXES: Final = (".parquet", ".pq")


def open_pages(path: Path) -> PageList:
    """Opens a list of pages; nothing but a header is read yet.

    A file's content tells whether it is Parquet, its name does not. A folder is searched with all
    folders in it, in the order of names, for files that are called like images.

    Args:
        path: The file or folder.

    Raises:
        PageError: It is missing, unreadable, or no list of pages.
        WorkloadError: A column is missing, or there twice.
    """
    try:
        if path.is_dir():
            return _open_folder(path)
        if not path.exists():
            raise PageError(f"no list of pages {str(path)!r}; {RIGHT}")
        if not path.is_file():
            raise PageError(f"list of pages {str(path)!r} is no file; {RIGHT}")
        with path.open("rb") as file:
            start = file.read(len(_PARQUET_MAGIC))
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error
    if start == _PARQUET_MAGIC:
        return _open_parquet(path)
    if path.suffix.lower() in _PARQUET_SUFFIXES:
        raise PageError(f"{str(path)!r} is not a Parquet file; {RIGHT}")
    return open_csv(path)


def _open_parquet(path: Path) -> PageList:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, buffer_size=_PARQUET_BUFFER_BYTES, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, str(error)) from error
    columns = wanted_columns(path, list(file.schema_arrow.names))

    def batches() -> Iterator[PageBatch]:
        import numpy as np

        first = 1
        try:
            for rows in file.iter_batches(_BATCH_ROWS, columns=list(columns), use_threads=False):
                yield PageBatch(rows, np.arange(first, first + rows.num_rows))
                first += rows.num_rows
        except (OSError, pa.ArrowException) as error:
            raise unreadable(path, str(error)) from error
        finally:
            file.close()

    return PageList(path, columns, file.metadata.num_rows, batches())


def _open_folder(path: Path) -> PageList:
    files = _image_files(path)
    first = next(files, None)
    if first is None:
        raise PageError(f"no image in {str(path)!r} or a folder in it; {RIGHT}")
    batches = _image_batches(path, itertools.chain([first], files))
    return PageList(path, ("path", *SIZE_COLUMNS), None, batches)


def _image_files(folder: Path) -> Iterator[str]:
    """Paths, relative to the folder, of all files that are called like images, by name."""
    suffixes = _image_suffixes()

    def give_up(error: OSError) -> None:
        raise unreadable(folder, f"{error.filename}: {error.strerror}") from error

    for directory, folders, names in os.walk(folder, onerror=give_up):
        folders.sort()
        inner = Path(directory).relative_to(folder)
        for name in sorted(names):
            if Path(name).suffix.lower() in suffixes:
                yield (inner / name).as_posix()


def _image_suffixes() -> frozenset[str]:
    """Suffixes of the formats that Pillow can open."""
    from PIL import Image

    known = Image.registered_extensions()
    return frozenset(suffix for suffix, kind in known.items() if kind in Image.OPEN)


def _image_batches(folder: Path, files: Iterator[str]) -> Iterator[PageBatch]:
    """Sizes from the images' headers."""
    import numpy as np
    import pyarrow as pa

    numbered = enumerate(files, 1)
    while chunk := list(itertools.islice(numbered, _IMAGES_A_BATCH)):
        names, numbers, sizes = [], [], []
        rejected = {}
        for number, name in chunk:
            try:
                sizes.append(page_of_image(folder / name))
            except WorkloadError as error:
                rejected[number] = str(error)
            else:
                names.append(name)
                numbers.append(number)
        rows = pa.record_batch(
            {
                "path": pa.array([os.fsencode(name).decode("utf-8", "replace") for name in names],
                                 pa.string()),
                "width": pa.array([width for width, _ in sizes], pa.int64()),
                "height": pa.array([height for _, height in sizes], pa.int64()),
            }
        )  # fmt: skip
        yield PageBatch(rows, np.array(numbers, np.int64), rejected)
