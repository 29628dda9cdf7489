"""The command reference: what `--help` says of every command, as one document."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["command_reference"]

_WIDTH = 100


def command_reference(app: typer.Typer) -> str:
    """Markdown with the help text of the application and of each of its commands."""
    main: Any = typer.main.get_command(app)
    parts = [
        "<!-- Written by `dsocr-analyze docs`; edit src/dsocr_analyze/cli instead. -->",
        "# Commands",
        "What `--help` says. Results go to stdout, everything else to stderr. Exit codes: 0 done,"
        " 2 bad input (one line on stderr says what and what would be right), 3 a warning under"
        " `--strict`.",
        *_section("dsocr-analyze", main, parent=None),
    ]
    for name, command in main.commands.items():
        parts += _section(f"dsocr-analyze {name}", command, parent=main)
    return "\n\n".join(parts) + "\n"


def _section(title: str, command: Any, parent: Any) -> list[str]:
    context = command.make_context(
        title,
        [],
        resilient_parsing=True,
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
    )
    lines = (line.rstrip() for line in command.get_help(context).splitlines())
    return [f"## {title}", "```text\n" + "\n".join(lines).strip() + "\n```"]
