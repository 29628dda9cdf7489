"""The one way out: what a command says, on stdout and in files, in the formats that are asked."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import typer

from dsocr_analyze.cli import streams
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.errors import OutputError, refuse
from dsocr_analyze.escaping import visible_lines
from dsocr_analyze.input_files import is_folder
from dsocr_analyze.output_files import write_files
from dsocr_analyze.report import opening, table
from dsocr_analyze.report.table import counted

if TYPE_CHECKING:
    from dsocr_analyze.pictures.picture import Picture
    from dsocr_analyze.timing import TimeEntry

    class Readable(Protocol):
        """What a reader sees; every format but JSON is a method of its name."""

        def lines(self, width: int) -> Iterator[table.Line]:
            """Lines for a terminal of that many columns."""


_WITHOUT_TERMINAL: Final = 100
"""Width of piped output in columns, unless COLUMNS sets another."""

_LEAST_WIDTH: Final = 40


class Lines(NamedTuple):
    """Lines below the tables, and what stands before each on a terminal.

    Attributes:
        briefly: What a terminal has in place of them, if anything.
    """

    title: str
    lines: Sequence[str]
    before: str = "Note: "
    indent: str = "  "
    briefly: Sequence[str] = ()


def assumptions(
    context: typer.Context, sentences: Iterable[str], notes: Iterable[str] = ()
) -> Lines:
    """What the figures assume; a terminal has all of it with `--assumptions`, else these notes."""
    found, briefly = [*sentences], list[str]()
    if found and not context.params["assumptions"]:
        briefly = [f"Note: {each}" for each in dict.fromkeys(notes)]
        briefly.append(f"{counted(len(found), 'assumption')}: --assumptions lists them")
    return Lines("Assumptions", found, "Assumed: ", briefly=briefly)


def time_assumptions(context: typer.Context, entries: Sequence[TimeEntry]) -> Lines:
    """What predicted seconds of a page assume."""
    from dsocr_analyze.report import time_tables

    return assumptions(context, time_tables.time_notes(entries), time_tables.doubts(entries))


class Said(NamedTuple):
    """What most commands say.

    Attributes:
        below: Lines below the tables.
        written: Files that a terminal names at the end.
        own: Formats of the command's own, also in place of those below.
    """

    opening: str
    tables: Sequence[table.Table | None]
    below: Sequence[Lines] = ()
    written: Sequence[Path | str | None] = ()
    own: Mapping[str, Callable[[], str]] = {}

    def lines(self, width: int) -> Iterator[table.Line]:
        """Lines for a terminal of that many columns."""
        texts = table.wrap(self.opening, width) if self.opening else []
        yield from map(table.Line, texts)
        for each in filter(None, self.tables):
            yield from table.table_lines(each, width)
            yield table.Line("")
        for _, lines, before, indent, briefly in self.below:
            for line in briefly:
                yield from map(table.Line, table.wrap(line, width, indent=indent))
            for line in () if briefly else lines:
                yield from map(table.Line, table.wrap(f"{before}{line}", width, indent=indent))
        for path in filter(None, self.written):
            yield table.Line(f"wrote {path}")

    def markdown(self) -> str:
        """The same in Markdown."""
        lists = {each.title: each.lines for each in self.below}
        return table.markdown_page(self.opening, filter(None, self.tables), lists)

    def csv(self) -> str:
        """The tables."""
        return table.csv_page(filter(None, self.tables))

    def latex(self) -> str:
        """The tables."""
        return table.latex_page(filter(None, self.tables))


def check_files(
    output: Path | None = None, plot: Path | None = None, html: Path | None = None
) -> None:
    """Raises FormatError or OutputError, before any work, for files that cannot be written."""
    if output is not None:
        from dsocr_analyze.archive.table_files import table_format

        table_format(output)
    if plot is not None:
        from dsocr_analyze.pictures.picture import picture_format

        picture_format(plot)
    if html is not None:
        from dsocr_analyze.report.html import refuse_without_plotly

        refuse_without_plotly()
    for path in filter(None, (output, plot, html)):
        refuse(
            OutputError,
            (is_folder(path), f"cannot write {str(path)!r}: it is a folder; give a file's name"),
            (not is_folder(path.parent),
             f"cannot write {str(path)!r}: no folder {str(path.parent)!r}; create it"),
        )  # fmt: skip


def emit(
    context: typer.Context,
    document: object,
    said: Readable,
    *,
    files: Mapping[Path | None, str] | None = None,
    instead: Path | None = None,
    picture: Callable[[], Picture] | None = None,
    aside: Sequence[Path | None] = (),
    on_terminal: str = "table",
) -> None:
    """Answers `--format`, `--json`, `--quiet` and `--plot`: writes all files or none, and prints.

    Args:
        context: The command's.
        document: Its JSON.
        said: Its other formats.
        files: The format of each further file.
        instead: Takes what would be printed.
        picture: Draws the picture of `--plot`.
        aside: Files already written, which stderr names if stdout is for programs.
        on_terminal: The format that is laid out for a reader.
    """
    given = context.params
    json_file, printed = given.get("json_file"), given.get("output_format") or on_terminal
    if json_file == "-":
        json_file, printed = None, "json"
    elif given["quiet"] and not instead:
        printed = None
    render = cache(partial(_rendered, document, said))
    formats = {**(files or {}), instead: printed, json_file and Path(json_file): "json"}
    texts = {path: render(each) for path, each in formats.items() if path and each}
    drawn = picture() if picture and given["plot"] else None
    if texts or drawn:
        context.obj.begin_writing()
        write_files(texts)
    if drawn:
        drawn.save(given["plot"])
    if instead or not printed:
        return
    if printed == on_terminal:
        show(said)
    else:
        sys.stdout.write(render(printed))
        for path in filter(None, aside):
            complain(f"wrote {path}")


def say(context: typer.Context, *lines: str) -> None:
    """Prints lines, unless `--quiet` is given."""
    if not context.params["quiet"]:
        print(*lines, sep="\n")


def show(said: Readable) -> None:
    """Prints what a reader sees, as wide as the terminal."""
    terminal = shutil.get_terminal_size((_WITHOUT_TERMINAL, 24))  # COLUMNS, if it is set
    lines = said.lines(max(terminal.columns, _LEAST_WIDTH))
    if streams.is_styled(sys.stdout):
        print(_painted(lines), end="", file=getattr(sys.stdout, "styled", None))
    else:
        for line in lines:
            print(line.text)


_STYLES: Final = {"bad": streams.RED, "doubtful": streams.YELLOW, "good": streams.GREEN}
_MARKED: Final = re.compile(
    r"(?P<bad>^(?P<margin> *)error: .*(?:\n(?P=margin) +.*)*"  # a line, and those it goes on in
    r"|\b(?:FAILED|DIFFER|exceeded|do(?:es)? not fit)\b"
    r"|(?<=  )(?:no|too much)(?=  |$)"  # a cell
    r"|^[Nn]o(?=[,:] ))"
    r"|(?P<doubtful>^(?P<indent> *)[Ww]arning: .*(?:\n(?P=indent) +.*)*"
    r"|\bpassed with warnings\b|\b[1-9][0-9,]* warnings?\b)"
    r"|(?P<good>(?:(?<=: )|^)passed\b)",
    re.MULTILINE,
)
"""What stands out on a terminal."""


def _painted(lines: Iterable[table.Line]) -> str:
    """Lines in the styles of a terminal, escaped."""
    texts = [
        f"{streams.styled(visible_lines(text), streams.BOLD if is_bold else '')}\n"
        for text, is_bold in lines
    ]
    return _MARKED.sub(
        lambda found: streams.styled(found[0], _STYLES[str(found.lastgroup)]), "".join(texts)
    )


def _rendered(document: object, said: Readable, output_format: str) -> str:
    if output_format == "json":
        return opening.dump_json(document)
    # A table is laid out for a terminal; a file has Markdown instead.
    name, own = output_format.replace("table", "markdown"), getattr(said, "own", {})
    return str((own.get(name) or getattr(said, name))())
