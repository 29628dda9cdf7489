"""The one way out: what a command found, on stdout and in files, in the formats that are asked."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import typer

from dsocr_analyze.output_files import write_files

if TYPE_CHECKING:
    from dsocr_analyze.cli.said import Said
    from dsocr_analyze.gate.renderers import ReadableCheck
    from dsocr_analyze.pictures.picture import Picture
    from dsocr_analyze.report.markdown import ReadableReport
    from dsocr_analyze.report.tree import Drawing

    Readable: TypeAlias = Said | ReadableReport | ReadableCheck | Drawing
    """Has `lines` for a terminal, and a method named after every other format."""

__all__ = ["emit", "show"]

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
) -> None:
    """Writes what a command found to files, all or none of them, and prints it.

    Answers `--format`, `--json`, `--quiet` and `--plot`, for which there may be a `picture`.
    `files` has the formats of further files, `instead` takes what would be printed.
    """
    given = context.params
    json_file, printed = given.get("json_file"), given.get("output_format", "text")
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
    if not instead:
        show(printed, document, said)


def show(output_format: str | None, document: object, said: Readable) -> None:
    """Prints what a command found in a format; nothing if there is none."""
    if output_format in ("table", "text"):  # which are laid out for the terminal
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
    elif output_format is not None:
        sys.stdout.write(_rendered(output_format, document, said))


def _rendered(output_format: str, document: object, said: Readable) -> str:
    if output_format == "json":
        from dsocr_analyze.report.opening import dump_json

        return dump_json(document)
    # A table is laid out for a terminal; a file has Markdown instead.
    return str(getattr(said, output_format.replace("table", "markdown"))())
