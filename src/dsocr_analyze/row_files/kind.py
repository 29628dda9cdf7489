"""A kind of rows, and the rows themselves, independent of the file format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = ["RawRows", "RowKind", "RowSource"]

_LONGEST_REASON: Final = 160


@dataclass(frozen=True)
class RowKind:
    """What the rows of a file represent.

    Attributes:
        what: Name of such a file, without an article: `list of pages`.
        right: Advice on what to give instead, for errors.
        columns: Selects the columns to read, given the file's name for errors and its columns;
            raises WorkloadError if one is missing or duplicated.
        error: The error type for a file that is missing or unreadable.
    """

    what: str
    right: str
    columns: Callable[[str, list[str]], tuple[str, ...]]
    error: type[WorkloadError] = WorkloadError

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
    """

    batches: Iterator[RawRows]
    length: int | None = None
