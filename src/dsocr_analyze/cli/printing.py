"""The one way out: what a command found, as JSON, Markdown or text as wide as the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dsocr_analyze.escaping import visible

if TYPE_CHECKING:
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.report.layout import Line
    from dsocr_analyze.report.tables import Table

__all__ = [
    "Lines",
    "Said",
    "assumptions",
    "emit",
    "print_report",
    "print_table",
    "rendered",
    "terminal_width",
]

WITHOUT_TERMINAL: Final = 100
"""Width of piped output in columns, unless COLUMNS sets another."""

LEAST_WIDTH: Final = 40


class Lines(NamedTuple):
    """Lines below the tables.

    Attributes:
        title: Title of their list in Markdown.
        lines: The lines.
        before: What stands before each on a terminal.
        indent: What a line goes on with on a terminal.
    """

    title: str
    lines: Sequence[str]
    before: str = "Note: "
    indent: str = "  "


class Said(NamedTuple):
    """What a command says to a reader.

    Attributes:
        opening: The first lines.
        tables: Tables.
        below: Lines below them.
        written: Files that were written, which a terminal names at the end.
    """

    opening: str
    tables: Iterable[Table | None]
    below: Sequence[Lines] = ()
    written: Sequence[Path | str | None] = ()


def assumptions(sentences: Iterable[str]) -> Lines:
    """What predicted seconds assume."""
    return Lines("Assumptions", list(sentences), "Assumed: ")


def emit(output_format: str, document: Callable[[], object], said: Callable[[], Said]) -> None:
    """Print what a command found.

    Args:
        output_format: `json`, `markdown`, or another for text.
        document: Returns the typed document.
        said: Returns what a reader sees.
    """
    if output_format in ("json", "markdown"):
        sys.stdout.write(rendered(output_format, document, said))
        return
    opening, tables, below, written = said()
    if opening:
        _print_text(opening)
    for table in filter(None, tables):
        print_table(table)
    for each in below:
        for line in each.lines:
            _print_text(f"{each.before}{line}", indent=each.indent)
    for path in filter(None, written):
        print(f"wrote {path}")


def rendered(output_format: str, document: Callable[[], object], said: Callable[[], Said]) -> str:
    """What `emit` prints as JSON, or as Markdown for any other format."""
    if output_format == "json":
        from dsocr_analyze.report.json_text import dump_json

        return dump_json(document())
    from dsocr_analyze.report.markdown import markdown_page

    opening, tables, below, _ = said()
    lists = {each.title: each.lines for each in below}
    return markdown_page(opening, filter(None, tables), lists)


def terminal_width() -> int:
    """Width of the terminal in columns, or COLUMNS if it is set."""
    return max(shutil.get_terminal_size((WITHOUT_TERMINAL, 24)).columns, LEAST_WIDTH)


def print_report(report: Report, written: Sequence[Path], *, full: bool) -> None:
    """Print what a page costs, and with `full` all tables and notes below it."""
    from dsocr_analyze.report.answer import answer_of
    from dsocr_analyze.report.layout import Line
    from dsocr_analyze.report.terminal import report_lines

    _print_lines(map(Line, answer_of(report, written).lines(rest=": --full")))
    if full:
        _print_lines([Line(""), *report_lines(report, terminal_width())])


def print_table(table: Table) -> None:
    """Print one table and an empty line."""
    from dsocr_analyze.report.layout import Line
    from dsocr_analyze.report.terminal import table_lines

    _print_lines([*table_lines(table, terminal_width()), Line("")])


def _print_text(text: str, *, indent: str = "") -> None:
    """Print prose; all lines but the first of each paragraph start with `indent`."""
    from dsocr_analyze.report.layout import wrap

    for line in wrap(text, terminal_width(), indent=indent):
        print(line)


def _print_lines(lines: Iterable[Line]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=getattr(sys.stdout, "styled", None))
    for line in lines:
        text = Text(visible(line.text), style="bold" if line.is_bold else "")
        console.print(text, soft_wrap=True)
