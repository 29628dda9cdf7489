"""What a list of pages is, whatever it is read from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsocr_analyze.archive.rows import LENGTH_COLUMNS, SIZE_COLUMNS, check_columns
from dsocr_analyze.errors import PageError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = ["RIGHT", "PageList", "RawRows", "unreadable", "wanted_columns"]

RIGHT: Final = "give a Parquet or CSV file with columns width and height, or a folder of images"

_LONGEST_REASON: Final = 160


@dataclass(frozen=True)
class RawRows:
    """Some rows of a list, as they stand in it.

    Attributes:
        columns: The columns that the list has of `width`, `height`, `text_tokens` and
            `max_new_tokens`, n rows; for images, `path` too.
        numbers: Each row's number in the list, `[n]`, from 1; a header and blank lines have none.
        rejected: What could not become a row at all, by number.
    """

    columns: pa.RecordBatch
    numbers: NDArray[np.int64]
    rejected: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PageList:
    """A list of pages, read once, in order.

    Attributes:
        batches: Its rows; memory holds one batch at a time.
        length: Rows, where that is known before all of them are read.
    """

    batches: Iterator[RawRows]
    length: int | None = None


def wanted_columns(path: Path, names: list[str]) -> tuple[str, ...]:
    """The columns to read, of those that a file has.

    Raises:
        WorkloadError: One is missing, or there twice.
    """
    check_columns(names, repr(str(path)))
    return tuple(name for name in (*SIZE_COLUMNS, *LENGTH_COLUMNS) if name in names)


def unreadable(path: Path, reason: str) -> PageError:
    """The error for a list that cannot be read, on one line that can be printed."""
    text = " ".join(reason.replace(str(path), "").split())
    text = "".join(character if character.isprintable() else "?" for character in text)
    if len(text) > _LONGEST_REASON:
        text = text[:_LONGEST_REASON] + "..."
    return PageError(f"cannot read {str(path)!r} as a list of pages: {text}; {RIGHT}")
