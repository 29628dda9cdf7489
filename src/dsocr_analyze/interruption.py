"""Interruptions, SIGINT and SIGTERM: none strikes where it would do harm, and none is lost.

A signal's handler may raise between any two steps of the main thread: within somebody's clean-up,
which then stays undone, or within a finalizer or a weak reference's callback, whose exceptions
Python drops. So while something is `held` that must be put back or finished, an interruption waits
for the next `safe_point`, a second at most. One that has been raised is raised again at every safe
point and at the end of what is held, whatever was done to it in between.

This works with any handler, Python's own or a program's. Imports next to nothing.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

__all__ = [
    "Terminated",
    "held",
    "ignore",
    "interruptible",
    "kept_out",
    "listen",
    "point_of_no_return",
    "safe_point",
]

PATIENCE_SECONDS: Final = 1.0
"""So long an interruption waits for a safe point; what runs then may never reach one."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_Handler = Callable[[int, FrameType | None], Any]


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends the work just as Ctrl-C does."""


# --- a process of the project's own ----------------------------------------------------------


def listen() -> None:
    """Makes both signals exceptions; for a process that only runs the command line."""
    for signum in _SIGNALS:
        if signal.getsignal(signum) != signal.SIG_IGN:  # as nohup and background jobs have it
            signal.signal(signum, _raise)
    sys.unraisablehook = _report_unraisable


def ignore() -> None:
    """Ignores interruptions for the rest of the process, which takes milliseconds."""
    for signum in _SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


_before_any_watch: list[BaseException] = []
"""What `_raise` has raised while nobody watched; Python may have dropped it."""


def _raise(signum: int, _: FrameType | None) -> None:
    error = Terminated() if signum == signal.SIGTERM else KeyboardInterrupt()
    if _watch is None:
        _before_any_watch.append(error)
    raise error


def _report_unraisable(unraisable: Any) -> None:
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):  # which is raised again
        sys.__unraisablehook__(unraisable)


# --- waiting ---------------------------------------------------------------------------------


class _Watch:
    """Stands before the handlers of both signals.

    Attributes:
        holds: Whether an interruption waits now.
        is_final: Whether it waits until everything that is held has ended.
        raised: What a handler has raised.
    """

    def __init__(self) -> None:
        self.holds = True
        self.is_final = False
        self.raised = _before_any_watch.pop() if _before_any_watch else None
        self._handlers: dict[int, _Handler] = {}
        self._waiting: tuple[int, float] | None = None
        """A signal, and when it came."""

    def install(self) -> None:
        """Takes the place of the handlers; of those that are Python functions."""
        for signum in _SIGNALS:
            handler = signal.getsignal(signum)
            if callable(handler):
                self._handlers[signum] = handler
                signal.signal(signum, self._handle)

    def remove(self) -> None:
        """Puts the handlers back."""
        try:
            self._put_back()
        except BaseException:  # one that was back already has raised before the other was
            self._put_back()
            raise

    def _put_back(self) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.holds:
            now = time.monotonic()
            if self._waiting is None:
                self._waiting = signum, now
                with contextlib.suppress(RuntimeError):  # no more threads: it waits on
                    _thread.start_new_thread(self._remind, (signal.Signals(signum),))
                return
            # Ctrl-C often comes twice: from the terminal, and from the program that started this.
            if self.is_final or now - self._waiting[1] < PATIENCE_SECONDS:
                return
        self._deliver(signum, frame)

    def _remind(self, signum: signal.Signals) -> None:
        """Sends the signal again when patience is over, which also ends a system call."""
        time.sleep(PATIENCE_SECONDS)
        if _watch is self and self._waiting is not None:
            if hasattr(signal, "pthread_kill"):
                main = threading.main_thread().ident
                assert main is not None, "it runs"
                signal.pthread_kill(main, signum)
            else:
                _thread.interrupt_main(signum)

    def _deliver(self, signum: int, frame: FrameType | None) -> None:
        self._waiting = None
        try:
            self._handlers[signum](signum, frame)
        except BaseException as error:
            self.raised = error
            _before_any_watch.clear()
            raise

    @property
    def is_struck(self) -> bool:
        """Whether there is anything to answer."""
        return self._waiting is not None or self.raised is not None

    def answer(self) -> None:
        """Lets a waiting signal's handler act; raises what one has raised, now or before."""
        if self._waiting is not None:
            self._deliver(self._waiting[0], sys._getframe())
        if self.raised is not None and sys.exception() is not self.raised:
            raise self.raised


_watch: _Watch | None = None


def _is_main_thread() -> bool:
    """Whether this is the thread in which handlers run."""
    return threading.get_ident() == threading.main_thread().ident


@contextlib.contextmanager
def held() -> Iterator[None]:
    """While the body runs, an interruption waits for a safe point or the body's end.

    Enter it before whatever must be put back, and leave it after that. Elsewhere than in the main
    thread it does nothing: no handler ever runs there.
    """
    watch = _watch
    if not _is_main_thread():
        yield
    elif watch is None:
        with _watched():
            yield
    else:
        was_holding, watch.holds = watch.holds, True
        try:
            yield
        finally:
            watch.holds = was_holding
            if not was_holding:
                watch.is_final = False
                watch.answer()


@contextlib.contextmanager
def kept_out() -> Iterator[None]:
    """While the body runs, an interruption waits for its end, however long that takes.

    For what an exception at the wrong moment would make abort: the start-up of an extension module.
    """
    with held():
        watch = _watch
        if watch is None or not _is_main_thread():
            yield
            return
        was_final, watch.is_final = watch.is_final, True
        try:
            yield
        finally:
            watch.is_final = was_final


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    global _watch  # handlers are the process's, and so is who stands before them
    watch = _Watch()
    try:
        watch.install()
        _watch = watch
        yield
    finally:
        _watch = None
        watch.remove()
        watch.answer()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within something `held`: the body holds nothing, and an interruption may strike anywhere."""
    watch = _watch
    if watch is None or not _is_main_thread():
        yield
        return
    was_holding = watch.holds
    safe_point()
    try:
        watch.holds = False
        yield
    finally:
        watch.holds = was_holding


def safe_point() -> None:
    """Where what is held can be left as after any error: an interruption that waits is raised.

    To be called often; it takes less than a microsecond.
    """
    watch = _watch
    if watch is not None and watch.is_struck and not watch.is_final and _is_main_thread():
        watch.answer()


def point_of_no_return() -> None:
    """The last safe point of what is held: what follows belongs together, and is soon over."""
    safe_point()
    if _watch is not None and _is_main_thread():
        _watch.is_final = _watch.holds
