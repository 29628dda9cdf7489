"""The report as rich renderables for a terminal; the command line prints them."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from dsocr_analyze.report.document import Report
from dsocr_analyze.report.markdown import notes_of
from dsocr_analyze.report.tables import Table, headline, tables_of

__all__ = ["render_terminal", "rich_table"]


def render_terminal(report: Report) -> Group:
    """All tables and notes of a report."""
    parts: list[RenderableType] = [Text(f"Ran: {headline(report)}", style="bold")]
    for table in tables_of(report):
        parts += [Text(), Text(table.title, style="bold"), rich_table(table)]
    parts += [Text(), Text("Notes", style="bold")]
    parts += [Text(f"- {note}") for note in notes_of(report)]
    return Group(*parts)


def rich_table(table: Table) -> RichTable:
    """A rich table without its title; numbers flush right and never wrapped, text wrapped.

    Rich wraps a title to the width of its table; whoever shows one puts it on a line above.
    """
    rich = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(table.columns):
        numeric = table.is_numeric(index)
        rich.add_column(
            Text(column), justify="right" if numeric else "left", no_wrap=numeric, overflow="fold"
        )
    sums_from = len(table.rows) - table.emphasized_rows
    for index, row in enumerate(table.rows):
        cells = [Text(cell) for cell in row]
        rich.add_row(*cells, style="bold" if index >= sums_from else None)
    return rich
