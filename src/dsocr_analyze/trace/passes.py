"""Runs under the recorder: the passes of a page, or a module or function on its own."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.model.forward import blamed_on, running
from dsocr_analyze.model.generation import Generation, flash_attention, left_as_it_was
from dsocr_analyze.model.loading import LoadedModel
from dsocr_analyze.model.process_settings import exclusive
from dsocr_analyze.model.torch_calls import (
    Arguments,
    Function,
    Keywords,
    Value,
    tensors_in,
)
from dsocr_analyze.trace.record import Alike, Trace, TracedCall
from dsocr_analyze.trace.recorder import Recorder
from dsocr_analyze.workload import AnyWorkload

RunStep = Callable[[int], Trace]
"""Returns the trace of a decode step by number, running it if need be."""


@dataclass(frozen=True)
class PassTraces:
    """Traces of the passes of a page.

    Attributes:
        decode_steps: In the order of `step_numbers`.
        step_numbers: Step i runs over a cache of `seq_len + i` tokens.
        kv_cache_bytes: Size of the cache after the prefill pass.
        inputs_bytes: Size of the prefill pass's inputs.
        step_cache_bytes: Size of the cache after each step.
        stretches: Ranges of steps whose work is linear in the cache length, if known.
        longer_step: If asked for, a step over one cached token more than the last.
    """

    prefill: Trace
    decode_steps: tuple[Trace, ...]
    step_numbers: tuple[int, ...]
    kv_cache_bytes: int
    inputs_bytes: int
    step_cache_bytes: tuple[int, ...] = ()
    stretches: Sequence[range] = ()
    longer_step: Trace | None = None


def trace_passes(
    model: LoadedModel,
    workload: AnyWorkload,
    architecture: Architecture,
    *,
    step_numbers: Sequence[int] = (0,),
    with_longer_step: bool = False,
    explore: Callable[[RunStep], Sequence[range]] | None = None,
    repeats: Alike | None = None,
    recorder_type: Callable[..., Recorder] = Recorder,
    on_progress: Callable[[str], None] = lambda _: None,
) -> PassTraces:
    """Runs the workload's prefill pass and some decode steps under the recorder.

    Args:
        model: On `meta` nothing is computed.
        workload: The page, the text and the batch.
        architecture: Calls the model's forward.
        step_numbers: Decode steps to run, ascending from 0, if the model decodes; the cache has
            zeros for those that do not run.
        with_longer_step: Whether to run another step, over one cached token more than the last.
        explore: Runs further steps in any order, and returns the stretches that it found.
        repeats: On `meta`, equal calls of modules of one name are recorded once.
        recorder_type: Makes the recorder, of the model and what repeats.
        on_progress: Called with the name of each step as it starts.

    Raises:
        ModelCodeError: The model's code raised.
        DeviceError: The device ran out of memory.
    """
    alike = repeats if model.device.type == "meta" else None
    recorder = recorder_type(model.module, alike)
    longer_step = None
    stretches: Sequence[range] = ()
    flash = recorded_flash_attention(recorder)
    with (
        exclusive(),
        blamed_on(
            model.directory, f"failed on {model.device}", str(model.device), model.module,
            on_progress,
        ) as announce,
        left_as_it_was(model.module),
        running(model.device, flash, has_weights=model.has_weights),
        recorder,  # which sees on a CPU what inputs are the host's
    ):  # fmt: skip
        generation = Generation(model, workload, architecture, recorder.begin, announce)
        prefill = generation.prefill()
        if architecture.decode is not None:
            generation.goes_back = explore is not None
            for number in step_numbers:
                generation.step(number)
            if explore is not None:
                stretches = explore(generation.step)
            if with_longer_step:
                longer_step = generation.longer_step()
    steps = dict(sorted(generation.steps.items()))
    records, cache_bytes = zip(*steps.values(), strict=True) if steps else ((), ())
    return PassTraces(
        prefill,
        records,
        tuple(steps),
        generation.kv_cache_bytes,
        generation.inputs_bytes,
        cache_bytes,
        stretches,
        longer_step,
    )


def recorded_flash_attention(recorder: Recorder) -> Callable[..., torch.Tensor]:
    """flash-attn's function under the recorder."""

    def flash_attn_func(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Value, **kwargs: Value
    ) -> torch.Tensor:
        causal = args[2] if len(args) > 2 else kwargs.get("causal", False)
        output: torch.Tensor = recorder.record_whole(
            "flash_attention",
            [q, k, v],
            {"is_causal": bool(causal)},
            lambda: flash_attention(q, k, v, *args, **kwargs),
        )
        return output

    return flash_attn_func


# --- a module or function on its own --------------------------------------------------------------


class CallRecorder(Recorder):
    """Keeps the trace's `modules`; of equal calls that run once, the first."""

    def _run_in_full(
        self, path: str, forward: Function, args: Arguments, kwargs: Keywords
    ) -> Value:
        with self._own_trace(path) as trace:
            output = super()._run_in_full(path, forward, args, kwargs)
        with torch._C.DisableTorchFunction():
            returned = output.values() if isinstance(output, dict) else (output,)
            function = getattr(forward, "__func__", forward)
            names = _parameters(function)[function is not forward :]
            given = dict(zip(names, args, strict=False)) | kwargs
            looked = given | {"returned": next(tensors_in(returned), None)}
            trace.modules.setdefault(path, []).append(
                TracedCall(
                    tuple(trace.kernels),
                    trace.peak.nbytes,
                    _cache_bytes(getattr(forward, "__self__", None), given, output),
                    {
                        name: tuple(value.shape)
                        for name, value in looked.items()
                        if isinstance(value, torch.Tensor)
                    },
                )
            )
        return output


@functools.cache
def _parameters(function: Function) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _cache_bytes(module: torch.nn.Module | None, given: Keywords, output: Value) -> int:
    """Keys and values in a call's cache, or in the module's own layer of it."""
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

    `repeats` is as in `trace_passes`; the other arguments are those of its forward.
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
    with left_as_it_was(module), running(device, flash), recorder:
        return [(recorder.begin(), module(*args, **kwargs)) for kwargs in calls]
