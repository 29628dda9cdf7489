"""The two passes that a page takes: one prefill, then decode steps over the KV cache."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dsocr_analyze.errors import AnalyzeError, DeviceError, ModelCodeError
from dsocr_analyze.model import accommodation
from dsocr_analyze.model.known_values import declare_known
from dsocr_analyze.model.loading import LoadedModel, is_out_of_memory
from dsocr_analyze.trace.operators import RULES
from dsocr_analyze.trace.recorder import Recorder, Trace, keys_after_last
from dsocr_analyze.workload import Workload

__all__ = ["PassTraces", "recorded_flash_attention", "run_prefill", "trace_passes"]


@dataclass(frozen=True)
class PassTraces:
    """Traces of the prefill pass and of decode steps over `seq_len`, `seq_len + 1`, ... tokens."""

    prefill: Trace
    decode_steps: tuple[Trace, ...]
    kv_cache_bytes: int
    """What the cache holds after the prefill pass."""


def trace_passes(
    model: LoadedModel,
    workload: Workload,
    *,
    decode_steps: int = 1,
    repeat_equal_modules: bool = True,
    on_progress: Callable[[str], None] = lambda _: None,
) -> PassTraces:
    """Runs the workload's prefill pass and `decode_steps` decode steps under the recorder.

    Args:
        model: Any loaded model; on `meta` nothing is computed.
        workload: The page, the text and the batch.
        decode_steps: How many decode steps to run, each over a cache one token longer.
        repeat_equal_modules: On `meta`, record equal calls of equal modules once.
        on_progress: Told what starts.

    Raises:
        ModelCodeError: The model's code raised.
        DeviceError: The device ran out of memory.
    """
    repeat = repeat_equal_modules and model.device.type == "meta"
    recorder = Recorder(model.module, repeat_equal_modules=repeat)
    flash = recorded_flash_attention(recorder)
    try:
        with (
            _left_as_it_was(model.module),
            accommodation.running(model.device, flash, has_weights=model.has_weights),
        ):
            inputs = prefill_inputs(model, workload)
            token = torch.zeros(workload.batch_size, 1, dtype=torch.long, device=model.device)
            with recorder:
                on_progress("prefill pass")
                prefill = recorder.begin()
                output = model.module(**inputs)
                cache = output.past_key_values
                del output, inputs
                cache_bytes = sum(t.numel() * t.element_size() for t in _tensors_of(cache))
                steps = []
                for step in range(decode_steps):
                    on_progress(f"decode step {step + 1} of {decode_steps}")
                    steps.append(recorder.begin())
                    output = model.module(input_ids=token, past_key_values=cache, use_cache=True)
                    cache = output.past_key_values
                    del output
    except AnalyzeError:
        raise
    except (Exception, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        if is_out_of_memory(error):
            raise DeviceError(
                f"{model.device} has not enough memory for this page: {first_line}"
            ) from error
        raise ModelCodeError(
            f"the model in {str(model.directory.path)!r} failed on {model.device}:"
            f" {type(error).__name__}: {first_line}"
        ) from error
    return PassTraces(prefill, tuple(steps), cache_bytes)


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


def _tensors_of(cache: Any) -> list[torch.Tensor]:
    """Tensors in a KV cache: nested tuples and lists of them, or an object that holds such."""
    if isinstance(cache, torch.Tensor):
        return [cache]
    if isinstance(cache, tuple | list):
        return [tensor for item in cache for tensor in _tensors_of(item)]
    if hasattr(cache, "__dict__"):
        return [tensor for item in vars(cache).values() for tensor in _tensors_of(item)]
    return []


def run_prefill(model: LoadedModel, workload: Workload) -> Any:
    """The bare prefill pass, unrecorded: what tracing is measured against."""
    with accommodation.running(
        model.device, _meta_or_real_flash_attention, has_weights=model.has_weights
    ):
        return model.module(**prefill_inputs(model, workload))


def prefill_inputs(model: LoadedModel, workload: Workload) -> dict[str, Any]:
    """Keyword arguments of the model's forward for one prefill pass.

    The prompt is BOS, the visual tokens, the text. Pixels are blank where there is no view and
    filled elsewhere: the model's code tells the two apart by their sum.
    """
    device, batch = model.device, workload.batch_size
    local, whole = workload.local_views, workload.global_view
    blank = (1, whole.resolution) if local is None else None
    images = []
    for _ in range(batch):
        crops = (
            _pixels(model, *blank, filled=False)
            if local is None and blank
            else _pixels(model, local.count, local.resolution, filled=True)  # type: ignore[union-attr]
        )
        images.append((crops, _pixels(model, whole.count, whole.resolution, filled=True)))
    image_mask = torch.zeros(batch, workload.seq_len, dtype=torch.bool, device=device)
    image_mask[:, 1 : 1 + workload.visual_tokens] = True
    return {
        "input_ids": torch.zeros(batch, workload.seq_len, dtype=torch.long, device=device),
        "images": images,
        "images_seq_mask": image_mask,
        "images_spatial_crop": [list(workload.grid)] * batch,
        "use_cache": True,
    }


def _pixels(model: LoadedModel, count: int, resolution: int, *, filled: bool) -> torch.Tensor:
    shape = (count, 3, resolution, resolution)
    pixels = torch.full(shape, 0.5 if filled else 0.0, dtype=model.dtype, device=model.device)
    return declare_known(pixels, float(filled)) if pixels.is_meta else pixels


def recorded_flash_attention(recorder: Recorder) -> Callable[..., torch.Tensor]:
    """flash-attn's function under the recorder; on `meta` a stand-in of the same shape."""

    def flash_attn_func(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        with recorder.as_one_operator():
            output = _meta_or_real_flash_attention(q, k, v, *args, **kwargs)
        with torch._C.DisableTorchFunction():
            recorder.record("flash_attention", RULES["flash_attention"], [q, k, v], {}, output)
            if args[2] if len(args) > 2 else kwargs.get("causal"):
                scores = q.shape[0] * q.shape[2] * keys_after_last(q.shape[1], k.shape[1])
                recorder.note_causal(scores, q.shape[3] + v.shape[3])
        return output

    return flash_attn_func


def _meta_or_real_flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    if q.is_meta:
        return _meta_flash_attention(q, k, v)
    from flash_attn import flash_attn_func

    output: torch.Tensor = flash_attn_func(q, k, v, *args, **kwargs)
    return output


def _meta_flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any
) -> torch.Tensor:
    """Output of flash attention on `meta`: q [B, T, Hq, D], v [B, K, Hk, Dv] -> [B, T, Hq, Dv]."""
    return q.new_empty((*q.shape[:-1], v.shape[-1]))
