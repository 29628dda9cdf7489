"""Folders of images as lists of pages; of an image only the header is read."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dsocr_analyze.archive.page_list import PAGES
from dsocr_analyze.errors import PageError, WorkloadError
from dsocr_analyze.row_files.kind import RawRows, RowSource
from dsocr_analyze.workload import page_of_image

__all__ = ["open_folder"]

_IMAGES_A_BATCH: Final = 512


def open_folder(path: Path) -> RowSource:
    """Opens a folder, searched with all folders in it, in the order of names.

    Args:
        path: The folder.

    Raises:
        PageError: It is unreadable, or no file in it is called like an image.
    """
    files = _image_files(path)
    first = next(files, None)
    if first is None:
        raise PageError(f"no image in {str(path)!r} or a folder in it; {PAGES.right}")
    batches = _image_batches(path, itertools.chain([first], files))
    return RowSource(batches)


def _image_files(folder: Path) -> Iterator[str]:
    """Paths, relative to the folder, of all files with an image extension, by name."""
    suffixes = _image_suffixes()

    def give_up(error: OSError) -> None:
        raise PAGES.unreadable(folder, f"{error.filename}: {error.strerror}") from error

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


def _image_batches(folder: Path, files: Iterator[str]) -> Iterator[RawRows]:
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
        yield RawRows(rows, np.array(numbers, np.int64), rejected)
