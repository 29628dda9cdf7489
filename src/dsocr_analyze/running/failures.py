"""What model code raises, as errors that name its directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from dsocr_analyze.errors import AnalyzeError, DeviceError, ModelCodeError
from dsocr_analyze.model.directory import ModelDirectory

__all__ = ["blamed_on", "is_out_of_memory"]


@contextlib.contextmanager
def blamed_on(directory: ModelDirectory, what: str, device: str = "the device") -> Iterator[None]:
    """Around model code: whatever it raises becomes one line, with what is odd about the config.

    Args:
        directory: Where the code comes from.
        what: What has failed then: "could not be built".
        device: Where it runs.

    Raises:
        DeviceError: The device has not enough memory.
        ModelCodeError: Anything else was raised, `SystemExit` included.
        AnalyzeError: As it is, where the code's question was refused.
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
    """Whether `error` says that a device's memory is full; the CPU's says so in words only."""
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
