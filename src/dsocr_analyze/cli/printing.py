"""The one way out: what a command found, on stdout and in files, in the format that was chosen."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from dsocr_analyze.output_files import write_files

if TYPE_CHECKING:
    import typer

    from dsocr_analyze.report.table import Line, Table

__all__ = [
    "Lines",
    "Readable",
    "Said",
    "assumptions",
    "emit",
    "print_table",
    "rendered",
    "terminal_width",
]

WITHOUT_TERMINAL: Final = 100
"""Width of piped output in columns, unless COLUMNS sets another."""

LEAST_WIDTH: Final = 40

_FITTED: Final = ("table", "text")
"""Formats of what is laid out for the terminal."""


class Readable(Protocol):
    """What a command says to a reader: besides `lines`, a method named after every other format."""

    def lines(self, width: int) -> Iterable[Line]:
        """Lines for a terminal of that many columns."""


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
    """What most commands say to a reader.

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

    def lines(self, width: int) -> Iterator[Line]:
        """Lines for a terminal."""
        from dsocr_analyze.report.table import Line, table_lines, wrap

        yield from map(Line, wrap(self.opening, width) if self.opening else ())
        for table in filter(None, self.tables):
            yield from (*table_lines(table, width), Line(""))
        for each in self.below:
            for line in each.lines:
                yield from map(Line, wrap(f"{each.before}{line}", width, indent=each.indent))
        yield from (Line(f"wrote {path}") for path in filter(None, self.written))

    def markdown(self) -> str:
        """The same in Markdown."""
        from dsocr_analyze.report.table import markdown_page

        lists = {each.title: each.lines for each in self.below}
        return markdown_page(self.opening, filter(None, self.tables), lists)

    def table(self) -> str:
        """What a file has instead of lines for a terminal."""
        return self.markdown()


def assumptions(sentences: Iterable[str]) -> Lines:
    """What predicted seconds assume."""
    return Lines("Assumptions", list(sentences), "Assumed: ")


def emit(
    output_format: str | None,
    document: Callable[[], object],
    said: Callable[[], Readable],
    *,
    context: typer.Context | None = None,
    files: Mapping[Path, str] | None = None,
) -> None:
    """Write what a command found to files, all or none of them, and print it.

    Args:
        output_format: The format that is printed; None prints nothing.
        document: Returns the typed document.
        said: Returns what a reader sees.
        context: The command's context, which is told when files begin to be written.
        files: The format of every file.
    """
    if context is not None and files:
        formats = dict.fromkeys(files.values())
        texts = {each: rendered(each, document, said) for each in formats}
        context.obj.begin_writing()
        write_files({path: texts[each] for path, each in files.items()})
    if output_format in _FITTED:
        _print_lines(said().lines(terminal_width()))
    elif output_format is not None:
        sys.stdout.write(rendered(output_format, document, said))


def rendered(
    output_format: str, document: Callable[[], object], said: Callable[[], Readable]
) -> str:
    """What a file has in some format."""
    if output_format == "json":
        from dsocr_analyze.report.json_text import dump_json

        return dump_json(document())
    render: Callable[[], str] = getattr(said(), output_format)
    return render()


def terminal_width() -> int:
    """Width of the terminal in columns, or COLUMNS if it is set."""
    return max(shutil.get_terminal_size((WITHOUT_TERMINAL, 24)).columns, LEAST_WIDTH)


def print_table(table: Table) -> None:
    """Print one table and an empty line."""
    _print_lines(Said("", [table]).lines(terminal_width()))


def _print_lines(lines: Iterable[Line]) -> None:
    for line in lines:
        if line.is_bold:
            from rich.console import Console
            from rich.text import Text

            console = Console(file=getattr(sys.stdout, "styled", None))
            console.print(Text(line.text, style="bold"), soft_wrap=True)
        else:
            print(line.text)
