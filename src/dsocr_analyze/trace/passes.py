"""The two passes that a page takes: one prefill, then decode steps over the KV cache."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.key_value_cache import GrowingCache
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.running.exclusive import exclusive
from dsocr_analyze.running.failures import blamed_on
from dsocr_analyze.running.forward import running
from dsocr_analyze.running.loading import LoadedModel
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder
from dsocr_analyze.trace.repetition import Alike
from dsocr_analyze.workload import DecodeStep, Workload

__all__ = [
    "PassTraces",
    "empty_cache",
    "flash_attention",
    "recorded_flash_attention",
    "run_prefill",
    "trace_passes",
]


@dataclass(frozen=True)
class PassTraces:
    """Traces of the passes of a page.

    Attributes:
        prefill: The prefill pass.
        decode_steps: Decode steps, in the order of `step_numbers`.
        step_numbers: Which steps they are, from 0; step i runs over a cache of `seq_len + i`
            tokens, or of `seq_len` and the window's where the model keeps no more.
        kv_cache_bytes: What the cache holds after the prefill pass.
        inputs_bytes: What the prefill pass is called with.
    """

    prefill: Trace
    decode_steps: tuple[Trace, ...]
    step_numbers: tuple[int, ...]
    kv_cache_bytes: int
    inputs_bytes: int


def trace_passes(
    model: LoadedModel,
    workload: Workload,
    architecture: Architecture,
    *,
    step_numbers: Sequence[int] = (0,),
    repeats: Alike | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> PassTraces:
    """Runs the workload's prefill pass and some decode steps under the recorder.

    Args:
        model: Any loaded model; on `meta` nothing is computed.
        workload: The page, the text and the batch.
        architecture: The model's architecture, which knows how its forward is called.
        step_numbers: Decode steps to run, from 0 and ascending; step i finds in the cache what i
            steps before it leave there, in zeros where they do not run.
        repeats: Which of the model's modules are alike, where that is declared: on `meta`, equal
            calls of alike modules are recorded once. None runs every module.
        on_progress: Told what starts.

    Raises:
        ModelCodeError: The model's code raised.
        DeviceError: The device ran out of memory.
    """
    recorder = Recorder(
        model.module,
        repeats if model.device.type == "meta" else None,
        kernels_of=model.kernels_of,
    )
    flash = recorded_flash_attention(recorder)
    with (
        exclusive(),
        blamed_on(model.directory, f"failed on {model.device}", str(model.device)),
        _left_as_it_was(model.module),
        running(model.device, flash, has_weights=model.has_weights),
    ):
        inputs = architecture.prefill_inputs(model.device, model.dtype, workload)
        inputs_bytes = _bytes_of(inputs)
        cache = empty_cache(model.directory)
        with recorder:
            on_progress("prefill pass")
            prefill = recorder.begin()
            cache = model.module(**inputs, past_key_values=cache).past_key_values
            del inputs
            cache_bytes = _bytes_of(cache)
            steps = []
            ran = 0
            for number in step_numbers:
                on_progress(f"decode step {number + 1}")
                recorder.begin()  # of a trace that nobody keeps
                step = DecodeStep(workload.seq_len, number + 1, model.sliding_window)
                if number > ran:
                    cache = architecture.decode_cache(cache, step)
                inputs = architecture.decode_inputs(model.device, workload, step.position)
                ran = number + 1
                steps.append(recorder.begin())
                cache = model.module(**inputs, past_key_values=cache).past_key_values
    return PassTraces(prefill, tuple(steps), tuple(step_numbers), cache_bytes, inputs_bytes)


def empty_cache(directory: ModelDirectory) -> Any:
    """The cache to begin with: for a vendor's code the one that it was written for, transformers'.

    Args:
        directory: Where the model comes from.
    """
    if directory.is_reference:
        return GrowingCache()
    from transformers import DynamicCache

    return DynamicCache()


@contextlib.contextmanager
def _left_as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Undoes what a pass keeps on its modules, such as rotary tables: the next starts afresh."""
    before = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes, buffers in before:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)


def _bytes_of(value: Any) -> int:
    """Bytes of all tensors in nested tuples, lists and mappings, or objects that hold such."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, tuple | list):
        return sum(map(_bytes_of, value))
    if isinstance(value, dict):
        return sum(map(_bytes_of, value.values()))
    return sum(map(_bytes_of, vars(value).values())) if hasattr(value, "__dict__") else 0


def run_prefill(model: LoadedModel, workload: Workload, architecture: Architecture) -> Any:
    """The bare prefill pass, unrecorded: what tracing is measured against."""
    with running(model.device, flash_attention, has_weights=model.has_weights):
        inputs = architecture.prefill_inputs(model.device, model.dtype, workload)
        return model.module(**inputs, past_key_values=empty_cache(model.directory))


def recorded_flash_attention(recorder: Recorder) -> Callable[..., torch.Tensor]:
    """flash-attn's function under the recorder."""

    def flash_attn_func(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        causal = args[2] if len(args) > 2 else kwargs.get("causal", False)
        output: torch.Tensor = recorder.record_whole(
            "flash_attention",
            [q, k, v],
            {"causal": bool(causal)},
            lambda: flash_attention(q, k, v, *args, **kwargs),
        )
        return output

    return flash_attn_func


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """flash-attn's function; on `meta` a stand-in, which needs no such package.

    Args:
        q: Queries [B, T, Hq, D].
        k: Keys [B, K, Hk, D].
        v: Values [B, K, Hk, Dv].
        *args: What else the function takes, such as `causal`.
        **kwargs: The same by keyword.

    Returns:
        Output [B, T, Hq, Dv].
    """
    if q.is_meta:
        return q.new_empty((*q.shape[:-1], v.shape[-1]))
    from flash_attn import flash_attn_func

    output: torch.Tensor = flash_attn_func(q, k, v, *args, **kwargs)
    return output
