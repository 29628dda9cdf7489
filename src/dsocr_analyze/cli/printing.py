"""The one way out: what a command found, on stdout and in files, in the formats that are asked."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import typer

from dsocr_analyze.output_files import write_files
from dsocr_analyze.report.table import Line, Table, markdown_page, table_lines, wrap

if TYPE_CHECKING:
    from dsocr_analyze.report.pictures.picture import Picture

__all__ = [
    "Lines",
    "Readable",
    "Said",
    "assumptions",
    "emit",
    "show",
]

WITHOUT_TERMINAL: Final = 100
"""Width of piped output in columns, unless COLUMNS sets another."""

LEAST_WIDTH: Final = 40


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
        csv: Returns the same as comma-separated values, for a command with that format.
        html: Returns the HTML page, for a command that writes one.
    """

    opening: str
    tables: Iterable[Table | None]
    below: Sequence[Lines] = ()
    written: Sequence[Path | str | None] = ()
    csv: Callable[[], str] = str
    html: Callable[[], str] = str

    def lines(self, width: int) -> Iterator[Line]:
        """Lines for a terminal."""
        yield from map(Line, wrap(self.opening, width) if self.opening else ())
        for table in filter(None, self.tables):
            yield from (*table_lines(table, width), Line(""))
        for each in self.below:
            for line in each.lines:
                yield from map(Line, wrap(f"{each.before}{line}", width, indent=each.indent))
        yield from (Line(f"wrote {path}") for path in filter(None, self.written))

    def markdown(self) -> str:
        """The same in Markdown."""
        lists = {each.title: each.lines for each in self.below}
        return markdown_page(self.opening, filter(None, self.tables), lists)


def assumptions(sentences: Iterable[str]) -> Lines:
    """What predicted seconds assume."""
    return Lines("Assumptions", list(sentences), "Assumed: ")


def emit(
    context: typer.Context,
    document: object,
    said: Callable[[], Readable],
    *,
    files: Mapping[Path | None, str] | None = None,
    instead: Path | None = None,
    picture: Callable[[], Picture] | None = None,
) -> None:
    """Write what a command found to files, all or none of them, and print it.

    Args:
        context: The command's context, whose `--format`, `--json`, `--quiet` and `--plot` are
            answered here.
        document: The typed document.
        said: Returns what a reader sees.
        files: The formats of further files; a path that is None stands for no file.
        instead: A file that takes what would be printed.
        picture: Draws what `--plot` asks for.
    """
    given = context.params
    json_file, printed = given.get("json_file"), given.get("output_format", "text")
    if json_file == "-":
        json_file, printed = None, "json"
    elif given.get("quiet"):
        printed = None
    beside = None if json_file is None else Path(json_file)
    every = {**(files or {}), instead: printed, beside: "json"}
    formats = {path: each for path, each in every.items() if path and each}
    texts = {each: _rendered(each, document, said) for each in {*formats.values()}}
    drawn = picture() if picture and given["plot"] else None
    if formats or drawn:
        context.obj.begin_writing()
        write_files({path: texts[each] for path, each in formats.items()})
    if drawn:
        drawn.save(given["plot"])
    if not instead:
        show(printed, document, said)


def show(output_format: str | None, document: object, said: Callable[[], Readable]) -> None:
    """Print what a command found in a format; nothing if there is none."""
    if output_format in ("table", "text"):  # which are laid out for the terminal
        terminal = shutil.get_terminal_size((WITHOUT_TERMINAL, 24))  # COLUMNS, if it is set
        for line in said().lines(max(terminal.columns, LEAST_WIDTH)):
            if line.is_bold:
                from rich.console import Console
                from rich.text import Text

                console = Console(file=getattr(sys.stdout, "styled", None))
                console.print(Text(line.text, style="bold"), soft_wrap=True)
            else:
                print(line.text)
    elif output_format is not None:
        sys.stdout.write(_rendered(output_format, document, said))


def _rendered(output_format: str, document: object, said: Callable[[], Readable]) -> str:
    """What a file has in some format."""
    if output_format == "json":
        from dsocr_analyze.report.opening import dump_json

        return dump_json(document)
    # A table is laid out for a terminal; a file has Markdown instead.
    return str(getattr(said(), output_format.replace("table", "markdown"))())
