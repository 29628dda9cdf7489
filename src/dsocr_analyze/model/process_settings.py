"""Temporary changes of process settings, undone even on errors and in forked processes.

Functions are replaced, and messages dropped, only for the running thread. The default dtype changes
for all threads, so only one model is built or run at a time.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TextIO, TypeAlias

import torch
from transformers.utils import logging as transformers_logging

from dsocr_analyze.forking import is_forked, undone
from dsocr_analyze.interruption import held
from dsocr_analyze.model.torch_calls import Result

__all__ = [
    "Owner",
    "answered",
    "default_dtype",
    "discarding_stdout",
    "exclusive",
    "is_running_thread",
    "quiet_transformers",
    "replaced",
]


_LOCK = threading.RLock()
_running_thread: int | None = None


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Only one thread at a time runs the body, which builds or runs a model; others wait.

    Reentrant. In the body, interruptions wait for a safe point.
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
    """The body has torch's own default type and no modes, but those of other code that watch."""
    fake = torch._C._unset_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))  # its tensors have no versions
            for device in ("cpu", "cuda"):
                stack.callback(
                    torch.set_autocast_enabled, device, torch.is_autocast_enabled(device)
                )
                torch.set_autocast_enabled(device, False)
            stack.enter_context(default_dtype(torch.float32))
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
    """A forked process lacks the thread whose turn it was."""
    global _LOCK, _running_thread
    if not is_running_thread():  # else its turn goes on here, too
        _LOCK, _running_thread = threading.RLock(), None


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_start_afresh)


_Inputs = ParamSpec("_Inputs")

Owner: TypeAlias = ModuleType | type | torch.nn.Module
"""What has functions as attributes."""


@contextlib.contextmanager
def replaced(owner: Owner, name: str, value: Any) -> Iterator[None]:
    """Sets `owner.name` to `value` meanwhile; an inherited attribute is inherited again later."""
    own = vars(owner)
    is_own = name in own
    put_back = partial(setattr, owner, name, own[name]) if is_own else partial(_forget, owner, name)
    with undone(put_back):
        setattr(owner, name, value)
        yield


def _forget(owner: Owner, name: str) -> None:
    if name in vars(owner):
        delattr(owner, name)


@contextlib.contextmanager
def answered(owner: Owner, name: str, answer: Callable[_Inputs, Result]) -> Iterator[None]:
    """Redirects the running thread's calls of `owner.name`, if there is one, to `answer`.

    It takes the class first if that is a class method.
    """
    own: Any = vars(owner).get(name)
    is_class_method = isinstance(own, classmethod)
    original: Callable[_Inputs, Result] | None
    original = own.__func__ if is_class_method else getattr(owner, name, None)

    def either(*args: _Inputs.args, **kwargs: _Inputs.kwargs) -> Result:
        if is_running_thread():
            return answer(*args, **kwargs)
        if original is None:
            raise NameError(f"name {name!r} is not defined")
        result: Result = original(*args, **kwargs)
        return result

    if original is not None:
        functools.update_wrapper(either, original)
    stand_in: Any = either
    with replaced(owner, name, classmethod(stand_in) if is_class_method else stand_in):
        yield


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Sets the default dtype of new tensors to `dtype`, in every thread."""
    with undone(partial(torch.set_default_dtype, torch.get_default_dtype())):
        torch.set_default_dtype(dtype)
        yield


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silences transformers' warnings, which affect no count."""
    transformers_logging.get_verbosity()  # creates its handler if nothing has yet
    logger: logging.Logger | None = transformers_logging.get_logger()
    with contextlib.ExitStack() as stack:
        while logger is not None:  # every one that its messages reach
            for handler in logger.handlers:
                stack.enter_context(undone(partial(handler.removeFilter, _is_passed_on)))
                handler.addFilter(_is_passed_on)
            logger = logger.parent if logger.propagate else None
        yield


def _is_passed_on(record: logging.LogRecord) -> bool:
    """Whether a message is an error, not transformers', or another thread's."""
    is_theirs = record.name.partition(".")[0] == "transformers"
    return record.levelno >= logging.ERROR or not is_theirs or not is_running_thread()


@dataclass(eq=False)
class _Stdout:
    """Drops the running thread's output; other threads keep the original stream."""

    stream: TextIO | None
    nowhere: TextIO

    def __getattr__(self, name: str) -> Any:
        is_heard = self.stream is not None and not is_running_thread()
        return getattr(self.stream if is_heard else self.nowhere, name)


@contextlib.contextmanager
def discarding_stdout() -> Iterator[None]:
    """Drops what the running thread writes to stdout."""
    streams = vars(sys)
    original = streams["stdout"]
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        stand_in = _Stdout(original, nowhere)

        def put_back() -> None:
            if streams["stdout"] is stand_in:  # otherwise another thread has replaced it by now
                streams["stdout"] = original

        with undone(put_back):
            streams["stdout"] = stand_in
            yield
