"""The report as rich renderables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from dsocr_analyze.report.document import Document
from dsocr_analyze.report.markdown import notes_of
from dsocr_analyze.report.tables import Table, headline, tables_of

__all__ = ["print_report", "render_terminal", "rich_table"]

READABLE_WIDTH = 132
"""Columns that the widest table needs."""


def render_terminal(document: Document) -> Group:
    """All tables and notes of a report document."""
    parts: list[RenderableType] = [Text(f"Ran: {headline(document)}", style="bold")]
    for table in tables_of(document):
        parts += [Text(), rich_table(table)]
    parts += [Text(), Text("Notes", style="bold")]
    parts += [Text(f"- {note}") for note in notes_of(document)]
    return Group(*parts)


def rich_table(table: Table) -> RichTable:
    """A rich table; numbers flush right and never wrapped, text wrapped."""
    rich = RichTable(
        title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        pad_edge=False,
    )  # fmt: skip
    for index, column in enumerate(table.columns):
        numeric = table.is_numeric(index)
        rich.add_column(
            column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold"
        )
    sums_from = len(table.rows) - table.emphasized_rows
    for index, row in enumerate(table.rows):
        cells = [Text(cell) for cell in row]
        rich.add_row(*cells, style="bold" if index >= sums_from else None)
    return rich


def print_report(document: Document, written: Sequence[Path]) -> None:
    """Prints the report on stdout, and where its files are."""
    console = Console()
    if console.width < READABLE_WIDTH:
        # A narrow terminal wraps lines; a cut number would be a wrong number.
        console = Console(width=READABLE_WIDTH)
    console.print(render_terminal(document), soft_wrap=False)
    for path in written:
        console.print(Text(f"wrote {path}"), soft_wrap=True)


def print_table(table: Table) -> None:
    """Prints one table on stdout, as wide as it needs to be."""
    rich = rich_table(table)
    console = Console()
    needed = console.measure(rich, options=console.options.update(max_width=1000)).maximum
    if needed > console.width:
        console = Console(width=needed)
    rich.title = None
    console.print(Text(table.title, style="bold"), soft_wrap=True)
    console.print(rich)
