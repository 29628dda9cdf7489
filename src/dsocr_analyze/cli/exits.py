"""From a command line to its exit code."""

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TextIO, cast

from dsocr_analyze.cli import streams, words
from dsocr_analyze.errors import AnalyzeError, OutputError, StrictError
from dsocr_analyze.interruption import Terminated, held, safe_point

# Everything else is imported later, where an interrupt already leads to an exit code.

NO: Final = 1
INTERNAL_ERROR: Final = 70
INTERRUPTED: Final = 130
READER_GONE: Final = 141
TERMINATED: Final = 143

MEANINGS: Final[dict[int, str]] = {
    0: "done",
    NO: "the answer to a yes/no question is no: a page does not fit on a named GPU, a budget is"
    " exceeded, or a figure differs from the baseline's",
    AnalyzeError.exit_code: "bad input: one line on stderr says what is wrong and what would be"
    " right",
    StrictError.exit_code: "a warning under `--strict`",
    INTERNAL_ERROR: "an internal error: one line, and where it happened under `--debug`",
    OutputError.exit_code: "output could not be written",
    INTERRUPTED: "interrupted (SIGINT)",
    READER_GONE: "the reader of a pipe has closed it",
    TERMINATED: "terminated (SIGTERM)",
}

_NAME: Final = "dsocr-analyze"
_COMPLETION: Final = "_DSOCR_ANALYZE_COMPLETE"
"""The variable with which a shell requests completions."""


@dataclass
class Invocation:
    """What affects how a command ends: `flags` are `debug` and `strict`, `typed` all options."""

    typed: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    is_writing: bool = False
    warnings: list[str] = field(default_factory=list)

    def begin_writing(self) -> None:
        """To be called before results are written; lets a pending interrupt through."""
        safe_point()
        self.is_writing = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line, by default this process's, and returns its exit code.

    Restores all settings of the process.
    """
    invocation = Invocation()
    try:
        guarded = cast(TextIO, streams.Stdout(sys.stdout))
        # Libraries add filters of their own on import.
        with held(), warnings.catch_warnings(), contextlib.redirect_stdout(guarded):
            if not sys.warnoptions:  # else the user set -W or PYTHONWARNINGS
                # Deprecations are for a library's callers, not for users of a command.
                warnings.simplefilter("ignore", FutureWarning)
            code = _invoke(sys.argv[1:] if arguments is None else list(arguments), invocation)
            guarded.flush()
            return code
    except BaseException as error:  # noqa: BLE001  # nobody else is left to say what happened
        return _end(error, invocation)


def _invoke(arguments: list[str], invocation: Invocation) -> int:
    import typer

    from dsocr_analyze.cli.commands import application

    # Not `app()`, which would install its own exception hook and handle closed pipes and Ctrl-C in
    # its own way.
    try:
        try:
            if _COMPLETION in os.environ:
                application.main(arguments, prog_name=_NAME)
            context = application.make_context(_NAME, arguments, obj=invocation)
        except SystemExit as answered:  # typer's own: it has shown or installed completions
            return int(answered.code or 0)
        with context:
            application.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except typer.Abort:  # Ctrl-C, or "no" at a prompt
        raise KeyboardInterrupt from None
    except typer.TyperException as error:
        raise AnalyzeError(words.refusal(error)) from error
    if "strict" in invocation.flags and invocation.warnings:
        raise StrictError(f"--strict: {'; '.join(invocation.warnings)}")
    return 0


def _end(error: BaseException, invocation: Invocation) -> int:
    """Says what ended a command; the exit code."""
    try:
        code, message = _outcome_of(error, invocation)
    except Exception as another:  # noqa: BLE001  # an error must not hide behind its description
        code, message = INTERNAL_ERROR, f"internal error: {another!r} while describing an error"
    if code == INTERNAL_ERROR and "debug" in invocation.flags and sys.stderr is not None:
        traceback.print_exception(error)
    if message is not None:
        streams.complain(message, streams.RED)
    return code


def _outcome_of(error: BaseException, invocation: Invocation) -> tuple[int, str | None]:
    """The exit code, and the line on stderr."""
    written = "its results may be incomplete" if invocation.is_writing else "nothing was written"
    match error:
        case AnalyzeError():
            return error.exit_code, words.in_options(str(error), error.arguments, invocation.typed)
        case streams.ReaderGone():
            return READER_GONE, None
        case Terminated():
            return TERMINATED, f"terminated; {written}"
        case KeyboardInterrupt():
            return INTERRUPTED, f"interrupted; {written}"
        case MemoryError():
            return INTERNAL_ERROR, "internal error: out of memory"
    described = ": ".join(filter(None, (type(error).__name__, str(error))))
    where = "" if "debug" in invocation.flags else " (--debug shows where)"
    return INTERNAL_ERROR, f"internal error: {described}{where}"
