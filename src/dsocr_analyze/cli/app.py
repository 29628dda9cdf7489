"""The `dsocr-analyze` application: its commands, and how errors become exit codes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

import typer

from dsocr_analyze.cli import analyze, compare, docs, fit, sweep, tree, trust
from dsocr_analyze.errors import AnalyzeError

__all__ = ["app", "main"]

USAGE_ERROR = 2

_INTERRUPTED = "interrupted; nothing was written"

_TYPER_INTERRUPTED = 130
"""What Typer makes of a KeyboardInterrupt inside a command."""

app = typer.Typer(
    name="dsocr-analyze",
    help="What a page costs on DeepSeek-OCR: FLOPs, bytes and memory, stage by stage.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(invoke_without_command=True)(analyze.analyze)
app.command("compare")(compare.compare)
app.command("fit")(fit.fit)
app.command("sweep")(sweep.sweep)
app.command("trust")(trust.trust)
app.command("tree")(tree.tree)
app.command("docs")(docs.docs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; errors are one line on stderr."""
    # One command, then exit: looking for cycles among a million imported objects, and taking them
    # apart one by one at the end, would cost a third of the whole process.
    gc.disable()
    try:
        code = app(args=arguments, standalone_mode=False)
    except AnalyzeError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        return _fail(f"{error.format_message()}; see dsocr-analyze --help", USAGE_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(_INTERRUPTED, USAGE_ERROR)
    finally:
        gc.freeze()
    if code == _TYPER_INTERRUPTED:
        return _fail(_INTERRUPTED, USAGE_ERROR)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    one_line = " ".join(message.split())
    print(f"dsocr-analyze: {one_line}", file=sys.stderr)
    return code
