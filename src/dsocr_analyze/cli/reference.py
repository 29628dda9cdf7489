"""The command reference: the `--help` of every command in one document."""

from __future__ import annotations

from typing import Any

from dsocr_analyze.cli.exits import MEANINGS

__all__ = ["command_reference"]

_WIDTH = 100


def command_reference(application: Any) -> str:
    """Markdown with the exit codes, and the help text of the application and of each command.

    Args:
        application: The top-level command, as made by Typer.
    """
    root = _context("dsocr-analyze", application)
    parts = [
        "\n".join(
            ["| exit code | meaning |", "| --- | --- |"]
            + [f"| {code} | {meaning} |" for code, meaning in sorted(MEANINGS.items())]
        ),
        *_section(root),
    ]
    for name, command in application.commands.items():
        parts += _section(_context(name, command, root))
    return "\n\n".join(parts)


def _context(name: str, command: Any, parent: Any = None) -> Any:
    """The context for a command's help; the names of its options depend on its parent."""
    return command.make_context(
        name,
        [],
        parent,
        resilient_parsing=True,
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
    )


def _section(context: Any) -> list[str]:
    lines = (line.rstrip() for line in context.get_help().splitlines())
    return [f"## {context.command_path}", "```text\n" + "\n".join(lines).strip() + "\n```"]
