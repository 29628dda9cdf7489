"""One model at a time: building and running one changes settings of the whole process.

What of them can be made to depend on the thread does: see `process_settings`.
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
    """The body builds or runs a model; other threads wait for its end before they do.

    A thread may enter it again. Interruptions wait for a safe point, as settings have to be put
    back; while another thread is waited for, they don't.
    """
    global _running_thread  # there is one for the whole process, as for settings
    with _LOCK, held():
        before, _running_thread = _running_thread, threading.get_ident()
        try:
            yield
        finally:
            _running_thread = before


def is_running_thread() -> bool:
    """Whether it is this thread that builds or runs a model."""
    return _running_thread == threading.get_ident()
