"""One model at a time: building or running one changes settings of the whole process.

Settings that can be limited to one thread are; see `process_settings`. A process forked by another
thread starts with nobody's turn, and with all of them undone (`forking.undone`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial

import torch

from dsocr_analyze.forking import is_forked, undone
from dsocr_analyze.interruption import held

__all__ = ["exclusive", "is_running_thread"]

_LOCK = threading.RLock()
_running_thread: int | None = None


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Only one thread at a time runs the body, which builds or runs a model; others wait.

    Reentrant. While the body runs, interruptions wait for a safe point, since settings must be
    restored; while waiting for another thread, they don't. In a forked process, torch computes with
    one thread meanwhile: it would wait forever for those of its parent.
    """
    global _running_thread  # one for the whole process, like the settings
    with _LOCK, held(), contextlib.ExitStack() as stack:
        if is_forked():
            stack.enter_context(undone(partial(torch.set_num_threads, torch.get_num_threads())))
            torch.set_num_threads(1)
        before, _running_thread = _running_thread, threading.get_ident()
        try:
            yield
        finally:
            _running_thread = before


def is_running_thread() -> bool:
    """Whether the current thread is the one that builds or runs a model."""
    return _running_thread == threading.get_ident()


def _start_afresh() -> None:
    """In a forked process, which lacks the thread whose turn it was: it is nobody's turn."""
    global _LOCK, _running_thread
    if not is_running_thread():  # else its turn goes on here, too
        _LOCK, _running_thread = threading.RLock(), None


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_start_afresh)
