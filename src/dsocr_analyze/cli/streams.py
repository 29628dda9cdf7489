"""The two streams: results on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

from dsocr_analyze.errors import OutputError
from dsocr_analyze.escaping import visible, visible_lines

_PATIENCE_SECONDS = 1.0
_LINE_SECONDS = 10.0
_LONGEST_MESSAGE: Final = 480
_LONGEST_WORD: Final = 120


# --- stdout ---------------------------------------------------------------------------------------


class ReaderGone(Exception):  # noqa: N818  # not an error
    """The reader of stdout has closed the pipe, as `head` does."""


@dataclass
class Stdout:
    """stdout that escapes control characters, with errors of its own.

    They can be told from those of other files and pipes. What `is_styled` is escaped already.
    """

    stream: IO[Any] | None
    is_styled: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    @property
    def styled(self) -> Stdout:
        """For text that is already escaped and coloured."""
        return Stdout(self.stream, is_styled=True)

    @property
    def buffer(self) -> Stdout:
        """For bytes."""
        return Stdout(getattr(self.stream, "buffer", None))

    def write(self, data: Any) -> int:
        """Writes text, or bytes to a buffer."""
        if isinstance(data, str) and not self.is_styled:
            data = visible_lines(data)
        with _failures():
            if self.stream is None:
                raise OSError(0, "it is closed")
            raw = getattr(self.stream, "buffer", self.stream)
            if not isinstance(raw, io.RawIOBase):
                return self.stream.write(data)
            # Unbuffered (`python -u`): a write may be partial, and Python ignores that.
            encoding = getattr(self.stream, "encoding", None) or "utf-8"
            rest = memoryview(data.encode(encoding) if isinstance(data, str) else data)
            while rest:
                rest = rest[raw.write(rest) or 0 :]
            return len(data)

    def flush(self) -> None:
        """Writes what is still buffered."""
        with _failures():
            if self.stream is not None:
                self.stream.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self.stream is not None and self.stream.isatty()


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ReaderGone from None
    except (OSError, ValueError) as error:
        raise OutputError(
            f"cannot write to stdout: {getattr(error, 'strerror', None) or error}"
        ) from error


def drop_unwritable() -> None:
    """Discards what can't be written, else an error when the interpreter exits."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# --- stderr ---------------------------------------------------------------------------------------


def complain(message: str) -> None:
    """Prints one escaped line on stderr, if there is one."""
    if sys.stderr is None:  # print() would use stdout instead
        return
    line = visible(" ".join(message.split()))
    # The middle is cut out of overlong words, then of an overlong line.
    line = " ".join(_ends(word, _LONGEST_WORD, "...") for word in line.split(" "))
    line = _ends(line, _LONGEST_MESSAGE, " ... ")
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"dsocr-analyze: {line}\n")
        sys.stderr.flush()


def _ends(text: str, longest: int, gap: str) -> str:
    """Two thirds from the start, the rest from the end."""
    if len(text) <= longest:
        return text
    kept = longest - len(gap)
    return text[: 2 * kept // 3] + gap + text[2 * kept // 3 - kept :]


# --- progress -------------------------------------------------------------------------------------


@contextlib.contextmanager
def announced_steps(*, in_lines: bool = False) -> Iterator[Callable[[str], None]]:
    """Yields what shows a step: live on a terminal, or else a line now and then if `in_lines`."""
    if sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("starting") as status:
            yield status.update
        return
    began = last = time.monotonic()

    def announce(step: str) -> None:
        nonlocal last
        now = time.monotonic()
        if in_lines and now - last >= _LINE_SECONDS:
            last = now
            complain(f"after {now - began:.0f} s: {step}")

    yield announce


class LateProgress(contextlib.ExitStack):
    """A progress bar on a terminal, after a second."""

    def __init__(self, what: str, total: int | None) -> None:
        super().__init__()
        self._what, self._total, self._done = what, total, 0
        self._begins = time.monotonic() + _PATIENCE_SECONDS
        self._bar: Any = None

    def advance(self, count: int) -> None:
        """Counts more as done."""
        self._done += count
        is_watched = sys.stderr is not None and sys.stderr.isatty()
        if not is_watched or time.monotonic() < self._begins:
            return
        if self._bar is None:
            from rich import console, progress

            self._bar = self.enter_context(
                progress.Progress(
                    progress.TextColumn("{task.description}"), progress.BarColumn(),
                    progress.MofNCompleteColumn(), progress.TimeRemainingColumn(),
                    console=console.Console(stderr=True), transient=True,
                    redirect_stdout=False, redirect_stderr=False,
                )
            )  # fmt: skip
            self._bar.add_task(self._what, total=self._total)
        self._bar.update(self._bar.task_ids[0], completed=self._done)
