"""Temporary changes of process settings, undone afterwards, even on errors.

Other threads see as little of them as torch and Python allow: functions are replaced, and messages
dropped, only for the running thread. Only the default dtype changes for all threads.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, ParamSpec, TypeAlias

import torch

from dsocr_analyze.forking import undone
from dsocr_analyze.running.exclusive import is_running_thread
from dsocr_analyze.running.torch_calls import Result

__all__ = [
    "Owner",
    "answered",
    "default_dtype",
    "quiet_transformers",
    "replaced",
    "unfused_scripts",
]

_ABSENT = object()

_Inputs = ParamSpec("_Inputs")

Owner: TypeAlias = ModuleType | type | torch.nn.Module
"""What has functions as attributes."""


@contextlib.contextmanager
def replaced(owner: Owner, name: str, value: Any) -> Iterator[None]:
    """Sets `owner.name` to `value` temporarily; an inherited attribute is inherited again later."""
    own = vars(owner).get(name, _ABSENT)

    def put_back() -> None:
        if own is not _ABSENT:
            setattr(owner, name, own)
        elif name in vars(owner):
            delattr(owner, name)

    with undone(put_back):
        setattr(owner, name, value)
        yield


@contextlib.contextmanager
def answered(owner: Owner, name: str, answer: Callable[_Inputs, Result]) -> Iterator[None]:
    """Redirects the running thread's calls of `owner.name` to `answer`; other threads' calls stay.

    Args:
        owner: A module or a class.
        name: A function or class method of it; a module may lack it.
        answer: Takes the function's arguments; for a method, the object or class first.
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
    with undone(functools.partial(torch.set_default_dtype, torch.get_default_dtype())):
        torch.set_default_dtype(dtype)
        yield


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silences transformers' warnings about model types and generation, which affect no count."""
    from transformers.utils import logging as messages

    messages.get_verbosity()  # creates its handler if nothing has yet
    handlers = list(_handlers_of(messages.get_logger()))

    def hear_all() -> None:
        for handler in handlers:
            handler.removeFilter(_is_passed_on)

    with undone(hear_all):
        for handler in handlers:
            handler.addFilter(_is_passed_on)
        yield


def _handlers_of(logger: logging.Logger) -> Iterator[logging.Handler]:
    """Every handler that a logger's messages reach."""
    above: logging.Logger | None = logger
    while above is not None:
        yield from above.handlers
        above = above.parent if above.propagate else None


def _is_passed_on(record: logging.LogRecord) -> bool:
    """Whether a message is an error, not from transformers, or from another thread."""
    is_theirs = record.name.partition(".")[0] == "transformers"
    return record.levelno >= logging.ERROR or not is_theirs or not is_running_thread()


@contextlib.contextmanager
def unfused_scripts() -> Iterator[None]:
    """Runs scripted functions operator by operator; a fused kernel would hide its operators."""
    before = torch._C._get_graph_executor_optimize()
    torch._C._set_graph_executor_optimize(False)  # for this thread only
    try:
        yield
    finally:
        torch._C._set_graph_executor_optimize(before)
