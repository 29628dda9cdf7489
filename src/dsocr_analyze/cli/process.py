"""From a command line to an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsocr_analyze.cli.exits import Invocation

# Everything else is imported later, where an interrupt already leads to an exit code.

__all__ = ["main"]

_NAME = "dsocr-analyze"
_COMPLETION = "_DSOCR_ANALYZE_COMPLETE"
"""The variable with which a shell requests completions."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; errors are one line on stderr.

    All settings of the process are restored.

    Args:
        arguments: The arguments without the program's name; None for this process's.
    """
    invocation = None
    try:
        from dsocr_analyze.cli.exits import Invocation
        from dsocr_analyze.cli.streams import named_failures
        from dsocr_analyze.interruption import held

        invocation = Invocation()
        # Libraries add filters of their own on import.
        with held(), warnings.catch_warnings(), named_failures():
            if not sys.warnoptions:  # else the user set -W or PYTHONWARNINGS
                # Deprecations are for a library's callers, not for users of a command.
                warnings.simplefilter("ignore", FutureWarning)
            return _invoke(sys.argv[1:] if arguments is None else list(arguments), invocation)
    except BaseException as error:  # noqa: BLE001  # nobody else is left to say what happened
        return _end(error, invocation)


def _invoke(arguments: list[str], invocation: Invocation) -> int:
    import typer

    from dsocr_analyze.cli.app import app

    # Not `app()`, which would install its own exception hook and handle closed pipes and Ctrl-C in
    # its own way.
    command = typer.main.get_command(app)
    try:
        try:
            if _COMPLETION in os.environ:
                command.main(arguments, prog_name=_NAME)
            context = command.make_context(_NAME, arguments, obj=invocation)
        except SystemExit as answered:  # typer's own: it has shown or installed completions
            return int(answered.code or 0)
        with context:
            command.invoke(context)
        invocation.refuse_warnings()
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def _end(error: BaseException, invocation: Invocation | None) -> int:
    """Print what ended a command, and return its exit code."""
    from dsocr_analyze.cli.exits import INTERNAL_ERROR, Invocation, outcome_of
    from dsocr_analyze.cli.streams import complain

    invocation = invocation or Invocation()
    try:
        code, message = outcome_of(error, invocation)
    except Exception as another:  # noqa: BLE001  # an error must not hide behind its description
        code, message = INTERNAL_ERROR, f"internal error: {another!r} while describing an error"
    if code == INTERNAL_ERROR and invocation.is_debugged and sys.stderr is not None:
        import traceback

        traceback.print_exception(error)
    if message is not None:
        complain(message)
    return code
