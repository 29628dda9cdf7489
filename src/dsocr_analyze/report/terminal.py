"""The report as lines for a terminal; the command line prints them."""

from __future__ import annotations

from collections.abc import Iterator

from dsocr_analyze.report.document import Report
from dsocr_analyze.report.layout import Line, lay_out, wrap
from dsocr_analyze.report.markdown import notes_of
from dsocr_analyze.report.table import Table
from dsocr_analyze.report.tables import headline, ledger_table, tables_of

__all__ = ["report_lines", "table_lines"]


def report_lines(report: Report, width: int) -> Iterator[Line]:
    """All tables and notes of a report, in the same order as in Markdown."""
    yield from (Line(text, is_bold=True) for text in wrap(f"Ran: {headline(report)}", width))
    for table in tables_of(report):
        yield Line("")
        yield from table_lines(table, width)
    yield from (Line(""), Line("Notes", is_bold=True))
    for note in notes_of(report):
        yield from map(Line, wrap(f"- {note}", width, indent="  "))
    if (ledger := ledger_table(report)) is not None:
        yield Line("")
        yield from table_lines(ledger, width)


def table_lines(table: Table, width: int) -> Iterator[Line]:
    """A title, its table, and the columns left out for lack of width."""
    yield from (Line(text, is_bold=True) for text in wrap(table.title, width))
    layout = lay_out(table, width)
    yield from layout.lines
    if layout.left_out:
        said = f"left out at {width} columns: {', '.join(layout.left_out)}; a wider terminal,"
        yield from map(Line, wrap(f"{said} Markdown and JSON have them", width))
