"""One model at a time: building or running one changes settings of the whole process.

Settings that can be limited to one thread are; see `process_settings`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from dsocr_analyze.interruption import held

__all__ = ["exclusive", "is_running_thread"]

_LOCK = threading.RLock()
_running_thread: int | None = None


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Only one thread at a time runs the body, which builds or runs a model; others wait.

    Reentrant. While the body runs, interruptions wait for a safe point, since settings must be
    restored; while waiting for another thread, they don't.
    """
    global _running_thread  # one for the whole process, like the settings
    with _LOCK, held():
        before, _running_thread = _running_thread, threading.get_ident()
        try:
            yield
        finally:
            _running_thread = before


def is_running_thread() -> bool:
    """Whether the current thread is the one that builds or runs a model."""
    return _running_thread == threading.get_ident()
