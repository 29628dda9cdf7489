"""Delays SIGINT and SIGTERM, so that none strikes at a harmful moment or gets lost.

A signal handler may raise anywhere in the main thread: in clean-up code, which then never finishes,
or in a finalizer or weak reference's callback, whose exceptions Python drops. So in a `held` block,
which has something to restore, an interruption waits for the next `safe_point`, at most a second.
It is then raised at every safe point and at the end of the block, even if other code swallows it.

Works with any handler, Python's own or a program's. Imports next to nothing.
"""

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

PATIENCE_SECONDS: Final = 1.0
"""Longest wait for a safe point, which running code may never reach."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends the work just as Ctrl-C does."""


# --- in a process of our own -----------------------------------------------------------------


def listen() -> None:
    """Turns both signals into exceptions; only in a process that runs the command line."""
    for signum in _SIGNALS:
        if signal.getsignal(signum) != signal.SIG_IGN:  # nohup and background jobs ignore SIGINT
            signal.signal(signum, _raise)
    sys.unraisablehook = _report_unraisable


def ignore() -> None:
    """Ignores interruptions in the process's last milliseconds."""
    for signum in _SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


_before_any_watch: list[BaseException] = []
"""What `_raise` raised outside any watch; Python may have dropped it."""


def _raise(signum: int, _: FrameType | None) -> None:
    error = Terminated() if signum == signal.SIGTERM else KeyboardInterrupt()
    if _watch is None:
        _before_any_watch.append(error)
    raise error


def _report_unraisable(unraisable: Any) -> None:
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):  # which is raised again later
        sys.__unraisablehook__(unraisable)


# --- waiting ---------------------------------------------------------------------------------


class _Watch:
    """Stands in for the handlers of both signals while something is held.

    Attributes:
        holds: Whether an interruption has to wait.
        is_final: Whether until the outermost `held` block ends.
        raised: What a handler has raised.
    """

    def __init__(self) -> None:
        self.holds = True
        self.is_final = False
        self.raised = _before_any_watch.pop() if _before_any_watch else None
        self.handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self.thread = threading.get_ident()
        self._waiting: tuple[int, float] | None = None
        """The pending signal and when it arrived."""

    def put_back(self) -> None:
        """Puts the handlers back, unless one raises."""
        for signum, handler in self.handlers.items():
            signal.signal(signum, handler)

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """The handler of both signals."""
        if self.holds:
            now = time.monotonic()
            if self._waiting is None:
                self._waiting = signum, now
                with contextlib.suppress(RuntimeError):  # no more threads: no reminder
                    _thread.start_new_thread(self._remind, (signal.Signals(signum),))
                return
            # Ctrl-C often arrives twice: from the terminal and from the parent process.
            if self.is_final or now - self._waiting[1] < PATIENCE_SECONDS:
                return
        self._deliver(signum, frame)

    def _remind(self, signum: signal.Signals) -> None:
        """Sends the signal again, which also ends a system call."""
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
            self.handlers[signum](signum, frame)
        except BaseException as error:
            self.raised = error
            _before_any_watch.clear()
            raise

    def answer(self) -> None:
        """Handles a pending signal; raises what a handler raised, now or earlier."""
        if self._waiting is not None:
            self._deliver(self._waiting[0], sys._getframe())
        if self.raised is not None and sys.exception() is not self.raised:
            raise self.raised


_watch: _Watch | None = None


def _end_left_behind() -> None:
    """In a forked process without the thread that held something."""
    global _watch
    if _watch is not None and _watch.thread != threading.get_ident():
        left_behind, _watch = _watch, None
        left_behind.put_back()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_end_left_behind)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """While the body runs, an interruption waits for a safe point or the body's end.

    Enter it before changing what must be restored. Does nothing outside the main thread.
    """
    global _watch  # handlers belong to the process, and so does the watch
    watch = _watch
    if threading.get_ident() != threading.main_thread().ident:
        yield
    elif watch is not None:
        was_holding, watch.holds = watch.holds, True
        try:
            yield
        finally:
            watch.holds = was_holding
            if not was_holding:
                watch.is_final = False
                watch.answer()
    else:
        watch = _Watch()
        try:
            for signum in _SIGNALS:
                handler = signal.getsignal(signum)
                if callable(handler):  # a Python function
                    watch.handlers[signum] = handler
                    signal.signal(signum, watch.handle)
            _watch = watch
            yield
        finally:
            _watch = None
            try:
                watch.put_back()
            except BaseException:  # a handler that is back raised before the other was
                watch.put_back()
                raise
            watch.answer()


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Like `held` to the body's end: for what may not be half done, as loading an extension."""
    with held():
        watch = _watch
        if watch is None or watch.thread != threading.get_ident():
            yield
            return
        was_final, watch.is_final = watch.is_final, True
        try:
            yield
        finally:
            watch.is_final = was_final


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within a `held` block, a body that an interruption may strike."""
    watch = _watch
    if watch is None or watch.thread != threading.get_ident():
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
    """Raises a pending interruption, where `held` work can be left; takes under a microsecond."""
    watch = _watch
    if watch is not None and watch.thread == threading.get_ident() and not watch.is_final:
        watch.answer()


def point_of_no_return() -> None:
    """The last safe point of a `held` block, whose rest must not be split."""
    safe_point()
    if _watch is not None and _watch.thread == threading.get_ident():
        _watch.is_final = _watch.holds
