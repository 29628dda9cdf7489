"""Progress on stderr: live on a terminal, and elsewhere in a line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from dsocr_analyze.cli.streams import complain

__all__ = ["LateProgress", "announced_steps"]

_PATIENCE_SECONDS = 1.0
_LINE_SECONDS = 10.0


def _is_watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def announced_steps(*, in_lines: bool = False) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows the current step.

    Args:
        in_lines: Where stderr is no terminal, print the step in a line now and then.
    """
    if not _is_watched():
        yield _announced_in_lines() if in_lines else lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update


def _announced_in_lines() -> Callable[[str], None]:
    began = last = time.monotonic()

    def announce(step: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_SECONDS:
            last = now
            complain(f"after {now - began:.0f} s: {step}")

    return announce


class LateProgress:
    """A progress bar that appears after a second, and only if stderr is a terminal.

    Args:
        what: What is being counted.
        total: The total number; None if unknown.
    """

    def __init__(self, what: str, total: int | None) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._is_watched = _is_watched()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """Count more of them as done."""
        self._done += count
        if not self._is_watched or time.monotonic() - self._started < _PATIENCE_SECONDS:
            return
        if self._bar is None:
            self._start()
        self._bar.update(self._task, completed=self._done)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._bar.start()
        self._task = self._bar.add_task(self._what, total=self._total)
