"""The one way out: what a command found, on stdout and in files, in the formats that are asked."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import typer

from dsocr_analyze.cli.streams import complain
from dsocr_analyze.output_files import write_files

if TYPE_CHECKING:
    from dsocr_analyze.archive.setting import CountOpening
    from dsocr_analyze.archive.table_files import BatchWriter
    from dsocr_analyze.cli.device_runs import ReadableInference
    from dsocr_analyze.cli.said import Said
    from dsocr_analyze.gate.renderers import ReadableCheck
    from dsocr_analyze.pictures.picture import Picture
    from dsocr_analyze.report.markdown import ReadableReport
    from dsocr_analyze.report.tree import Drawing

    Readable: TypeAlias = Said | ReadableReport | ReadableCheck | Drawing | ReadableInference
    """Has `lines` for a terminal, and a method named after every other format."""

__all__ = ["emit", "row_writer", "show"]

WITHOUT_TERMINAL: Final = 100
"""Width of piped output in columns, unless COLUMNS sets another."""

LEAST_WIDTH: Final = 40


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
    """Writes what a command found to files, all or none of them, and prints it.

    Answers `--format`, `--json`, `--quiet` and `--plot`, for which there may be a `picture`.
    `files` has the formats of further files, `instead` takes what would be printed. `aside` are
    files already written, which stderr names if stdout has a format for programs; `on_terminal` is
    the format that is laid out for a reader.
    """
    given = context.params
    json_file, printed = given.get("json_file"), given.get("output_format") or on_terminal
    if json_file == "-":
        json_file, printed = None, "json"
    elif given.get("quiet"):
        printed = None
    formats = {**(files or {}), instead: printed, json_file and Path(json_file): "json"}
    rendered: dict[str, str] = {}
    texts: dict[Path, str] = {}
    for path, each in formats.items():
        if path and each:
            if each not in rendered:
                rendered[each] = _rendered(each, document, said)
            texts[path] = rendered[each]
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
        sys.stdout.write(rendered.get(printed) or _rendered(printed, document, said))
        for path in filter(None, aside):
            complain(f"wrote {path}")


def show(said: Readable) -> None:
    """Prints what a reader sees, as wide as the terminal."""
    terminal = shutil.get_terminal_size((WITHOUT_TERMINAL, 24))  # COLUMNS, if it is set
    for line in said.lines(max(terminal.columns, LEAST_WIDTH)):
        if line.is_bold:
            from rich.console import Console
            from rich.text import Text

            Console(file=getattr(sys.stdout, "styled", None)).print(
                Text(line.text, style="bold"), soft_wrap=True
            )
        else:
            print(line.text)


def row_writer(
    context: typer.Context, opening: CountOpening
) -> AbstractContextManager[BatchWriter | None]:
    """Takes the rows of a table as they come: into `--output`, or as CSV into a pipe.

    None where there is neither: rows are for a picture, or a reader sees the first of them.
    """
    from dsocr_analyze.archive import table_files

    given = context.params
    if given["output"] is not None:
        return table_files.table_writer(given["output"], opening)
    if given["plot"] is not None or given["quiet"] or sys.stdout.isatty():
        return nullcontext()
    sys.stdout.flush()
    return table_files.BatchWriter(sys.stdout.buffer)


def _rendered(output_format: str, document: object, said: Readable) -> str:
    if output_format == "json":
        from dsocr_analyze.report.opening import dump_json

        return dump_json(document)
    # A table is laid out for a terminal; a file has Markdown instead.
    return str(getattr(said, output_format.replace("table", "markdown"))())
