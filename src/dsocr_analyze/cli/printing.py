"""A report and single tables on stdout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.report.tables import Table

__all__ = ["print_assumptions", "print_report", "print_table"]

READABLE_WIDTH = 132
"""Columns that the widest table of a report needs."""


def print_report(report: Report, written: Sequence[Path]) -> None:
    """Prints a report, and where its files are."""
    from rich.console import Console
    from rich.text import Text

    from dsocr_analyze.report.terminal import render_terminal

    console = Console()
    if console.width < READABLE_WIDTH:
        # A narrow terminal wraps lines; a cut number would be a wrong number.
        console = Console(width=READABLE_WIDTH)
    console.print(render_terminal(report), soft_wrap=False)
    for path in written:
        console.print(Text(f"wrote {path}"), soft_wrap=True)


def print_table(table: Table) -> None:
    """Prints one table, as wide as it needs to be."""
    from rich.console import Console
    from rich.text import Text

    from dsocr_analyze.report.terminal import rich_table

    rich = rich_table(table)
    console = Console()
    needed = console.measure(rich, options=console.options.update(max_width=1000)).maximum
    if needed > console.width:
        console = Console(width=needed)
    rich.title = None
    console.print(Text(table.title, style="bold"), soft_wrap=True)
    console.print(rich)


def print_assumptions(sentences: Iterable[str]) -> None:
    """Prints what predicted seconds assume, 80 columns wide."""
    import textwrap

    for sentence in sentences:
        print(textwrap.fill(sentence, 80, initial_indent="Assumed: ", subsequent_indent="  "))
