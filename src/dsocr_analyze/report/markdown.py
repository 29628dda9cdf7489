"""The report as Markdown: `static_compute.md`."""

from __future__ import annotations

from dsocr_analyze.report.document import Document
from dsocr_analyze.report.tables import Table, headline, tables_of

__all__ = ["markdown_table", "render_markdown"]


def render_markdown(document: Document) -> str:
    """Markdown text of a report document."""
    metadata = document["metadata"]
    versions = ", ".join(f"{name} {number}" for name, number in metadata["versions"].items())
    parts = [f"Ran: {headline(document)}", "# Static compute of one page on DeepSeek-OCR"]
    for table in tables_of(document):
        parts += [f"## {table.title}", markdown_table(table)]
    parts += ["## Notes", "\n".join(f"- {note}" for note in notes_of(document))]
    parts += ["## Conventions", "\n".join(f"- {line}" for line in metadata["conventions"])]
    parts.append(f"Versions: {versions}. Written {metadata['created']}.")
    return "\n\n".join(parts) + "\n"


def notes_of(document: Document) -> list[str]:
    """Notes of the whole report, then those of its stages."""
    notes = list(document["notes"])
    for stage, content in document["stages"].items():
        notes += [f"{stage}: {note}" for note in content["notes"]]
    return notes


def markdown_table(table: Table) -> str:
    """A GitHub-flavoured Markdown table; numbers flush right."""
    rule = ["---:" if table.is_numeric(i) else "---" for i in range(len(table.columns))]
    lines = [table.columns, rule, *table.rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", "<br>")
