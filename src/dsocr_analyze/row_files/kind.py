"""A kind of rows, and the rows themselves, independent of the file format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.names import near_to
from dsocr_analyze.row_files.whole_numbers import shortened

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = ["RawRows", "RowKind", "RowSource", "columns_text", "meant_columns"]

_LONGEST_REASON: Final = 160
_NAMED_COLUMNS: Final = 8


@dataclass(frozen=True)
class RowKind:
    """What the rows of a file represent.

    Attributes:
        what: Name of such a file, without an article: `list of pages`.
        right: Advice on what to give instead, for errors.
        columns: Selects the columns to read, given the file's name for errors and its columns;
            raises WorkloadError if one is missing or duplicated.
        known: Every column that such a file may have.
        row: What each row counts as, for a warning about columns that are not read.
        error: The error type for a file that is missing or unreadable.
    """

    what: str
    right: str
    columns: Callable[[str, list[str]], tuple[str, ...]]
    known: tuple[str, ...]
    row: str
    error: type[WorkloadError] = WorkloadError

    def warnings(self, path: Path, names: list[str], read: Collection[str]) -> tuple[str, ...]:
        """A warning that names the columns that are not read; empty if all of them are.

        Args:
            path: The file.
            names: Its columns.
            read: Those that are read.
        """
        unread = list(dict.fromkeys(name for name in names if name not in read))
        if not unread:
            return ()
        meant = meant_columns(unread, [each for each in self.known if each not in names])
        return (
            f"columns of {str(path)!r} that are not read: {columns_text(unread)}; {meant}each row"
            f" counts as {self.row}",
        )

    def unreadable(self, path: Path, reason: str) -> WorkloadError:
        """The error for a file that cannot be read, as one printable line."""
        text = " ".join(reason.replace(str(path), "").split())
        text = "".join(character if character.isprintable() else "?" for character in text)
        if len(text) > _LONGEST_REASON:
            text = text[:_LONGEST_REASON] + "..."
        return self.error(f"cannot read {str(path)!r} as a {self.what}: {text}; {self.right}")


@dataclass(frozen=True)
class RawRows:
    """Some rows as they are in the file.

    Attributes:
        columns: The wanted columns that the file has, n rows.
        numbers: Each row's number in the file, `[n]`, from 1; header and blank lines don't count.
        rejected: Why a line could not be parsed as a row, by row number.
    """

    columns: pa.RecordBatch
    numbers: NDArray[np.int64]
    rejected: dict[int, str] = field(default_factory=dict)

    def value(self, column: int | str, row: int) -> Any:
        """The value of one cell, for a message; a text that is not UTF-8 is only described."""
        cell = self.columns.column(column)[row]
        try:
            return cell.as_py()
        except UnicodeDecodeError:
            return f"({cell.type} that is not UTF-8)"


@dataclass(frozen=True)
class RowSource:
    """Rows that are read once, in order.

    Attributes:
        batches: The rows; only one batch is in memory at a time.
        length: Number of rows, if it is known before reading them all.
        warnings: Warnings about the file, such as columns that are not read.
    """

    batches: Iterator[RawRows]
    length: int | None = None
    warnings: tuple[str, ...] = ()


def columns_text(names: list[str]) -> str:
    """The first names of columns, for a message."""
    shown = ", ".join(shortened(name) for name in names[:_NAMED_COLUMNS])
    more = len(names) - _NAMED_COLUMNS
    return f"{shown or 'none'} and {more} more" if more > 0 else shown or "none"


def meant_columns(names: Iterable[str], lacking: Collection[str]) -> str:
    """`did you mean A by 'B'? ` for names that are close to missing columns; empty if none is.

    Args:
        names: Columns of a file.
        lacking: Known columns that the file lacks.
    """
    near = {name: near_to(name, lacking, most=1) for name in names}
    pairs = [f"{found[0]} by {shortened(name)}" for name, found in near.items() if found]
    return f"did you mean {' and '.join(pairs[:_NAMED_COLUMNS])}? " if pairs else ""
