"""SIGINT and SIGTERM, from the first moment of the process to its last. Imports next to nothing."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

__all__ = ["Terminated", "ignore", "listen", "raise_again"]

_received: list[int] = []
"""Signals that arrived since `listen`."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends the work just as Ctrl-C does."""


def listen() -> None:
    """Makes both signals exceptions; for a process that only runs the command line.

    Python ignores, and reports with a traceback, an exception that a signal raises within a
    finalizer or a weak reference's callback. Here the report is left out, and `raise_again` brings
    the exception back.
    """
    for signum in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(signum) != signal.SIG_IGN:  # as nohup and background jobs have it
            signal.signal(signum, _raise)
    sys.unraisablehook = _report_unraisable


def raise_again() -> None:
    """Raises what a signal should have raised where Python ignored it."""
    if _received:
        raise _exception_of(_received[-1])


def ignore() -> None:
    """Ignores interruptions for the rest of the process, which takes milliseconds."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)


def _raise(signum: int, _: FrameType | None) -> None:
    _received.append(signum)
    raise _exception_of(signum)


def _exception_of(signum: int) -> KeyboardInterrupt:
    return Terminated() if signum == signal.SIGTERM else KeyboardInterrupt()


def _report_unraisable(unraisable: Any) -> None:
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
