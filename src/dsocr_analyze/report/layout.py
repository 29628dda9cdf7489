"""Tables and prose as lines that fit a terminal; numbers are never broken."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dsocr_analyze.report.table import Table

__all__ = ["Layout", "Line", "lay_out", "shortened", "wrap"]

_GAP: Final = "  "

_COMFORTABLE: Final = 20
"""Text columns don't get narrower than this while optional columns can still be left out."""

_WHOLE_WORD: Final = 16
"""Words up to this width, such as the unit FLOPs/byte, are not broken."""

_UNLIMITED: Final = 10**6

_NUMBER: Final = re.compile(r"[(\[~?+<>=-]*\d(?:[\d.,]*\d)?\Z")
_JOINERS: Final = frozenset({"x", "/", "to"})
"""Words that join two numbers: 2 x 3, 5.5 / 17, 1.0 to 1.2."""

_AFTER_SEPARATOR: Final = re.compile(
    r"(?<=[./\\])(?!(?<=\d[./\\])\d)(?!(?<![\w*\])}].)\d)(?=[^\s./\\])"
)
"""Where a path may be broken: not between two digits, and not within .5."""


class Line(NamedTuple):
    """A line of a table; `is_bold` if it belongs to a sum."""

    text: str
    is_bold: bool = False


@dataclass(frozen=True)
class Layout:
    """A table without its title, laid out for some width.

    Attributes:
        lines: Lines from the header down, without trailing spaces.
        left_out: Names of columns that did not fit.
    """

    lines: tuple[Line, ...]
    left_out: tuple[str, ...] = ()


# --- prose -------------------------------------------------------------------------------------


def wrap(text: str, width: int, *, indent: str = "") -> list[str]:
    """Lines of at most `width` columns; all but the first of each paragraph start with `indent`.

    Lines break at spaces, or after path separators in long words; never within a number or between
    a number and its unit. Only a number wider than `width` makes a line too wide.
    """
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for piece in _pieces(paragraph, width - len(indent)):
            if line.strip() and _columns_of(line) + _columns_of(piece.rstrip()) > width:
                lines.append(line.rstrip())
                line = indent
            line += piece
        lines.append(line.rstrip())
    return lines


def shortened(text: str, width: int) -> str:
    """The text on one line of at most `width` columns, its longest words cut in the middle.

    An ellipsis marks each cut. A number is left out whole or not at all.
    """
    words = text.split(" ")
    while (excess := _columns_of(" ".join(words)) - width) > 0:
        index = max(range(len(words)), key=lambda i: (not _has_number(words[i]), len(words[i])))
        word = words[index]
        kept = max(len(word) - excess - 1, _WHOLE_WORD - 1)
        if _has_number(word) or kept >= len(word) - 1:
            return f"{wrap(text, width - 2)[0]} …"
        words[index] = f"{word[: kept // 2]}…{word[kept // 2 - kept :]}"
    return " ".join(words)


def _has_number(word: str) -> bool:
    return word[:1].isdigit() or _NUMBER.match(word) is not None


def _columns_of(text: str) -> int:
    """Columns a text takes on a terminal: two per wide character, none per combining one."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def _pieces(text: str, width: int) -> Iterator[str]:
    """Unbreakable pieces, spaces included; at most `width` columns each, except for numbers."""
    group: list[str] = []
    for word in re.findall(r"^\s+\S+\s*|\S+\s*", text):
        if group and not _belongs(group, word):
            yield from _whole_or_parts(group, width)
            group = []
        group.append(word)
    yield from _whole_or_parts(group, width)


def _belongs(group: Sequence[str], word: str) -> bool:
    """Whether a word must stay on the same line as those before it."""
    last = group[-1].strip()
    if word[0].isdigit():
        return last in _JOINERS
    return word.strip() == "x" or _NUMBER.match(last) is not None


def _whole_or_parts(group: Sequence[str], width: int) -> Iterator[str]:
    whole = "".join(group)
    if len(group) > 1 and _columns_of(whole.rstrip()) <= width:
        yield whole
        return
    for word in group:
        yield from _parts(word, width)


def _parts(word: str, width: int) -> Iterator[str]:
    """A word, split where it may be broken if it is long."""
    if _columns_of(word.rstrip()) <= min(_WHOLE_WORD, width):
        yield word
        return
    for part in _AFTER_SEPARATOR.split(word):
        rest = part
        while _columns_of(rest.rstrip()) > width and (cut := _cut(rest, width)):
            yield rest[:cut]
            rest = rest[cut:]
        yield rest


def _cut(word: str, width: int) -> int:
    """How many characters of a word fit without cutting a number; 0 if none do."""
    fit = next(n for n in range(len(word), -1, -1) if _columns_of(word[:n]) <= width)
    while fit > 0 and word[fit - 1] in "0123456789.," and word[fit] in "0123456789.,":
        fit -= 1
    return fit


# --- tables ------------------------------------------------------------------------------------


class _Column(NamedTuple):
    """A column before its width is known.

    Attributes:
        header: Its name.
        cells: The cell of each row, one entry per line of the cell.
        is_numeric: Whether it is right-aligned and never wrapped.
        natural: Width at which nothing is wrapped.
        least: Width below which a word would be broken.
    """

    header: str
    cells: tuple[tuple[str, ...], ...]
    is_numeric: bool
    natural: int
    least: int

    @property
    def comfortable(self) -> int:
        """Width down to which it may shrink before columns are left out."""
        return self.least if self.is_numeric else max(self.least, min(self.natural, _COMFORTABLE))


def lay_out(table: Table, width: int) -> Layout:
    """Lay out a table for a width.

    First text is wrapped, then optional columns are left out one by one. If that is not enough
    either, all columns are kept and the table is split into several parts below one another, each
    with the row labels.
    """
    columns = _columns(table)
    optional = [name for name in table.optional if name in table.columns]
    for count in range(len(optional) + 1):
        left_out = tuple(optional[:count])
        chosen = [column for column in columns if column.header not in left_out]
        widths = _fitting(chosen, width, [column.comfortable for column in chosen])
        if widths is not None:
            return Layout(tuple(_lines(table, chosen, widths)), left_out)
    lines: list[Line] = []
    for chosen, widths in _stacked(columns, table.label_columns, width):
        lines += [Line("")] if lines else []
        lines += _lines(table, chosen, widths)
    return Layout(tuple(lines))


def _columns(table: Table) -> list[_Column]:
    found = []
    for index, header in enumerate(table.columns):
        is_numeric = table.is_numeric(index)
        cells = tuple(tuple(row[index].split("\n")) for row in table.rows)
        texts = [line for cell in cells for line in cell]
        wrapped = [header] if is_numeric else [header, *texts]
        least = max(
            (_columns_of(p.rstrip()) for text in wrapped for p in _pieces(text, _UNLIMITED)),
            default=0,
        )
        whole = max(map(_columns_of, texts), default=0)
        least = max(least, whole) if is_numeric else least
        found.append(_Column(header, cells, is_numeric, max(whole, _columns_of(header)), least))
    return found


def _fitting(columns: Sequence[_Column], width: int, least: Sequence[int]) -> list[int] | None:
    """Widths that fit, narrowing the widest columns first; None if even the least don't fit."""
    room = width - len(_GAP) * (len(columns) - 1)
    if sum(least) > room:
        return None
    for cap in range(max((column.natural for column in columns), default=0), -1, -1):
        widths = [
            min(max(column.natural, floor), max(floor, cap))
            for column, floor in zip(columns, least, strict=True)
        ]
        if sum(widths) <= room:
            return widths
    return None


def _stacked(
    columns: Sequence[_Column], labels: int, width: int
) -> Iterator[tuple[list[_Column], list[int]]]:
    """Parts of a table, each with the labels and as many other columns as fit."""
    head, rest = list(columns[:labels]), list(columns[labels:])
    while True:
        for count in range(len(rest), 0, -1):
            chosen = [*head, *rest[:count]]
            floors = [column.comfortable for column in chosen]
            if (widths := _fitting(chosen, width, floors)) is not None:
                break
        else:
            count, chosen = 1, [*head, *rest[:1]]
            widths = _forced(chosen, width)
        yield chosen, widths
        rest = rest[count:]
        if not rest:
            return


def _forced(columns: Sequence[_Column], width: int) -> list[int]:
    """Widths if words have to be broken: numbers get what they need, text shares the rest."""
    widths = _fitting(columns, width, [column.least for column in columns])
    if widths is not None:
        return widths
    text = [column for column in columns if not column.is_numeric]
    room = width - len(_GAP) * (len(columns) - 1)
    room -= sum(column.least for column in columns if column.is_numeric)
    share = max(room // max(len(text), 1), 1)
    return [column.least if column.is_numeric else min(column.least, share) for column in columns]


def _lines(table: Table, columns: Sequence[_Column], widths: Sequence[int]) -> Iterator[Line]:
    header = [wrap(each.header, width) for each, width in zip(columns, widths, strict=True)]
    for text in _side_by_side(header, columns, widths):
        yield Line(text)
    yield Line("─" * (sum(widths) + len(_GAP) * (len(widths) - 1)))
    sums_from = len(table.rows) - table.emphasized_rows
    for index in range(len(table.rows)):
        cells = [
            list(each.cells[index])
            if each.is_numeric
            else wrap("\n".join(each.cells[index]), width)
            for each, width in zip(columns, widths, strict=True)
        ]
        for text in _side_by_side(cells, columns, widths):
            yield Line(text, is_bold=index >= sums_from)


def _side_by_side(
    cells: Sequence[Sequence[str]], columns: Sequence[_Column], widths: Sequence[int]
) -> Iterator[str]:
    """The lines of one row; a cell may have several."""
    for number in range(max(map(len, cells), default=0)):
        texts = [cell[number] if number < len(cell) else "" for cell in cells]
        yield _GAP.join(
            _padded(text, width, is_right=column.is_numeric)
            for text, column, width in zip(texts, columns, widths, strict=True)
        ).rstrip()


def _padded(text: str, width: int, *, is_right: bool) -> str:
    space = " " * (width - _columns_of(text))
    return space + text if is_right else text + space
