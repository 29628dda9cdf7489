"""The two streams: results on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import IO, Any, Final, TextIO, cast

from dsocr_analyze.errors import OutputError
from dsocr_analyze.escaping import visible, visible_lines

__all__ = ["ReaderGone", "complain", "drop_unwritable", "named_failures"]


class ReaderGone(Exception):  # noqa: N818  # not an error
    """The reader of stdout has closed the pipe, as `head` does."""


class _Stdout:
    """stdout with errors of its own type, which escapes control characters on a terminal.

    Args:
        stream: The text stream or its buffer; None if the process was started without one.
        is_styled: Whether text is already escaped and may contain control sequences for colours.
    """

    def __init__(self, stream: IO[Any] | None, *, is_styled: bool = False) -> None:
        self._stream = stream
        self._is_styled = is_styled

    @property
    def styled(self) -> _Stdout:
        """The same stream for text that is already escaped and coloured."""
        return _Stdout(self._stream, is_styled=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> _Stdout:
        """The same stream for bytes."""
        return _Stdout(getattr(self._stream, "buffer", None))

    def write(self, data: Any) -> int:
        """Write text, or bytes if it is a buffer."""
        if isinstance(data, str) and not self._is_styled:
            data = visible_lines(data)
        with _failures():
            if self._stream is None:
                raise OSError(0, "it is closed")
            raw = getattr(self._stream, "buffer", self._stream)
            if not isinstance(raw, io.RawIOBase):
                return self._stream.write(data)
            # Unbuffered (`python -u`): writes may be partial, and Python ignores how much was
            # written.
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            rest = memoryview(data.encode(encoding) if isinstance(data, str) else data)
            while rest:
                rest = rest[raw.write(rest) or 0 :]
            return len(data)

    def flush(self) -> None:
        """Write what is still buffered."""
        with _failures():
            if self._stream is not None:
                self._stream.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream is not None and self._stream.isatty()


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ReaderGone from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise OutputError(f"cannot write to stdout: {reason or error}") from error


@contextlib.contextmanager
def named_failures() -> Iterator[None]:
    """While the body runs, stdout raises OutputError or ReaderGone; it is flushed at the end.

    Otherwise an error of stdout could not be told from one of another file or pipe.
    """
    with contextlib.redirect_stdout(cast(TextIO, _Stdout(sys.stdout))) as guarded:
        yield
        guarded.flush()


def complain(message: str) -> None:
    """Print one line on stderr, if there is one; control characters are escaped."""
    if sys.stderr is None:  # print() would use stdout instead
        return
    line = visible(" ".join(message.split()))
    # The middle is cut out of overlong words, then of an overlong line.
    line = " ".join(_ends(word, _LONGEST_WORD, "...") for word in line.split(" "))
    line = _ends(line, _LONGEST_MESSAGE, " ... ")
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"dsocr-analyze: {line}\n")
        sys.stderr.flush()


_LONGEST_MESSAGE: Final = 480
_LONGEST_WORD: Final = 120


def _ends(text: str, longest: int, gap: str) -> str:
    """The text, shortened to `longest` characters: two thirds from its start, the rest its end."""
    if len(text) <= longest:
        return text
    kept = longest - len(gap)
    start = 2 * kept // 3
    return text[:start] + gap + text[start - kept :]


def drop_unwritable() -> None:
    """Discard output that can't be written, which would raise an error at interpreter exit."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                import os

                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
