"""The report as Markdown: `static_compute.md`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsocr_analyze.escaping import as_markdown
from dsocr_analyze.report.answer import answer_of
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.tables import Table, headline, ledger_table, tables_of
from dsocr_analyze.report.time_tables import time_notes

__all__ = ["markdown_page", "notes_of", "render_markdown"]


def render_markdown(report: Report) -> str:
    """Markdown text of a report, from the answer to the ledger, which is folded."""
    metadata = report.metadata
    versions = ", ".join(f"{name} {number}" for name, number in metadata.versions.items())
    summary = [f"- **{label}**: {_cell(text)}" for label, text in answer_of(report).items()]
    parts = [as_markdown(f"Ran: {headline(report)}"), "# Static compute of one page"]
    parts += ["## Summary", "\n".join(summary)]
    for table in tables_of(report):
        parts += [f"## {as_markdown(table.title)}", _markdown_table(table)]
    parts += ["## Notes", "\n".join(f"- {as_markdown(note)}" for note in notes_of(report))]
    parts += ["## Conventions", "\n".join(f"- {line}" for line in metadata.conventions)]
    parts.append(f"Versions: {as_markdown(versions)}. Written {metadata.created}.")
    if (ledger := ledger_table(report)) is not None:
        parts += ["<details>", f"<summary>{ledger.title}</summary>"]
        parts += [_markdown_table(ledger), "</details>"]
    return "\n\n".join(parts) + "\n"


def markdown_page(
    opening: str, tables: Iterable[Table], lists: Mapping[str, Iterable[str]] | None = None
) -> str:
    """What a command prints as Markdown.

    Args:
        opening: Lines that say what was counted; may be empty.
        tables: Tables, each printed below its title.
        lists: Lists of further lines by title; empty lists are left out.
    """
    parts = ["\\\n".join(map(as_markdown, opening.splitlines()))] if opening else []
    for table in tables:
        parts += [f"## {as_markdown(table.title)}", _markdown_table(table)]
    for title, lines in (lists or {}).items():
        items = "\n".join(f"- {as_markdown(line)}" for line in lines)
        parts += [f"## {title}", items] if items else []
    return "\n\n".join(parts) + "\n"


def notes_of(report: Report) -> list[str]:
    """Notes on the whole report and on its stages, and what predicted seconds assume."""
    notes = list(report.notes)
    for name, stage in report.stages.items():
        notes += [f"{name}: {note}" for note in stage.notes]
    return [*notes, *time_notes(report.time)]


def _markdown_table(table: Table) -> str:
    """A GitHub-flavoured Markdown table; numbers are right-aligned."""
    rule = ["---:" if table.is_numeric(i) else "---" for i in range(len(table.columns))]
    columns, *rows = (list(map(_cell, line)) for line in (table.columns, *table.rows))
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, rule, *rows))


def _cell(text: str) -> str:
    return "<br>".join(as_markdown(line, is_cell=True) for line in text.split("\n"))
