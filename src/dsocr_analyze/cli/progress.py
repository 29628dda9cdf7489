"""Work that takes long: its progress on stderr, and the import of torch, with which it begins.

Progress is live on a terminal, and elsewhere in a line now and then.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

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
    if _is_watched():
        from rich.console import Console

        with Console(stderr=True).status("starting") as status:
            yield status.update
    else:
        yield _announced_in_lines() if in_lines else lambda _: None


def _announced_in_lines() -> Callable[[str], None]:
    began = last = time.monotonic()

    def announce(step: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_SECONDS:
            last = now
            complain(f"after {now - began:.0f} s: {step}")

    return announce


class LateProgress(contextlib.ExitStack):
    """A progress bar that appears after a second, and only if stderr is a terminal.

    Args:
        what: What is being counted.
        total: The total number; None if unknown.
    """

    def __init__(self, what: str, total: int | None) -> None:
        super().__init__()
        self._what, self._total, self._done = what, total, 0
        self._begins = time.monotonic() + _PATIENCE_SECONDS
        self._bar: Any = None

    def advance(self, count: int) -> None:
        """Count more of them as done."""
        self._done += count
        if not _is_watched() or time.monotonic() < self._begins:
            return
        if self._bar is None:
            from rich import progress
            from rich.console import Console

            columns = (
                progress.TextColumn("{task.description}"), progress.BarColumn(),
                progress.MofNCompleteColumn(), progress.TimeRemainingColumn(),
            )  # fmt: skip
            self._bar = self.enter_context(
                progress.Progress(
                    *columns, console=Console(stderr=True), transient=True,
                    redirect_stdout=False, redirect_stderr=False,
                )
            )  # fmt: skip
            self._bar.add_task(self._what, total=self._total)
        self._bar.update(self._bar.task_ids[0], completed=self._done)
