"""Traces one module or function on its own, outside any model, with inputs of given shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dsocr_analyze.running.forward import running
from dsocr_analyze.running.generation import left_as_it_was
from dsocr_analyze.running.torch_calls import Function, Keywords
from dsocr_analyze.trace.module_calls import CallRecorder
from dsocr_analyze.trace.passes import recorded_flash_attention
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.repetition import Alike

__all__ = ["FunctionModule", "trace_calls", "trace_module"]


class FunctionModule(torch.nn.Module):
    """Wraps a function as a module, so that it can be traced like one."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.forward = function


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
        The trace, with the calls of every module, and what the module returned.
    """
    ((trace, output),) = trace_calls(module, device, [kwargs], repeats, *args)
    return trace, output


def trace_calls(
    module: torch.nn.Module,
    device: torch.device,
    calls: Sequence[Keywords],
    repeats: Alike | None = None,
    *args: Any,
) -> list[tuple[Trace, Any]]:
    """As `trace_module`, for several calls, each with its keyword arguments."""
    recorder = CallRecorder(module, repeats if device.type == "meta" else None)
    flash = recorded_flash_attention(recorder)
    with left_as_it_was(module), running(device, flash), recorder:
        return [(recorder.begin(), module(*args, **kwargs)) for kwargs in calls]
