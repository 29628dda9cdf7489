"""Rows in CSV, parsed line by line so that a bad line does not affect others.

Every line is a row. Values that span lines are not supported, since a single unclosed quote would
then swallow the rest of the file.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dsocr_analyze.row_files.kind import RawRows, RowKind, RowSource

__all__ = ["open_csv"]

_BLOCK_BYTES: Final = 4 << 20
_LONGEST_LINE_BYTES: Final = 64 << 20
_ENCODING: Final = "latin-1"
"""Numbers are ASCII; in Latin-1 every other byte is valid too, whatever its real encoding."""

_MOST_BLANK_LINES: Final = 10_000_000
"""A hundred kilobytes of compressed blank lines could otherwise take minutes."""

_COMMA_INSIDE: Final = "\x1f"
"""Replaces a comma within a quoted value, which is not a number anyway."""


def open_csv(path: Path, kind: RowKind) -> RowSource:
    """Open a CSV file with commas, double quotes and a header; decompress it based on its name.

    Args:
        path: The file.
        kind: The kind of rows.

    Raises:
        WorkloadError: It is empty or unreadable (`kind.error`), or has the wrong columns.
    """
    blocks = _line_blocks(path, kind)
    lines = next(blocks, None)
    if lines is None:
        raise kind.unreadable(path, "it is empty")
    try:
        names = [name.strip() for name in _values(lines[0].as_py())]
    except csv.Error as error:
        raise kind.unreadable(path, f"its first line: {error}") from error
    columns = kind.columns(repr(str(path)), names)
    positions = [names.index(column) for column in columns]

    def batches() -> Iterator[RawRows]:
        first = 1
        block = lines[1:]
        while block is not None:
            yield _batch(block, first, len(names), dict(zip(columns, positions, strict=True)))
            first += len(block)
            block = next(blocks, None)

    return RowSource(batches(), warnings=kind.warnings(path, names, columns))


def _line_blocks(path: Path, kind: RowKind) -> Iterator[Any]:
    """Non-blank lines as Arrow arrays of bytes, `[n]` with n at least 1."""
    import pyarrow as pa
    import pyarrow.compute as pc

    blank = 0

    def wanted(text: bytes) -> Any:
        nonlocal blank
        lines = _lines(text)
        is_blank = pc.match_substring_regex(lines, r"^\s*$")
        found = pc.sum(is_blank).as_py() or 0
        blank += found
        if blank > _MOST_BLANK_LINES:
            raise kind.unreadable(path, f"it has more than {_MOST_BLANK_LINES:,} blank lines")
        return lines.filter(pc.invert(is_blank)) if found else lines

    try:
        with pa.input_stream(path, compression="detect") as stream:
            rest = stream.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
            while block := stream.read(_BLOCK_BYTES):
                whole, newline, tail = (rest + block).rpartition(b"\n")
                rest = tail
                if len(rest) > _LONGEST_LINE_BYTES:
                    raise kind.unreadable(
                        path, f"a line is longer than {_LONGEST_LINE_BYTES} bytes"
                    )
                if newline and len(lines := wanted(whole)):
                    yield lines
            if rest and len(lines := wanted(rest)):
                yield lines
    except (OSError, pa.ArrowException) as error:
        raise kind.unreadable(path, str(error)) from error


def _lines(block: bytes) -> Any:
    """The lines of a block, an Arrow array of bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.array([block.replace(b"\r\n", b"\n").removesuffix(b"\r")], pa.binary())
    return pc.split_pattern(text, "\n").values


def _values(line: bytes) -> list[str]:
    """The values of one line; raises csv.Error for an unclosed quote."""
    return next(csv.reader([line.decode(_ENCODING)], strict=True))


def _batch(lines: Any, first: int, expected: int, positions: dict[str, int]) -> RawRows:
    """The rows of some lines.

    Args:
        lines: `[n]`.
        first: Number of the first line.
        expected: Number of values that a line must have.
        positions: Index of each wanted column.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    rejected: dict[int, str] = {}
    is_quoted = pc.match_substring(lines, '"')
    if pc.any(is_quoted).as_py():
        lines = _without_quotes(lines, is_quoted, first, rejected)
    values = pc.split_pattern(lines, ",")
    counts = pc.list_value_length(values).fill_null(-1).to_numpy(zero_copy_only=False)
    numbers = np.arange(first, first + len(lines))
    is_row = counts == expected
    if not is_row.all():
        for index in np.flatnonzero(~is_row & (counts >= 0)).tolist():
            rejected[first + index] = f"it has {counts[index]} values for {expected} columns"
        values, numbers = values.filter(pa.array(is_row)), numbers[is_row]
    rows = {name: pc.list_element(values, position) for name, position in positions.items()}
    return RawRows(pa.record_batch(rows), numbers, rejected)


def _without_quotes(lines: Any, is_quoted: Any, first: int, rejected: dict[int, str]) -> Any:
    """The same lines without quotes; null for rejected lines.

    Args:
        lines: `[n]`.
        is_quoted: Which of them have quotes, `[n]`.
        first: Number of the first line.
        rejected: Receives the numbers of lines with misplaced quotes.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    indices = np.flatnonzero(is_quoted.to_numpy(zero_copy_only=False)).tolist()
    plain: list[bytes | None] = []
    for index, line in zip(indices, lines.filter(is_quoted).to_pylist(), strict=True):
        try:
            values = _values(line)
        except csv.Error:
            rejected[first + index] = "a quote is not closed, or is misplaced"
            plain.append(None)
        else:
            joined = ",".join(value.replace(",", _COMMA_INSIDE) for value in values)
            plain.append(joined.encode(_ENCODING))
    return pc.replace_with_mask(lines, is_quoted, pa.array(plain, pa.binary()))
