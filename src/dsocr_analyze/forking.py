"""Forks: a forked process finds nothing half done by threads that it does not have.

It has only the thread that forks; locks and temporary changes of others would stay in force.
Python's locks on modules that another thread is importing cannot be freed: a fork waits for those
imports.
"""

import concurrent.futures.thread  # noqa: F401  # see `_wait_for_imports`
import contextlib
import logging  # noqa: F401  # likewise
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import cached_property
from typing import Any, Final

NUMPY_THREADS: Final = "GOTO_NUM_THREADS"
ONE_THREAD: Final = "01"
"""What a command sets it to, until it imports torch; a user would write 1, which stays."""

_MOST_SECONDS: Final = 60.0
"""Longest wait of a fork; two threads might wait for each other."""

_changes: list[tuple[int, Callable[[], None]]] = []
"""Thread and undoing function of each change in force, the latest last."""

_importing: list[int] = []
"""Threads that import something, once per import."""

_imports = threading.Condition()

_is_forked = False


def is_forked() -> bool:
    """Whether this process was forked after this package was imported."""
    return _is_forked


def other_process(first: Callable[[], None] | None = None, *, number: int = 1) -> Executor:
    """Another process, which begins with `first`, or a thread where none can be forked safely.

    With a `number`, it is so many processes, all forked at the first call.
    """
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    from multiprocessing import get_context

    if sys.platform != "linux":
        return ThreadPoolExecutor(1)
    process = ProcessPoolExecutor(number, get_context("fork"))
    if first is not None:
        process.submit(first)
    return process


@contextlib.contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Calls `undo` after the body, which changes something of the whole process.

    A process that another thread forks meanwhile calls it at once, perhaps before the change or
    twice.
    """
    change = threading.get_ident(), undo
    _changes.append(change)
    try:
        yield
    finally:
        undo()
        _changes.remove(change)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Other threads fork only after the body, which imports modules."""
    with _imports:
        _importing.append(threading.get_ident())
    try:
        yield
    finally:
        with _imports:
            _importing.remove(threading.get_ident())
            _imports.notify_all()


def _wait_for_imports() -> None:
    """Before a fork: waits for imports, and lets none begin until it is over.

    Hooks run in reverse order: those of the modules imported above take locks that an import may
    need.
    """
    _imports.acquire()
    here = threading.get_ident()
    _imports.wait_for(lambda: all(each == here for each in _importing), _MOST_SECONDS)


def _start_afresh() -> None:
    """In a forked process: undoes the changes of threads that it lacks."""
    global _imports, _is_forked  # they are the process's
    _imports, _is_forked, here = threading.Condition(), True, threading.get_ident()
    _importing[:] = [each for each in _importing if each == here]
    for lazy in _cached_properties():
        lazy.lock = threading.RLock()
    for change in reversed(tuple(_changes)):
        if change[0] != here:
            change[1]()
            _changes.remove(change)


def _cached_properties() -> Iterator[Any]:
    """Before Python 3.12, each has one lock for all objects."""
    if sys.version_info >= (3, 12):
        return
    for name, module in tuple(sys.modules.items()):
        if name.startswith("dsocr_analyze.") and module is not None:
            for found in tuple(vars(module).values()):
                if isinstance(found, type):
                    parts = tuple(vars(found).values())
                    yield from (each for each in parts if isinstance(each, cached_property))


if sys.platform != "win32":
    os.register_at_fork(
        before=_wait_for_imports,
        after_in_parent=lambda: _imports.release(),
        after_in_child=_start_afresh,
    )
