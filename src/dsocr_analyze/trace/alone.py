"""Traces one module, or one function, alone: outside any model, with inputs of stated shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsocr_analyze.running.forward import running
from dsocr_analyze.trace.passes import recorded_flash_attention
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder
from dsocr_analyze.trace.repetition import Alike

__all__ = ["FunctionModule", "trace_alone"]


class FunctionModule(torch.nn.Module):
    """A function as a module, so that it can be traced like one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        return self._function(*args, **kwargs)


def trace_alone(
    module: torch.nn.Module,
    device: torch.device,
    *args: Any,
    repeats: Alike | None = None,
    **kwargs: Any,
) -> tuple[Trace, Any]:
    """One call under the recorder.

    Args:
        module: Any module.
        device: Where its parameters are and its inputs come from.
        *args: Arguments of its forward.
        repeats: Which of its modules are alike: on `meta`, equal calls of these are recorded once.
            None runs every module.
        **kwargs: The same by keyword.

    Returns:
        The trace, and what the module returned.
    """
    recorder = Recorder(module, repeats if device.type == "meta" else None)
    flash = recorded_flash_attention(recorder)
    with running(device, flash), recorder:
        trace = recorder.begin()
        output = module(*args, **kwargs)
    return trace, output
