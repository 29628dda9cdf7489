"""What the rows of a file are about, and the rows themselves, whatever they are read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = ["RawRows", "RowKind", "RowSource"]

_LONGEST_REASON: Final = 160


@dataclass(frozen=True)
class RowKind:
    """What the rows of a file are about.

    Attributes:
        what: What such a file is called, without an article: `list of pages`.
        right: What to give instead of a file that is none.
        columns: The columns to read, from the file as errors name it and the columns that it has;
            raises WorkloadError where one is missing, or there twice.
        error: The error for a file that is missing or unreadable.
    """

    what: str
    right: str
    columns: Callable[[str, list[str]], tuple[str, ...]]
    error: type[WorkloadError] = WorkloadError

    def unreadable(self, path: Path, reason: str) -> WorkloadError:
        """The error for a file that cannot be read, on one line that can be printed."""
        text = " ".join(reason.replace(str(path), "").split())
        text = "".join(character if character.isprintable() else "?" for character in text)
        if len(text) > _LONGEST_REASON:
            text = text[:_LONGEST_REASON] + "..."
        return self.error(f"cannot read {str(path)!r} as a {self.what}: {text}; {self.right}")


@dataclass(frozen=True)
class RawRows:
    """Some rows, as they stand in the file.

    Attributes:
        columns: The wanted columns that the file has, n rows.
        numbers: Each row's number in the file, `[n]`, from 1; a header and blank lines have none.
        rejected: What could not become a row at all, by number.
    """

    columns: pa.RecordBatch
    numbers: NDArray[np.int64]
    rejected: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RowSource:
    """Rows that are read once, in order.

    Attributes:
        batches: The rows; memory holds one batch at a time.
        length: How many, where that is known before all of them are read.
    """

    batches: Iterator[RawRows]
    length: int | None = None
