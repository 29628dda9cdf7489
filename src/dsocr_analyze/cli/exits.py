"""Exit codes, and which error leads to which."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dsocr_analyze.cli.streams import ReaderGone
from dsocr_analyze.errors import AnalyzeError, OutputError, StrictError
from dsocr_analyze.interruption import Terminated, safe_point

__all__ = [
    "BAD_INPUT",
    "DONE",
    "INTERNAL_ERROR",
    "INTERRUPTED",
    "MEANINGS",
    "NO",
    "READER_GONE",
    "TERMINATED",
    "Invocation",
    "outcome_of",
]

DONE: Final = 0
NO: Final = 1
BAD_INPUT: Final = AnalyzeError.exit_code
INTERNAL_ERROR: Final = 70
INTERRUPTED: Final = 130
READER_GONE: Final = 141
TERMINATED: Final = 143

MEANINGS: Final[dict[int, str]] = {
    DONE: "done",
    NO: "the answer to a yes/no question is no: a page does not fit on a named GPU, a budget is"
    " exceeded, or a figure differs from the baseline's",
    BAD_INPUT: "bad input: one line on stderr says what is wrong and what would be right",
    StrictError.exit_code: "a warning under `--strict`",
    INTERNAL_ERROR: "an internal error: one line, and where it happened under `--debug`",
    OutputError.exit_code: "output could not be written",
    INTERRUPTED: "interrupted (SIGINT)",
    READER_GONE: "the reader of a pipe has closed it",
    TERMINATED: "terminated (SIGTERM)",
}


@dataclass
class Invocation:
    """State that affects how a command ends, apart from the error that ends it.

    Attributes:
        is_debugged: Whether an internal error is shown in full.
        is_writing: Whether results may have been written.
        is_strict: Whether a warning makes a command fail.
        warnings: The warnings, without duplicates.
    """

    is_debugged: bool = False
    is_writing: bool = False
    is_strict: bool = False
    warnings: list[str] = field(default_factory=list)

    def begin_writing(self) -> None:
        """Must be called before results are written; a pending interrupt takes effect here."""
        safe_point()
        self.is_writing = True

    def refuse_warnings(self) -> None:
        """Raise StrictError if there are warnings and `is_strict` is set."""
        if self.is_strict and self.warnings:
            raise StrictError(f"--strict: {'; '.join(self.warnings)}")


def outcome_of(error: BaseException, invocation: Invocation) -> tuple[int, str | None]:
    """The exit code for an error, and its line on stderr, if any."""
    if isinstance(error, AnalyzeError):
        from dsocr_analyze.cli.words import in_options

        return error.exit_code, in_options(str(error), error.arguments)
    if isinstance(error, ReaderGone):
        return READER_GONE, None
    written = "its results may be incomplete" if invocation.is_writing else "nothing was written"
    if isinstance(error, Terminated):
        return TERMINATED, f"terminated; {written}"
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, f"interrupted; {written}"
    import typer

    if isinstance(error, typer.Abort):  # Ctrl-C, or "no" at a prompt
        return INTERRUPTED, f"interrupted; {written}"
    if isinstance(error, typer.TyperException):
        from dsocr_analyze.cli.words import refusal

        return BAD_INPUT, refusal(error)
    if isinstance(error, MemoryError):
        return INTERNAL_ERROR, "internal error: out of memory"
    described = ": ".join(filter(None, (type(error).__name__, str(error))))
    where = "" if invocation.is_debugged else " (--debug shows where)"
    return INTERNAL_ERROR, f"internal error: {described}{where}"
