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
    restored; while waiting for another thread, they don't.
    """
    global _running_thread  # one for the whole process, like the settings
    with _LOCK, held():
        before, _running_thread = _running_thread, threading.get_ident()
        try:
            with contextlib.nullcontext() if before else _as_torch_starts():
                yield
        finally:
            _running_thread = before


@contextlib.contextmanager
def _as_torch_starts() -> Iterator[None]:
    """Whatever the caller has chosen, the body has torch's own default type, and no mode.

    Only modes of other code that watch what runs stay.
    """
    fake = torch._C._unset_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))  # its tensors have no versions
            for device in ("cpu", "cuda"):
                stack.callback(
                    torch.set_autocast_enabled, device, torch.is_autocast_enabled(device)
                )
                torch.set_autocast_enabled(device, False)
            stack.enter_context(undone(partial(torch.set_default_dtype, torch.get_default_dtype())))
            torch.set_default_dtype(torch.float32)
            if is_forked():  # torch would wait forever for the threads of the parent process
                stack.enter_context(undone(partial(torch.set_num_threads, torch.get_num_threads())))
                torch.set_num_threads(1)
            yield
    finally:
        if fake is not None:
            torch._C._set_dispatch_mode(fake)


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
