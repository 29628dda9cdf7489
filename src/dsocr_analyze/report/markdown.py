"""The report for readers: Markdown, as in `static_compute.md`, and lines for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dsocr_analyze.escaping import as_markdown, visible
from dsocr_analyze.report.answer import answer_of
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.table import (
    Line,
    markdown_cell,
    markdown_table,
    table_lines,
    titled,
    wrap,
)
from dsocr_analyze.report.tables import headline, ledger_table, notes_of, tables_of

__all__ = ["ReadableReport", "render_markdown", "report_lines"]


class ReadableReport(NamedTuple):
    """What a reader sees of a report, in every format.

    Attributes:
        report: The report.
        written: The files that it is written to.
        is_full: Whether a terminal shows all tables and notes below the answer.
        html: Returns the HTML page.
    """

    report: Report
    written: Sequence[Path]
    is_full: bool
    html: Callable[[], str]

    def lines(self, width: int) -> Iterator[Line]:
        """What a page costs, and with `is_full` everything below it, for a terminal."""
        answer = answer_of(self.report, self.written).lines(rest=": --full")
        below = [Line(""), *report_lines(self.report, width)] if self.is_full else []
        for text, is_bold in (*map(Line, answer), *below):
            yield Line(visible(text), is_bold)

    def markdown(self) -> str:
        """The report as Markdown."""
        return render_markdown(self.report)


def report_lines(report: Report, width: int) -> Iterator[Line]:
    """All tables and notes for a terminal, in the same order as in Markdown."""
    yield from (Line(text, is_bold=True) for text in wrap(f"Ran: {headline(report)}", width))
    for table in tables_of(report):
        yield from (Line(""), *table_lines(table, width))
    yield from (Line(""), Line("Notes", is_bold=True))
    for note in notes_of(report):
        yield from map(Line, wrap(f"- {note}", width, indent="  "))
    if (ledger := ledger_table(report)) is not None:
        yield from (Line(""), *table_lines(ledger, width))


def render_markdown(report: Report) -> str:
    """Markdown text of a report, from the answer to the ledger, which is folded."""
    metadata = report.metadata
    versions = ", ".join(f"{name} {number}" for name, number in metadata.versions.items())
    summary = [f"- **{label}**: {markdown_cell(text)}" for label, text in answer_of(report).items()]
    parts = [
        as_markdown(f"Ran: {headline(report)}"),
        "# Static compute of one page",
        "## Summary",
        "\n".join(summary),
        *titled(tables_of(report)),
        "## Notes",
        "\n".join(f"- {as_markdown(note)}" for note in notes_of(report)),
        "## Conventions",
        "\n".join(f"- {line}" for line in metadata.conventions),
        f"Versions: {as_markdown(versions)}. Written {metadata.created}.",
    ]
    if (ledger := ledger_table(report)) is not None:
        title, table = f"<summary>{ledger.title}</summary>", markdown_table(ledger)
        parts += ["<details>", title, table, "</details>"]
    return "\n\n".join(parts) + "\n"
