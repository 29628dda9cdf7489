"""Traces one module or function on its own, outside any model, with inputs of given shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsocr_analyze.running.forward import running
from dsocr_analyze.trace.passes import recorded_flash_attention
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder
from dsocr_analyze.trace.repetition import Alike

__all__ = ["FunctionModule", "trace_module"]


class FunctionModule(torch.nn.Module):
    """Wraps a function as a module, so that it can be traced like one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the function returns."""
        return self._function(*args, **kwargs)


def trace_module(
    module: torch.nn.Module,
    device: torch.device,
    *args: Any,
    repeats: Alike | None = None,
    **kwargs: Any,
) -> tuple[Trace, Any]:
    """Runs one call under the recorder.

    Args:
        module: Any module.
        device: Device of its parameters and inputs.
        *args: Positional arguments of its forward.
        repeats: Maps module paths to the name that equal modules share; on `meta`, their equal
            calls are recorded once. None runs every module.
        **kwargs: Keyword arguments of its forward.

    Returns:
        The trace, and what the module returned.
    """
    recorder = Recorder(module, repeats if device.type == "meta" else None)
    flash = recorded_flash_attention(recorder)
    with running(device, flash), recorder:
        trace = recorder.begin()
        output = module(*args, **kwargs)
    return trace, output
