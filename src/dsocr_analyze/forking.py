"""Forks: a forked process finds nothing half done by the threads that it does not have.

Of all threads, only the one that forks exists in the new process. Another's locks would stay held
there, and its temporary changes of the process would stay in force.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

__all__ = ["is_forked", "undone"]

_changes: list[tuple[int, Callable[[], None]]] = []
"""By thread, what undoes each change of the process in force, the latest last."""

_is_forked = False


def is_forked() -> bool:
    """Whether this process was forked after this package had been imported."""
    return _is_forked


@contextlib.contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Calls `undo` after the body, which changes something of the whole process.

    A process that another thread forks meanwhile calls it at once, as the body never ends there.
    So it may be called before the change, or twice.
    """
    change = threading.get_ident(), undo
    _changes.append(change)
    try:
        yield
    finally:
        undo()
        _changes.remove(change)


def _undo_changes_of_other_threads() -> None:
    global _is_forked  # the process is
    _is_forked, here = True, threading.get_ident()
    for change in reversed(tuple(_changes)):
        if change[0] != here:
            change[1]()
            _changes.remove(change)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_undo_changes_of_other_threads)
