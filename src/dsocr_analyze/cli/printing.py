"""Prints answers, tables and prose on stdout, as wide as the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsocr_analyze.escaping import visible

if TYPE_CHECKING:
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.report.layout import Line
    from dsocr_analyze.report.tables import Table

__all__ = ["print_assumptions", "print_report", "print_table", "print_text", "terminal_width"]

WITHOUT_TERMINAL: Final = 100
"""Width of piped output in columns, unless COLUMNS sets another."""

LEAST_WIDTH: Final = 40


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


def print_text(text: str, *, indent: str = "") -> None:
    """Print prose; all lines but the first of each paragraph start with `indent`."""
    from dsocr_analyze.report.layout import wrap

    for line in wrap(text, terminal_width(), indent=indent):
        print(line)


def print_assumptions(sentences: Iterable[str]) -> None:
    """Print what predicted seconds assume."""
    for sentence in sentences:
        print_text(f"Assumed: {sentence}", indent="  ")


def _print_lines(lines: Iterable[Line]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=getattr(sys.stdout, "styled", None))
    for line in lines:
        text = Text(visible(line.text), style="bold" if line.is_bold else "")
        console.print(text, soft_wrap=True)
