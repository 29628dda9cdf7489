"""The report as Markdown: `static_compute.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dsocr_analyze.escaping import as_markdown
from dsocr_analyze.report.answer import answer_of
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.tables import Table, headline, ledger_table, notes_of, tables_of

__all__ = ["markdown_page", "render_markdown"]


def render_markdown(report: Report) -> str:
    """Markdown text of a report, from the answer to the ledger, which is folded."""
    metadata = report.metadata
    versions = ", ".join(f"{name} {number}" for name, number in metadata.versions.items())
    summary = [f"- **{label}**: {_cell(text)}" for label, text in answer_of(report).items()]
    parts = [
        as_markdown(f"Ran: {headline(report)}"),
        "# Static compute of one page",
        "## Summary",
        "\n".join(summary),
        *_titled(tables_of(report)),
        "## Notes",
        "\n".join(f"- {as_markdown(note)}" for note in notes_of(report)),
        "## Conventions",
        "\n".join(f"- {line}" for line in metadata.conventions),
        f"Versions: {as_markdown(versions)}. Written {metadata.created}.",
    ]
    if (ledger := ledger_table(report)) is not None:
        title, table = f"<summary>{ledger.title}</summary>", _markdown_table(ledger)
        parts += ["<details>", title, table, "</details>"]
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
    parts += _titled(tables)
    for title, lines in (lists or {}).items():
        items = "\n".join(f"- {as_markdown(line)}" for line in lines)
        parts += [f"## {title}", items] if items else []
    return "\n\n".join(parts) + "\n"


def _titled(tables: Iterable[Table]) -> Iterator[str]:
    for table in tables:
        yield from (f"## {as_markdown(table.title)}", _markdown_table(table))


def _markdown_table(table: Table) -> str:
    """A GitHub-flavoured Markdown table; numbers are right-aligned."""
    rule = ["---:" if table.is_numeric(i) else "---" for i in range(len(table.columns))]
    columns, *rows = (list(map(_cell, line)) for line in (table.columns, *table.rows))
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, rule, *rows))


def _cell(text: str) -> str:
    return "<br>".join(as_markdown(line, is_cell=True) for line in text.split("\n"))
