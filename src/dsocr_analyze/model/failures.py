"""Turns exceptions of model code into one line: what failed, where, why and what to try."""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import torch

from dsocr_analyze.errors import AnalyzeError, DeviceError, ModelCodeError, UncountableError
from dsocr_analyze.escaping import visible
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.known_values import WITH_VALUES

__all__ = ["blamed_on", "is_out_of_memory"]

_LONGEST: Final = 200
"""Characters of an exception's own text."""

_OF_OTHERS: Final = sys.stdlib_module_names | {"dsocr_analyze", "torch", "utils"}

_WAYS_OUT: Final = (
    ("do not match", "place one token per feature: 'placed' under [prompt] in the stages file"),
    (
        "keyword argument|not used by the model",
        "correct its name under [inputs] in the stages file",
    ),
    ("required positional|specify", "describe what is missing under [inputs] in the stages file"),
    ("", "compare [prompt] and [inputs] in the stages file with what the processor returns"),
)
"""What to try if a stages file describes the model, by a pattern in the exception's text."""


@contextlib.contextmanager
def blamed_on(
    directory: ModelDirectory,
    what: str,
    device: str = "the device",
    module: torch.nn.Module | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Callable[[str], None]]:
    """Turns whatever model code raises into one line, with any doubt about the config.

    Yields what to call instead of `on_progress` with the name of each pass, which errors name.

    Args:
        directory: Directory of the code.
        what: What failed: "could not be built".
        device: Device on which it runs.
        module: The model, if it runs.
        on_progress: Called with the name of each pass as it starts.

    Raises:
        DeviceError: The device is out of memory.
        UncountableError: The trace refused what the model's code does.
        ModelCodeError: Anything else, including `SystemExit`, but other errors of this package,
            which stay as they are.
    """
    running = ""

    def announce(name: str) -> None:
        nonlocal running
        running = name
        on_progress(name)

    try:
        yield announce
    except (Exception, SystemExit) as error:
        refuses = isinstance(error, ModelCodeError | UncountableError)
        if isinstance(error, AnalyzeError) and not refuses:
            raise
        where = visible(", ".join(filter(None, (running, *_place(error, module)))))
        said = f"{where}: {_said(error)}" if where else _said(error)
        if is_out_of_memory(error):
            raise DeviceError(f"{device} has not enough memory: {said}") from error
        kind = UncountableError if isinstance(error, UncountableError) else ModelCodeError
        runs_described = module is not None and directory.described is not None
        way_out = _way_out(error, device, runs_described=runs_described)
        told = f"the model in {str(directory.path)!r} {what}: {said}"
        message = "; ".join(filter(None, (told, way_out, directory.doubt)))
        raise kind(message, arguments=["device='cpu'"]) from error


def _said(error: BaseException) -> str:
    """An exception's class, unless it is of this package, and text on one line."""
    text = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, AnalyzeError):
        return text
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return ": ".join(filter(None, (type(error).__name__, shown)))


def _place(error: BaseException, module: torch.nn.Module | None) -> Iterator[str]:
    """The innermost module that ran or was built, and the innermost line of model code."""
    paths = {} if module is None else {each: path for path, each in module.named_modules()}
    chain = [each for each in (error.__cause__, error) if each is not None]
    frames = [each for one in chain for each in reversed([*traceback.walk_tb(one.__traceback__)])]
    for frame, _ in frames:
        inner = frame.f_locals.get("self")
        if isinstance(inner, torch.nn.Module) and (module is None or inner in paths):
            path, name = paths.get(inner), type(inner).__name__
            yield f"{path} ({name})" if path else name
            break
    for frame, line in frames:
        if _is_the_models(frame):
            yield f"{Path(frame.f_code.co_filename).name}:{line}"
            break


def _is_the_models(frame: FrameType) -> bool:
    """Whether it is in the model's own code, or in transformers but not in its `utils`."""
    name = str(frame.f_globals.get("__name__"))
    root = name.removeprefix("transformers.").partition(".")[0]
    return root not in _OF_OTHERS


def _way_out(error: BaseException, device: str, *, runs_described: bool) -> str:
    """What to try, if known; errors of this package say so themselves."""
    if isinstance(error, AnalyzeError):
        return ""
    text = str(error)
    *known, otherwise = [way for pattern, way in _WAYS_OUT if re.search(pattern, text)]
    if runs_described and known:
        return known[0]
    if device == "meta" and re.search(r"\bmeta\b", text, re.IGNORECASE):
        return WITH_VALUES
    return otherwise if runs_described else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device is out of memory; of the CPU, only the error's text tells."""
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError)
        and any(words in str(error) for words in ("can't allocate memory", "std::bad_alloc"))
    )
