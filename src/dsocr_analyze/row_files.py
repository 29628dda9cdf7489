"""CSV and Parquet files of any `RowKind`, opened by `open_rows` and read in batches."""

import codecs
import csv
import enum
import importlib.abc
import itertools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as types
from numpy.typing import NDArray

from dsocr_analyze.errors import WorkloadError, near_to
from dsocr_analyze.input_files import opened

# What reads a file imports pyarrow's kernels: a plan without one takes half as long.


class _WithoutPandas(importlib.abc.MetaPathFinder):
    """Finds no pandas."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def spare_pandas() -> None:
    """Keeps pyarrow's first array from importing pandas where it is installed, for 0.2 s.

    No command needs it; `to_pandas` looks for it again.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


# --- whole numbers from a column -----------------------------------------------------------------


class Reason(enum.IntEnum):
    """Why a value is not usable."""

    MISSING = 1
    NOT_WHOLE = 2
    OUT_OF_RANGE = 3


_WHOLE: Final = r"^\s*\+?0*(?P<digits>[0-9]{1,15})(?:\.0*)?\s*$"
_BLANK: Final = r"^\s*$"
_SIGNED: Final = r"^\s*[+-]?[0-9]+(?:\.0*)?\s*$"


def whole_numbers(name: str, column: Any, most: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """An Arrow column of numbers or text as int64 from 1 to `most`.

    Returns:
        The numbers, `[n]`, 1 for unusable ones; and the `Reason` of these, `[n]`, 0 for none.

    Raises:
        WorkloadError: The column has a non-numeric type.
    """
    from pyarrow import compute as pc

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    missing, is_whole = np.zeros(len(column), bool), np.ones(len(column), bool)
    # Pandas writes integers as 1240.0, and NaN for a missing value.
    if types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind):
        inexact = column.cast(pa.float64(), safe=False)  # beyond any valid value
        numbers = inexact.fill_null(np.nan).to_numpy(zero_copy_only=False)
        missing, is_whole = np.isnan(numbers), np.floor(numbers) == numbers
    elif types.is_decimal(kind) or any(holds_text(kind) for holds_text in _TEXTS):
        text = column.cast(pa.string()) if types.is_decimal(kind) else column
        text = text.cast(pa.binary())  # kernels for strings would fail on invalid UTF-8
        digits = pc.struct_field(pc.extract_regex(text, _WHOLE), "digits")
        numbers = digits.cast(pa.string()).cast(pa.int64()).fill_null(0).to_numpy()
        if digits.null_count:
            missing, is_whole = (
                pc.match_substring_regex(text, pattern).fill_null(True).to_numpy(False)
                for pattern in (_BLANK, _SIGNED)
            )
    else:
        raise WorkloadError(f"column {name!r} holds {kind}; give whole numbers")
    fitting = (numbers >= 1) & (numbers <= most)
    reasons = np.where(fitting, np.uint8(0), np.uint8(Reason.OUT_OF_RANGE))
    reasons[~is_whole] = Reason.NOT_WHOLE
    reasons[missing] = Reason.MISSING
    return np.where(reasons == 0, numbers, 1).astype(np.int64), reasons


_TEXTS: Final = (
    types.is_string,
    types.is_large_string,
    types.is_string_view,
    types.is_binary,
    types.is_large_binary,
)


def problem_text(name: str, reason: int, most: int, value: object = None) -> str:
    """Why a column's value, named if given, is not usable."""
    if reason == Reason.MISSING:
        return f"{name} is missing"
    shown = "" if value is None else f" {_shortened(value)}"
    wrong = "a whole number" if reason == Reason.NOT_WHOLE else f"from 1 to {most}"
    return f"{name}{shown} is not {wrong}"


def _shortened(value: object) -> str:
    text = repr(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
    return text if len(text) <= 40 else text[:37] + "..."


# --- kinds of rows -------------------------------------------------------------------------------


_LONGEST_REASON: Final = 160
_NAMED_COLUMNS: Final = 8


@dataclass(frozen=True)
class RowKind:
    """What the rows of a file represent."""

    what: str
    """Name of such a file, without an article: `list of pages`."""
    right: str
    """What to give instead, for errors."""
    columns: Callable[[str, list[str]], tuple[str, ...]]
    """Columns to read, by the file's name and all columns; may raise WorkloadError."""
    known: tuple[str, ...]
    """All columns that it may have."""
    row: str
    """What a row is, for a warning about unread columns."""
    error: type[WorkloadError] = WorkloadError
    """Of a missing or unreadable file."""

    def warnings(self, path: Path, names: list[str], read: Collection[str]) -> tuple[str, ...]:
        """A warning that names columns that are not read, if any."""
        unread = list(dict.fromkeys(name for name in names if name not in read))
        if not unread:
            return ()
        meant = _meant_by(unread, [each for each in self.known if each not in names])
        return (
            f"columns of {str(path)!r} that are not read: {_columns_text(unread)}; {meant}each row"
            f" counts as {self.row}",
        )

    def unreadable(self, path: Path, reason: str) -> WorkloadError:
        """The error for an unreadable file, as one printable line."""
        text = " ".join(reason.replace(str(path), "").split())
        text = "".join(character if character.isprintable() else "?" for character in text)
        if len(text) > _LONGEST_REASON:
            text = text[:_LONGEST_REASON] + "..."
        return self.error(f"cannot read {str(path)!r} as a {self.what}: {text}; {self.right}")


@dataclass(frozen=True)
class RawRows:
    """Some rows as they are in the file: n, of the wanted columns."""

    columns: pa.RecordBatch
    numbers: NDArray[np.int64]
    """Each row's, `[n]`, from 1, without header and blank lines."""
    rejected: dict[int, str] = field(default_factory=dict)
    """Why a line is no row, by row number."""

    def value(self, column: int | str, row: int) -> Any:
        """The value of one cell, for a message."""
        cell = self.columns.column(column)[row]
        try:
            return cell.as_py()
        except UnicodeDecodeError:
            return f"({cell.type} that is not UTF-8)"


@dataclass(frozen=True)
class RowSource:
    """Rows that are read once, in order, in batches."""

    batches: Iterator[RawRows]
    warnings: tuple[str, ...] = ()
    share: Callable[[], float | None] = lambda: None
    """Of the rows, what has been read; None where that is unknown."""


def wanted_columns(
    what: str, names: list[str], known: tuple[str, ...], *, needed: Collection[str], right: str
) -> tuple[str, ...]:
    """The known columns that a file has; WorkloadError if one is there twice, or needed and not."""
    for name in known:
        count = names.count(name)
        if count > 1:
            raise WorkloadError(f"{what} has {count} columns {name!r}; give one")
        if not count and name in needed:
            meant = _meant_columns(names, [each for each in known if each not in names])
            raise WorkloadError(
                f"{what} has no column {name!r} (it has {_columns_text(names)}); {meant}{right}"
            )
    return tuple(name for name in known if name in names)


def _columns_text(names: list[str]) -> str:
    """The first names of columns, for a message."""
    shown = ", ".join(map(_shortened, names[:_NAMED_COLUMNS]))
    more = len(names) - _NAMED_COLUMNS
    return f"{shown or 'none'} and {more} more" if more > 0 else shown or "none"


def _meant_columns(names: Iterable[str], lacking: Collection[str]) -> str:
    """`did you mean A by 'B'? ` for the columns of a file that are close to lacking ones."""
    listed = [*names]
    for other in ";\t|" if len(listed) == 1 else "":
        if other in listed[0]:
            return f"separate columns by commas, not by {other!r}; "
    return _meant_by(listed, lacking)


def _meant_by(names: Iterable[str], lacking: Collection[str]) -> str:
    near = {name: near_to(name, lacking, most=1) for name in names}
    pairs = [f"{found[0]} by {_shortened(name)}" for name, found in near.items() if found]
    return f"did you mean {' and '.join(pairs[:_NAMED_COLUMNS])}? " if pairs else ""


# --- CSV -----------------------------------------------------------------------------------------


_BLOCK_BYTES: Final = 4 << 20
_LONGEST_LINE_BYTES: Final = 64 << 20
_COMPRESSIONS: Final = {".bz2": "bz2", ".gz": "gzip", ".lz4": "lz4", ".zst": "zstd"}
_ENCODING: Final = "latin-1"
"""Every byte is valid in it; numbers are ASCII anyway."""

_MOST_BLANK_LINES: Final = 10_000_000
"""A hundred kilobytes of compressed blank lines could take minutes."""

_COMMA_INSIDE: Final = "\x1f"
"""Replaces a comma in a quoted value, which is no number anyway."""


def _open_csv(path: Path, kind: RowKind) -> RowSource:
    """The name tells whether it is compressed."""
    try:
        file = pa.OSFile(os.fspath(path))
    except OSError as error:
        raise kind.unreadable(path, str(error)) from error
    blocks = _line_blocks(file, path, kind)
    lines = next(blocks, None)
    if lines is None:
        raise kind.unreadable(path, "it is empty")
    try:
        names = [name.strip() for name in _values(lines[0].as_py())]
    except csv.Error as error:
        raise kind.unreadable(path, f"its first line: {error}") from error
    columns = kind.columns(repr(str(path)), names)
    positions = {column: names.index(column) for column in columns}

    def batches() -> Iterator[RawRows]:
        first = 1
        for block in itertools.chain([lines[1:]], blocks):
            yield _batch(block, first, len(names), positions)
            first += len(block)

    size = file.size()
    return RowSource(
        batches(), kind.warnings(path, names, columns), lambda: file.tell() / max(1, size)
    )


def _line_blocks(file: Any, path: Path, kind: RowKind) -> Iterator[Any]:
    """Non-blank lines as Arrow arrays of bytes, `[n]`, none empty."""
    from pyarrow import compute as pc

    blank = 0
    try:
        for text in _whole_lines(file, path, kind):
            lines = pa.array([text.replace(b"\r\n", b"\n").removesuffix(b"\r")], pa.binary())
            lines = pc.split_pattern(lines, "\n").values
            is_blank = pc.match_substring_regex(lines, _BLANK)
            blank += pc.sum(is_blank).as_py() or 0
            if blank > _MOST_BLANK_LINES:
                raise kind.unreadable(path, f"it has more than {_MOST_BLANK_LINES:,} blank lines")
            if blank:
                lines = lines.filter(pc.invert(is_blank))
            if len(lines):
                yield lines
    except (OSError, pa.ArrowException) as error:
        raise kind.unreadable(path, str(error)) from error


def _whole_lines(file: Any, path: Path, kind: RowKind) -> Iterator[bytes]:
    """Decompressed blocks of whole lines, without their last newline."""
    with file, pa.input_stream(file, compression=_COMPRESSIONS.get(path.suffix)) as stream:
        rest = stream.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
        while block := stream.read(_BLOCK_BYTES):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if len(rest) > _LONGEST_LINE_BYTES:
                raise kind.unreadable(path, f"a line is longer than {_LONGEST_LINE_BYTES} bytes")
            if newline:
                yield whole
        if rest:
            yield rest


def _values(line: bytes) -> list[str]:
    """The values of one line; raises csv.Error for an unclosed quote."""
    return next(csv.reader([line.decode(_ENCODING)], strict=True))


def _batch(lines: Any, first: int, expected: int, positions: dict[str, int]) -> RawRows:
    from pyarrow import compute as pc

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
    """Lines `[n]`; null, and `rejected`, where quotes are misplaced."""
    from pyarrow import compute as pc

    indices = np.flatnonzero(is_quoted.to_numpy(zero_copy_only=False)).tolist()
    plain: list[bytes | None] = []
    for index, line in zip(indices, lines.filter(is_quoted).to_pylist(), strict=True):
        try:
            joined = ",".join(value.replace(",", _COMMA_INSIDE) for value in _values(line))
            plain.append(joined.encode(_ENCODING))
        except csv.Error:
            rejected[first + index] = "a quote is not closed, or is misplaced"
            plain.append(None)
    return pc.replace_with_mask(lines, is_quoted, pa.array(plain, pa.binary()))


# --- Parquet -------------------------------------------------------------------------------------


_BATCH_ROWS: Final = 131_072

_DAMAGE: Final = (OSError, UnicodeDecodeError, pa.ArrowException)
"""What pyarrow raises on a damaged file."""


def _open_parquet(path: Path, kind: RowKind) -> RowSource:
    from pyarrow import parquet as pq

    try:
        file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        names = list(file.schema_arrow.names)
    except _DAMAGE as error:
        raise kind.unreadable(path, str(error)) from error
    columns = kind.columns(repr(str(path)), names)

    rows_read = 0

    def batches() -> Iterator[RawRows]:
        nonlocal rows_read
        try:
            for rows in file.iter_batches(_BATCH_ROWS, columns=list(columns), use_threads=False):
                first, rows_read = rows_read + 1, rows_read + rows.num_rows
                yield RawRows(rows, np.arange(first, first + rows.num_rows))
            if not file.metadata.num_rows:  # what is written from no rows has columns all the same
                schema = pa.schema([file.schema_arrow.field(name) for name in columns])
                yield RawRows(pa.RecordBatch.from_pylist([], schema), np.arange(0))
        except _DAMAGE as error:
            raise kind.unreadable(path, str(error)) from error
        finally:
            file.close()

    total = max(1, file.metadata.num_rows)
    return RowSource(batches(), kind.warnings(path, names, columns), lambda: rows_read / total)


# --- opening -------------------------------------------------------------------------------------


_PARQUET_MAGIC: Final = b"PAR1"
_UNREAD: Final = {
    codecs.BOM_UTF16_LE: "it is in UTF-16; save it in UTF-8",
    codecs.BOM_UTF16_BE: "it is in UTF-16; save it in UTF-8",
    b"{": "it is JSON, which is not read",
    b"[": "it is JSON, which is not read",
}
"""How files begin that are taken for CSV, and what is said of them."""


def open_rows(path: Path, kind: RowKind) -> RowSource:
    """Opens a file of rows, Parquet by its content; only a header is read yet.

    Raises `kind.error` if it is missing or unreadable, WorkloadError for wrong columns.
    """
    try:
        with opened(path) as file:
            start = file.read(len(_PARQUET_MAGIC))
    except FileNotFoundError as error:
        raise kind.error(f"no {kind.what} {str(path)!r}; {kind.right}") from error
    except (OSError, ValueError) as error:
        raise kind.unreadable(path, getattr(error, "strerror", None) or str(error)) from error
    if start == _PARQUET_MAGIC:
        return _open_parquet(path, kind)
    if path.suffix.lower() in (".parquet", ".pq"):
        raise kind.error(f"{str(path)!r} is not a Parquet file; {kind.right}")
    for begins, said in _UNREAD.items():
        if start.startswith(begins):
            raise kind.unreadable(path, said)
    return _open_csv(path, kind)
