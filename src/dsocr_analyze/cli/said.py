"""What most commands say to a reader: an opening, tables, and lines below them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dsocr_analyze.report.table import Line, Table, markdown_page, table_lines, wrap

__all__ = ["Lines", "Said", "assumptions"]


class Lines(NamedTuple):
    """Lines below the tables, and what stands before each on a terminal."""

    title: str
    lines: Sequence[str]
    before: str = "Note: "
    indent: str = "  "


def assumptions(sentences: Iterable[str]) -> Lines:
    """What predicted seconds assume."""
    return Lines("Assumptions", [*sentences], "Assumed: ")


class Said(NamedTuple):
    """What a command says to a reader.

    Attributes:
        below: Lines below the tables.
        written: Files that were written, which a terminal names at the end.
        csv: Returns the same as comma-separated values, where that is a format.
        html: Returns the HTML page, where there is one.
    """

    opening: str
    tables: Sequence[Table | None]
    below: Sequence[Lines] = ()
    written: Sequence[Path | str | None] = ()
    csv: Callable[[], str] = str
    html: Callable[[], str] = str

    def lines(self, width: int) -> Iterator[Line]:
        """Lines for a terminal of that many columns."""
        yield from map(Line, wrap(self.opening, width) if self.opening else ())
        for table in filter(None, self.tables):
            yield from table_lines(table, width)
            yield Line("")
        for each in self.below:
            for line in each.lines:
                yield from map(Line, wrap(f"{each.before}{line}", width, indent=each.indent))
        for path in filter(None, self.written):
            yield Line(f"wrote {path}")

    def markdown(self) -> str:
        """The same in Markdown."""
        lists = {each.title: each.lines for each in self.below}
        return markdown_page(self.opening, filter(None, self.tables), lists)
