"""The two streams: results on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol, TypeAlias

from dsocr_analyze.errors import OutputError
from dsocr_analyze.escaping import LOOK_ALIKES, visible, visible_lines

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
    """stdout that escapes control characters and what its encoding lacks, with errors of its own.

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
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        if isinstance(data, str):
            text = data if self.is_styled else visible_lines(data)
            data = text.encode(encoding, LOOK_ALIKES).decode(encoding)
        with _failures():
            if self.stream is None:
                raise OSError(0, "it is closed")
            raw = getattr(self.stream, "buffer", self.stream)
            if not isinstance(raw, io.RawIOBase):
                return self.stream.write(data)
            # Unbuffered (`python -u`): a write may be partial, and Python ignores that.
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
        sys.stderr.write(f"{_CLEARED if _is_drawn else ''}dsocr-analyze: {line}\n")
        sys.stderr.flush()


def _ends(text: str, longest: int, gap: str) -> str:
    """Two thirds from the start, the rest from the end."""
    if len(text) <= longest:
        return text
    kept = longest - len(gap)
    return text[: 2 * kept // 3] + gap + text[2 * kept // 3 - kept :]


# --- progress -------------------------------------------------------------------------------------

_PATIENCE_SECONDS = 1.0
"""Before a terminal shows anything."""
_FIRST_LINE_SECONDS = 10.0
"""Before the first line where there is no terminal; each next one comes after twice the time."""
_LONGEST_SILENCE_SECONDS: Final = 300.0
_TICK_SECONDS = 0.5
_WITHOUT_SIZE: Final = 80
"""Columns of a terminal that does not say how many it has."""
_CLEARED: Final = "\r\x1b[2K"
"""Clears a terminal's line."""

_is_drawn = False
"""Whether a terminal's last line shows progress."""

Share: TypeAlias = float | Callable[[], float | None] | None
"""Of all work that is done, or what finds it out once it is shown; None where it is unknown."""


class Announce(Protocol):
    """What shows a step."""

    def __call__(self, step: str, share: Share = None, /) -> None:
        """Shows what begins, and from the share that is done how long the rest takes."""


class Progress:
    """What a long work does, for how long it has run, and how much longer it takes if known.

    A terminal shows it in one line, which is drawn again and again; a file or a pipe gets a line
    ever more seldom.
    """

    def __init__(
        self,
        ends: float | None = None,
        *,
        is_watched: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ends, self._is_watched, self._clock = ends, is_watched, clock
        self._began = clock()
        self._due = self._began + (_PATIENCE_SECONDS if is_watched else _FIRST_LINE_SECONDS)
        self._step = ""
        self._first: tuple[float, float] | None = None  # when the first share was known, and it
        self._lock = threading.Lock()

    def __call__(self, step: str, share: Share = None, /) -> None:
        """As in `Announce`."""
        self._step, now = step, self._clock()
        if callable(share):  # finding it out may take time, which a short work needs not
            share = share() if now - self._began >= _PATIENCE_SECONDS else None
        if share is not None:
            since, before = self._first = self._first or (now, share)
            if share > before:
                self._ends = now + (now - since) * (1 - share) / (share - before)
        self.tick()

    def tick(self) -> None:
        """Shows the step, if it is time."""
        with self._lock:
            now = self._clock()
            if not self._step or now < self._due:
                return
            line = f"{self._step}; {_duration(now - self._began)} so far"
            if self._ends is not None:
                line += f", about {_duration(self._ends - now)} left"
            if self._is_watched:
                self._due = now + _TICK_SECONDS / 2
                _draw(line)
            else:
                self._due = now + min(now - self._began, _LONGEST_SILENCE_SECONDS)
                complain(line)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _draw(line: str) -> None:
    """Replaces what was drawn before, if the terminal is still there; with "", clears it."""
    global _is_drawn
    _is_drawn, columns = bool(line), 0
    with contextlib.suppress(OSError, ValueError):
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(_CLEARED + visible(line)[: (columns or _WITHOUT_SIZE) - 1])
        sys.stderr.flush()


@contextlib.contextmanager
def announced_steps(*, is_quiet: bool, ends: float | None = None) -> Iterator[Announce]:
    """Yields what shows the steps of the body on stderr, as `Progress` does; the line is then gone.

    `ends` is the time of `time.monotonic()` at which it is to end, if that is known.
    """
    if is_quiet or sys.stderr is None:
        yield lambda step, share=None: None
        return
    is_watched = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    progress, is_over = Progress(ends, is_watched=is_watched), threading.Event()

    def keep_on() -> None:
        while not is_over.wait(_TICK_SECONDS):
            progress.tick()

    ticking = threading.Thread(target=keep_on, daemon=True)
    try:
        with contextlib.suppress(RuntimeError):  # no more threads: it shows when a step begins
            ticking.start()
        yield progress
    finally:
        is_over.set()
        if ticking.ident is not None:
            ticking.join()
        if _is_drawn:
            _draw("")
