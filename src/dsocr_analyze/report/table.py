"""Numbers, prose and tables for readers. Only these strings are rounded."""

import csv
import io
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from dsocr_analyze.escaping import as_markdown, visible

_GAP: Final = "  "

_COMFORTABLE: Final = 20
"""Text stays this wide while optional columns can go."""

_WHOLE_WORD: Final = 16
"""Words up to this width, such as FLOPs/byte, are not broken."""

_UNLIMITED: Final = 10**6

_FIGURE: Final = re.compile(r"-?\Z|(?=.{1,30}(?:\n.{,30})*\Z)[~?<(+-]*\d")
"""A cell that is empty or one or two numbers, not prose."""

_NUMBER: Final = re.compile(r"[(\[~?+<>=-]*\d(?:[\d.,]*\d)?\Z")

_AFTER_SEPARATOR: Final = re.compile(
    r"(?<=[./\\])(?!(?<=\d[./\\])\d)(?!(?<![\w*\])}].)\d)(?=[^\s./\\])"
)
"""Where a path may be broken, but no number."""

_STEPS: Final = ((10**24, "Y"), (10**21, "Z"), (10**18, "E"), (10**15, "P"), (10**12, "T"),
                 (10**9, "G"), (10**6, "M"), (10**3, "k"))  # fmt: skip


# --- numbers -----------------------------------------------------------------------------------


def scaled(count: float, unit: str = "") -> str:
    """Four digits, a decimal prefix and a unit: 4568380069376 is '4.568 T'."""
    for index, (step, prefix) in enumerate(_STEPS):
        if abs(count) >= step:
            value = count / step
            # Four digits, even after rounding up: 1.234, 12.34, 123.4, 1234.
            digits = f"{value:#.4g}".removesuffix(".") if abs(value) < 9999.5 else f"{value:.0f}"
            if digits == "1000" and index:
                digits, prefix = "1.000", _STEPS[index - 1][1]
            return f"{digits} {prefix}{unit}"
    return f"{count:.4g} {unit}".rstrip()


bytes_text = partial(scaled, unit="B")
"""Bytes, as in '6.672 GB'."""

flops_text = partial(scaled, unit="FLOPs")
"""FLOPs, as in '4.568 TFLOPs'."""

exact = "{:,}".format
"""All digits, grouped by three."""


def share_text(share: float) -> str:
    """A share of a count, with two decimals: '1,234.50'."""
    return f"{share:,.2f}".removesuffix(".00")


def ratio_text(ratio: float | None) -> str:
    """Four significant digits: '0.9034', '104.1'; a dash for None."""
    if ratio is None:
        return "-"
    return f"{ratio:#.4g}".removesuffix(".") if ratio < 999.95 else f"{ratio:,.0f}"


def percent_text(share: float) -> str:
    """A share in percent, to a tenth; what is smaller is not shown as zero."""
    return "<0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


def price_text(price: float | None) -> str:
    """Money: '1,234.50', '0.0456'; a dash for None."""
    if price is None:
        return "-"
    return f"{price:,.2f}" if price >= 1 else f"{price:#.3g}"


def seconds_text(seconds: float | None) -> str:
    """Three digits and a unit: 0.0132 is '13.2 ms'; a dash for None."""
    if seconds is None:
        return "-"
    value, unit = (
        (seconds, "s") if seconds >= 1
        else (seconds / 1e-3, "ms") if seconds >= 1e-3
        else (seconds * 1e6, "us")
    )  # fmt: skip
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f} {unit}"


def hours_text(hours: float) -> str:
    """Three digits of hours, or of what is less: '37.8 h', '16.7 s'."""
    return f"{three_digits(hours)} h" if hours >= 1 else seconds_text(3600 * hours)


def rate_text(rate: float) -> str:
    """A throughput with three digits or more: '0.0745', '12.3', '1,234'."""
    return f"{rate:#.3g}".removesuffix(".") if rate < 999.5 else f"{rate:,.0f}"


def three_digits(value: float) -> str:
    """Three significant digits, or two of what is below 0.1; all whole ones."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{3 if value >= 0.1 else 2}g}"


def counted(count: int, noun: str) -> str:
    """A count and its noun, as in '1 page' and '16 pages'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


# --- tables ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A titled table; its first `label_columns` columns label the rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    label_columns: int = 1
    emphasized_rows: int = 0
    """How many rows at the end are sums."""
    optional: tuple[str, ...] = ()
    """What a narrow terminal leaves out, in this order."""

    def is_numeric(self, column: int) -> bool:
        """Whether a column's cells are numbers: right-aligned, never wrapped."""
        cells = map(itemgetter(column), self.rows)
        return column >= self.label_columns and all(map(_FIGURE.match, cells))


class Line(NamedTuple):
    """A line for a terminal; bold for a title or a sum."""

    text: str
    is_bold: bool = False


# --- prose -------------------------------------------------------------------------------------


def wrap(text: str, width: int, *, indent: str = "") -> list[str]:
    """Lines of at most `width` columns; within a paragraph they start with `indent`.

    They break at spaces, or after separators in paths, never within a number or before its unit.
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

    A number is left out whole or not at all.
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
    """Columns on a terminal: two per wide character, none per combining one."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def _pieces(text: str, width: int) -> Iterator[str]:
    """Unbreakable pieces with their spaces; only numbers exceed `width`."""
    groups: list[list[str]] = []
    last = ""
    for word in re.findall(r"^\s+\S+\s*|\S+\s*", text):
        is_measured = word.strip() == "x" or _NUMBER.match(last)
        # Two numbers stay together: 2 x 3, 5.5 / 17, 1.0 to 1.2.
        if groups and (last in ("x", "/", "to") if word[0].isdigit() else is_measured):
            groups[-1].append(word)
        else:
            groups.append([word])
        last = word.strip()
    for group in groups:
        whole = "".join(group)
        if len(group) > 1 and _columns_of(whole.rstrip()) <= width:
            yield whole
        else:
            for word in group:
                yield from _parts(word, width)


def _parts(word: str, width: int) -> Iterator[str]:
    is_short = _columns_of(word.rstrip()) <= min(_WHOLE_WORD, width)
    for part in [word] if is_short else _AFTER_SEPARATOR.split(word):
        rest = part
        while _columns_of(rest.rstrip()) > width and (cut := _cut(rest, width)):
            yield rest[:cut]
            rest = rest[cut:]
        yield rest


def _cut(word: str, width: int) -> int:
    """How many characters fit without cutting a number; perhaps none."""
    fits = (n for n in range(len(word), -1, -1) if _columns_of(word[:n]) <= width)
    return next(n for n in fits if not re.fullmatch("[0-9.,]{2}", word[n - 1 : n + 1]))


# --- layout ------------------------------------------------------------------------------------


def table_lines(table: Table, width: int) -> Iterator[Line]:
    """Title, table, and which columns are left out for lack of width."""
    lines, left_out = lay_out(table, width)
    for text in wrap(table.title, width):
        yield Line(visible(text), is_bold=True)
    for line in lines:
        yield line._replace(text=visible(line.text))
    if left_out:
        said = f"left out at {width} columns: {', '.join(left_out)}"
        for text in wrap(f"{said}; a wider terminal, Markdown and JSON have them", width):
            yield Line(visible(text))


class _Column(NamedTuple):
    """A column and widths that matter to it."""

    texts: Sequence[str]
    is_numeric: bool  # right-aligned and never wrapped
    natural: int  # nothing is wrapped
    least: int  # below it, a word would be broken
    comfortable: int  # below it, other columns are left out first


def lay_out(table: Table, width: int) -> tuple[list[Line], Sequence[str]]:
    """Lines from the header down, and names of columns left out.

    Text is wrapped, then optional columns are left out; a table that still doesn't fit is split
    into parts, each with the row labels.
    """
    columns = list(map(partial(_column, table), range(len(table.columns))))
    optional = tuple(filter(table.columns.__contains__, table.optional))
    for count in range(len(optional) + 1):
        chosen = [column for column in columns if column.texts[0] not in optional[:count]]
        if widths := _fitting(chosen, width):
            return [*_lines(table, chosen, widths)], optional[:count]
    lines: list[Line] = []
    head, rest = columns[: table.label_columns], columns[table.label_columns :]
    while rest or not lines:
        count = max(len(rest), 1)
        while not (widths := _fitting([*head, *rest[:count]], width)) and count > 1:
            count -= 1
        part = [*head, *rest[:count]]
        lines += [Line("")] if lines else []
        lines += _lines(table, part, widths or _forced(part, width))
        rest = rest[count:]
    return lines, ()


def _column(table: Table, index: int) -> _Column:
    is_numeric = table.is_numeric(index)
    header, *cells = map(itemgetter(index), (table.columns, *table.rows))
    lines = "\n".join(cells).split("\n")
    whole = max(map(_columns_of, lines))
    least = whole if is_numeric else 0
    for text in [header] if is_numeric else [header, *lines]:
        for piece in _pieces(text, _UNLIMITED):
            least = max(least, _columns_of(piece.rstrip()))
    natural = max(whole, _columns_of(header))
    comfortable = least if is_numeric else max(least, min(natural, _COMFORTABLE))
    return _Column([header, *cells], is_numeric, natural, least, comfortable)


def _fitting(columns: Sequence[_Column], width: int) -> list[int] | None:
    """Narrows the widest columns first; None if no comfortable widths fit."""
    room = width - len(_GAP) * (len(columns) - 1)
    for cap in range(min(room, max(map(attrgetter("natural"), columns))), -1, -1):
        widths = [max(each.comfortable, min(each.natural, cap)) for each in columns]
        if sum(widths) <= room:
            return widths
    return None


def _forced(columns: Sequence[_Column], width: int) -> list[int]:
    """Numbers get what they need, and text, broken in words, shares the rest."""
    if widths := _fitting([each._replace(comfortable=each.least) for each in columns], width):
        return widths
    numbers = [column.least for column in columns if column.is_numeric]
    room = width - len(_GAP) * (len(columns) - 1) - sum(numbers)
    share = max(room // max(len(columns) - len(numbers), 1), 1)
    return [column.least if column.is_numeric else min(column.least, share) for column in columns]


def _lines(table: Table, columns: Sequence[_Column], widths: Sequence[int]) -> Iterator[Line]:
    for row in range(1 + len(table.rows)):
        cells = []
        for column, width in zip(columns, widths, strict=True):
            text = column.texts[row]
            is_whole = row and column.is_numeric
            cells.append(text.split("\n") if is_whole else wrap(text, width))
        for texts in itertools.zip_longest(*cells, fillvalue=""):
            aligned = []
            for text, column, width in zip(texts, columns, widths, strict=True):
                characters = width + len(text) - _columns_of(text)
                aligned.append((text.rjust if column.is_numeric else text.ljust)(characters))
            is_sum = row > len(table.rows) - table.emphasized_rows
            yield Line(_GAP.join(aligned).rstrip(), is_sum)
        if row == 0:
            yield Line("─" * (sum(widths) + len(_GAP) * (len(widths) - 1)))


# --- CSV and LaTeX -----------------------------------------------------------------------------


_FORMULA: Final = re.compile(r"[=+@\t]|-(?![\d.]|\Z)")
_LATEX: Final = {
    **{each: f"\\{each}" for each in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
}  # fmt: skip


def csv_page(tables: Iterable[Table]) -> str:
    """Tables as one of comma-separated values, with their cells as they are shown.

    Of several, each row begins with the title of its own, and has the columns of all.
    """
    found = [*tables]
    # A table may have several columns of a name.
    named = [[(name, each.columns[:i].count(name)) for i, name in enumerate(each.columns)]
             for each in found]  # fmt: skip
    columns = dict.fromkeys(itertools.chain(*named))
    rows = [["table", *(name for name, _ in columns)]]
    for table, names in zip(found, named, strict=True):
        cells = (dict(zip(names, row, strict=True)) for row in table.rows)
        rows += [[table.title, *(each.get(name, "") for name in columns)] for each in cells]
    shown = rows if len(found) > 1 else [row[1:] for row in rows]
    return csv_text([map(_csv_cell, row) for row in shown])


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows of comma-separated values; None is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _csv_cell(cell: str) -> str:
    text = visible(cell.replace("\n", " "))
    return f"'{text}" if _FORMULA.match(text) else text


def latex_page(tables: Iterable[Table]) -> str:
    """Tables in LaTeX without a package, each below its title as a comment."""
    return "\n".join(map(_latex_table, tables))


def _latex_table(table: Table) -> str:
    sides = "".join("r" if table.is_numeric(i) else "l" for i in range(len(table.columns)))
    rows = [f"{' & '.join(map(_latex_cell, row))} \\\\" for row in (table.columns, *table.rows)]
    lines = [f"% {visible(table.title)}", rf"\begin{{tabular}}{{{sides}}}", r"\hline", rows[0],
             r"\hline", *rows[1:], r"\hline", r"\end{tabular}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def _latex_cell(cell: str) -> str:
    return "".join(_LATEX.get(each, each) for each in visible(cell.replace("\n", " ")))


# --- Markdown ----------------------------------------------------------------------------------


def markdown_page(
    opening: str, tables: Iterable[Table], lists: Mapping[str, Iterable[str]] | None = None
) -> str:
    """A command's output as Markdown: lines, tables, and lists that aren't empty."""
    parts = ["\\\n".join(map(as_markdown, opening.splitlines())), *map(titled, tables)]
    for title, lines in (lists or {}).items():
        items = markdown_list(map(as_markdown, lines))
        parts += [f"## {title}", items] if items else []
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_list(items: Iterable[str]) -> str:
    """A list in Markdown."""
    return "\n".join(map("- {}".format, items))


def titled(table: Table) -> str:
    """A table below its title."""
    return f"## {as_markdown(table.title)}\n\n{markdown_table(table)}"


def markdown_table(table: Table) -> str:
    """A table in GitHub's Markdown."""
    lines = [" | ".join(map(markdown_cell, cells)) for cells in (table.columns, *table.rows)]
    rule = ["---:" if table.is_numeric(i) else "---" for i in range(len(table.columns))]
    lines.insert(1, " | ".join(rule))
    return "\n".join(map("| {} |".format, lines))


def markdown_cell(text: str) -> str:
    """A cell of a Markdown table, perhaps of several lines."""
    return "<br>".join(map(partial(as_markdown, is_cell=True), text.split("\n")))
