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


# --- styles ---------------------------------------------------------------------------------------

BOLD: Final = "1"
RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"


def is_styled(stream: Any) -> bool:
    """Whether text on a stream has styles: on a terminal, unless the environment says otherwise."""
    if os.environ.get("NO_COLOR"):
        return False
    is_watched = stream.isatty() and os.environ.get("TERM") != "dumb"
    return bool(os.environ.get("FORCE_COLOR")) or is_watched


def styled(text: str, style: str) -> str:
    """The text in a style, for a terminal."""
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text


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


def complain(message: str, style: str = "") -> None:
    """Prints one escaped line on stderr, if there is one."""
    if sys.stderr is None:  # print() would use stdout instead
        return
    line = visible(" ".join(message.split()))
    # The middle is cut out of overlong words, then of an overlong line.
    line = " ".join(_ends(word, _LONGEST_WORD, "...") for word in line.split(" "))
    line = _ends(line, _LONGEST_MESSAGE, " ... ")
    with contextlib.suppress(OSError, ValueError):
        line = styled(line, style) if is_styled(sys.stderr) else line
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
def announced_steps(
    *, in_lines: bool = False, is_patient: bool = False
) -> Iterator[Callable[[str], None]]:
    """Yields what shows a step: live on a terminal, or else a line now and then if `in_lines`.

    If `is_patient`, a terminal shows none of the first second.
    """
    is_watched = sys.stderr is not None and sys.stderr.isatty()
    status: Any = None
    with contextlib.ExitStack() as shown:
        began = last = time.monotonic()
        shown_from = began + _PATIENCE_SECONDS if is_patient else began

        def announce(step: str) -> None:
            nonlocal status, last
            now = time.monotonic()
            if status is not None:
                status.update(step)
            elif is_watched and now >= shown_from:
                from rich.console import Console

                status = shown.enter_context(Console(stderr=True).status(step))
            elif in_lines and not is_watched and now - last >= _LINE_SECONDS:
                last = now
                complain(f"after {now - began:.0f} s: {step}")

        yield announce
