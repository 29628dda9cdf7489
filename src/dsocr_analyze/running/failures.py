"""Turns exceptions of model code into errors that name its directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from dsocr_analyze.errors import AnalyzeError, DeviceError, ModelCodeError
from dsocr_analyze.model.directory import ModelDirectory

__all__ = ["blamed_on", "is_out_of_memory"]


@contextlib.contextmanager
def blamed_on(directory: ModelDirectory, what: str, device: str = "the device") -> Iterator[None]:
    """Turns whatever model code raises into one line, with any doubt about the config.

    Args:
        directory: Directory of the code.
        what: What failed: "could not be built".
        device: Device on which it runs.

    Raises:
        DeviceError: The device is out of memory.
        ModelCodeError: Anything else was raised, including `SystemExit`.
        AnalyzeError: Errors of this package are raised unchanged.
    """
    try:
        yield
    except AnalyzeError:
        raise
    except (Exception, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        doubt = f"; {directory.doubt}" if directory.doubt else ""
        if is_out_of_memory(error):
            raise DeviceError(f"{device} has not enough memory: {first_line}") from error
        raise ModelCodeError(
            f"the model in {str(directory.path)!r} {what}: {type(error).__name__}: {first_line}"
            f"{doubt}"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that a device is out of memory; on the CPU only its text tells."""
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError)
        and any(words in str(error) for words in ("can't allocate memory", "std::bad_alloc"))
    )
