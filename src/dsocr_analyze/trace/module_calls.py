"""Runs a module or function on its own under the recorder, and keeps what each call did."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from dsocr_analyze.model.forward import running
from dsocr_analyze.model.generation import left_as_it_was
from dsocr_analyze.model.torch_calls import Arguments, Function, Keywords, Value, tensors_in
from dsocr_analyze.trace.passes import recorded_flash_attention
from dsocr_analyze.trace.record import Trace, TracedCall
from dsocr_analyze.trace.recorder import Recorder
from dsocr_analyze.trace.repetition import Alike

__all__ = ["CallRecorder", "FunctionModule", "trace_calls", "trace_module"]


class CallRecorder(Recorder):
    """Keeps the trace's `modules`; of equal calls that run once, the first."""

    def _run_in_full(
        self, path: str, forward: Function, args: Arguments, kwargs: Keywords
    ) -> Value:
        with self._own_trace(path) as trace:
            output = super()._run_in_full(path, forward, args, kwargs)
        with torch._C.DisableTorchFunction():
            returned = output.values() if isinstance(output, dict) else (output,)
            given = inspect.signature(forward).bind(*args, **kwargs).arguments | kwargs
            trace.modules.setdefault(path, []).append(
                TracedCall(
                    tuple(trace.kernels),
                    trace.peak.nbytes,
                    _cache_bytes(getattr(forward, "__self__", None), given, output),
                    _shapes_of(given | {"returned": next(tensors_in(returned), None)}),
                )
            )
        return output


def _shapes_of(values: Keywords) -> dict[str, tuple[int, ...]]:
    """Shapes of those values that are tensors."""
    return {
        name: tuple(value.shape)
        for name, value in values.items()
        if isinstance(value, torch.Tensor)
    }


def _cache_bytes(module: torch.nn.Module | None, given: Keywords, output: Value) -> int:
    """Bytes of keys and values in a call's cache, or of the module's own layer of it."""
    cache = given.get("past_key_value", given.get("past_key_values"))
    if cache is None:
        cache = getattr(output, "past_key_values", None)
    if cache is None:
        return 0
    index = getattr(getattr(module, "self_attn", module), "layer_idx", None)
    pairs = list(cache) if index is None else [cache[index]]
    return sum(tensor.numel() * tensor.element_size() for pair in pairs for tensor in pair)


class FunctionModule(torch.nn.Module):
    """A function as a module, to be traced like one."""

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
    """Runs one call under the recorder; returns the trace and the module's output.

    Args:
        module: Any module.
        device: Device of its parameters and inputs.
        *args: Positional arguments of its forward.
        repeats: As in `trace_passes`.
        **kwargs: Keyword arguments of its forward.
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
    """The same for several calls, by their keyword arguments."""
    recorder = CallRecorder(module, repeats if device.type == "meta" else None)
    flash = recorded_flash_attention(recorder)
    with left_as_it_was(module), running(device, flash, assign=recorder.assign), recorder:
        return [(recorder.begin(), module(*args, **kwargs)) for kwargs in calls]
