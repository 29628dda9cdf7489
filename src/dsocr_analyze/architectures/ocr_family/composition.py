"""The figures of a workload, from the tapes of its passes, and its memory at their peaks.

`prefill_bytes_alive` and `decode_bytes_alive` assume that the model's own `generate` runs a batch:
all pages prefill at once, and the prefill pass's inputs are held until the last token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Final

from dsocr_analyze.architectures.architecture import Composition
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions, RelativeDimensions
from dsocr_analyze.architectures.ocr_family.mixture import experts_touched
from dsocr_analyze.architectures.ocr_family.network import Network
from dsocr_analyze.architectures.ocr_family.page import head
from dsocr_analyze.architectures.ocr_family.passes import (
    Held,
    OwnedParams,
    model_params,
    owned_params,
    prefill,
    step,
    work_of_step,
)
from dsocr_analyze.architectures.ocr_family.stages import DECODE, PREFILL
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64, Dtype
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.figures import BytesAlive, ExpertsTouched, Memory, StageFigures
from dsocr_analyze.kernels import NO_WORK, Kernel, Work, merged, total_work
from dsocr_analyze.tape import Size, Tape
from dsocr_analyze.tape.polynomial import largest, maximum
from dsocr_analyze.workload import Workload

__all__ = [
    "check_positions",
    "compose",
    "decode_bytes_alive",
    "experts_by_stage",
    "inputs_bytes",
    "memory",
    "prefill_bytes_alive",
    "step_kernels",
]


@lru_cache(maxsize=4)  # a page is composed for its report, and again for its seconds
def compose(
    network: Network,
    c: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    flash_attention: bool,
) -> Composition:
    """The figures of a workload.

    Args:
        network: The relative.
        c: Its dimensions.
        workload: Page, text, batch and new tokens.
        dtype: Type of weights and activations.
        flash_attention: FlashAttention instead of the decoder's eager attention.

    Raises:
        ConfigError: A part of the model has no closed form.
    """
    check_positions(c.decoder, workload.seq_len, workload.max_new_tokens)
    if flash_attention:
        network.check_flash(c)
    pages, held = prefill(network, c, workload, dtype, flash=flash_attention)
    first = step(network, c, _pass_of_step(c, workload, 0, flash=flash_attention), dtype)
    params, experts = owned_params(network, c), experts_by_stage(c, workload, dtype)
    stages = _figures_by_stage(network, pages, first, params, experts)
    works = {name: stage.work for name, stage in stages.items()}
    first_step = works.pop(DECODE.name)
    steps = _steps_work(network, c, workload, dtype, first_step, flash=flash_attention)
    return Composition(
        stages=stages,
        parameters=params.whole,
        batch=total_work(works.values()).plus(steps),
        causal_savable_flops=2 * sum(pages.savings),
        memory=_memory_of(network, c, workload, dtype, held),
    )


def _pass_of_step(c: RelativeDimensions, workload: Workload, number: int, *, flash: bool) -> Pass:
    """The decode step of this number, from 0."""
    cached, window = workload.seq_len + number, c.sliding_window
    if window is None or number < window:
        return Pass(workload.batch_size, 1, cached, flash=flash)
    others = workload.seq_len + window - 1
    return Pass(workload.batch_size, 1, others, flash=flash, overwrites=True)


def _steps_work(
    network: Network,
    c: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    first: Work,
    *,
    flash: bool,
) -> Work:
    """Work of all decode steps, summed exactly: within a stretch it is affine in the cache.

    Args:
        network: The relative.
        c: Its dimensions.
        workload: The workload.
        dtype: Type of weights and features.
        first: Work of the first step.
        flash: FlashAttention instead of the eager product.
    """

    def work(number: int) -> Work:
        if not number:
            return first
        return work_of_step(network, c, _pass_of_step(c, workload, number, flash=flash), dtype)

    steps, total = workload.max_new_tokens - 1, NO_WORK
    cuts = {min(cut, steps) for cut in (0, *c.step_cuts(workload.seq_len), steps)}
    for start, stop in pairwise(sorted(cuts)):
        n = stop - start
        begin = work(start)
        more = work(start + 1).minus(begin) if n > 1 else NO_WORK
        total = total.plus(begin.times(n)).plus(more.times(n * (n - 1) // 2))
    return total


def _figures_by_stage(
    network: Network,
    pages: Tape,
    first: Tape,
    params: OwnedParams,
    experts: Mapping[str, ExpertsTouched],
) -> dict[str, StageFigures]:
    """Every stage's records and calls, from the tapes of the prefill pass and the first step."""
    kernels: dict[str, list[Kernel]] = {stage.name: [] for stage in network.stages}
    calls: dict[str, dict[str, int]] = {stage.name: {} for stage in network.stages}
    for tape in (pages, first):
        for name, records in groupby(tape.kernels, attrgetter("stage")):
            kernels[name] += records
        for path, name, times in tape.calls:
            calls[name][path] = calls[name].get(path, 0) + times
    return {
        stage.name: StageFigures(
            name=stage.name,
            params=params.by_stage[stage.name],
            calls=calls[stage.name][stage.prefixes[0] if stage.role == "vision" else ""],
            kernels=merged(kernels[stage.name]),
            module_calls=calls[stage.name],
            notes=stage.notes,
            experts=experts.get(stage.name),
        )
        for stage in network.stages
    }


def step_kernels(
    network: Network,
    c: RelativeDimensions,
    batch: int,
    cached: int,
    dtype: Dtype,
    flash_attention: bool,
    overwrites: bool = False,
) -> tuple[Kernel, ...]:
    """The records of an expected decode step over caches of `cached` tokens.

    If it `overwrites` a token of a full window, `cached` excludes that token.

    The records are those of `compose`, except that a batch runs the number of experts touched by
    independent choices, rounded to a whole number, instead of the maximum.
    """
    experts = experts_touched(batch, c.decoder, dtype)
    touched = None if experts is None else round(experts.expected)
    p = Pass(batch, 1, cached, flash=flash_attention, overwrites=overwrites, touched=touched)
    return merged(step(network, c, p, dtype).kernels)


def experts_by_stage(
    c: RelativeDimensions, workload: Workload, dtype: Dtype
) -> dict[str, ExpertsTouched]:
    """Routed experts that a workload touches, by stage that has any: its prompts, and a step."""
    batch = workload.batch_size
    tokens = {PREFILL.name: batch * workload.seq_len, DECODE.name: batch}
    found = {name: experts_touched(n, c.decoder, dtype) for name, n in tokens.items()}
    return {name: experts for name, experts in found.items() if experts is not None}


def check_positions(decoder: DecoderDimensions, seq_len: Size, max_new_tokens: Size) -> None:
    """Rejects "dynamic" positions beyond the trained length if no closed form applies.

    Args:
        decoder: Dimensions.
        seq_len: Tokens of each prompt.
        max_new_tokens: Tokens generated after it.

    Raises:
        ConfigError: Each layer of plain attention would recompute frequencies, or latent attention
            that rotates 2 dimensions would divide by zero.
    """
    trained = decoder.max_position_embeddings
    divides_by_zero = decoder.use_mla and decoder.qk_rope_head_dim == 2
    if decoder.rope_scaling != "dynamic" or (decoder.use_mla and not divides_by_zero):
        return
    longest = largest(seq_len + maximum(max_new_tokens - 1, 1))  # one step is always counted
    if longest <= trained:
        return
    which = "with 'qk_rope_head_dim' of 2" if divides_by_zero else "without 'use_mla'"
    raise ConfigError(
        f"config.json: no closed form for 'rope_scaling' of type 'dynamic' {which} beyond"
        f" 'max_position_embeddings', {trained}; the sequence reaches {longest}: give a shorter one"
        f"{'' if divides_by_zero else ', or trace the model'}"
    )


# --- memory ----------------------------------------------------------------------------------

_CHANNELS: Final = 3
_LAYER: Final = re.compile(r"model\.layers\.(?P<index>\d+)(?:\..*)?")
_HEAD: Final = ("", "lm_head")
"""Path of the peak if it is in the head: the model itself casts the logits."""


@lru_cache(maxsize=4096)  # a search for the largest batch asks for the same again and again
def _held(
    network: Network, c: RelativeDimensions, workload: Workload, dtype: Dtype, flash: bool
) -> Held:
    return prefill(network, c, workload, dtype, flash=flash, records=False)[1]


def memory(
    network: Network,
    c: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    flash_attention: bool,
) -> Memory:
    """Bytes that a workload holds in memory; arguments as for `compose`."""
    held = _held(network, c, workload, dtype, flash_attention)
    return _memory_of(network, c, workload, dtype, held)


def _memory_of(
    network: Network, c: RelativeDimensions, workload: Workload, dtype: Dtype, held: Held
) -> Memory:
    """The same, from what the prefill pass holds."""
    generated = workload.max_new_tokens - 1
    if c.sliding_window is not None:
        generated = min(generated, c.sliding_window)
    per_token = held.cache_bytes // workload.seq_len
    return Memory(
        weights_bytes=model_params(network, c) * dtype.nbytes,
        inputs_bytes=inputs_bytes(workload, dtype),
        prefill_cache_bytes=held.cache_bytes,
        kv_cache_bytes=held.cache_bytes + per_token * generated,
        peak=held.peak,
    )


def inputs_bytes(workload: Workload, dtype: Dtype) -> int:
    """Pixels, token ids, positions, the padding and image masks, and the crop grid.

    If there are no local views, a blank fp32 patch replaces them.
    """
    pages = workload.prompt_pages
    pixels = pages * sum(_CHANNELS * view.count * view.resolution**2 for view in workload.views)
    page = pixels * dtype.nbytes + workload.seq_len * (3 * INT64.nbytes + BOOL.nbytes)
    if workload.local_views is None:
        page += _CHANNELS * workload.base_size**2 * FLOAT32.nbytes
    return workload.batch_size * (page + pages * len(workload.grid) * INT64.nbytes)


def prefill_bytes_alive(
    network: Network,
    c: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    flash_attention: bool,
) -> BytesAlive:
    """Bytes alive at the peak of the prefill pass.

    Args:
        network: The relative.
        c: Its dimensions.
        workload: Page, text and batch.
        dtype: Type of weights and activations.
        flash_attention: FlashAttention instead of the decoder's eager attention.
    """
    if flash_attention:
        network.check_flash(c)
    held = memory(network, c, workload, dtype, flash_attention)
    decoder, path = c.decoder, held.peak.path
    cached = _layers_cached(path, decoder.layers) * held.prefill_cache_bytes // decoder.layers
    logits = 0
    if path in _HEAD:
        logits = _logits_bytes(c, Pass(workload.batch_size, workload.seq_len), dtype)
    return BytesAlive(
        inputs_bytes=held.inputs_bytes,
        cache_bytes=cached,
        activation_bytes=held.peak.nbytes - cached - logits,
        logits_bytes=logits,
    )


def _layers_cached(path: str, layers: int) -> int:
    """Layers whose keys and values exist when the module at `path` runs."""
    if path in (*_HEAD, "model.norm"):
        return layers
    found = _LAYER.fullmatch(path)
    return int(found["index"]) + 1 if found else 0


def decode_bytes_alive(
    network: Network,
    c: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    flash_attention: bool,
) -> BytesAlive:
    """Bytes alive in the last decode step; arguments as for `prefill_bytes_alive`.

    The full KV cache, with one layer duplicated while it grows by a token, and the logits.
    """
    decoder = c.decoder
    held = memory(network, c, workload, dtype, flash_attention)
    return BytesAlive(
        inputs_bytes=held.inputs_bytes,
        cache_bytes=held.kv_cache_bytes + held.kv_cache_bytes // decoder.layers,
        activation_bytes=0,
        logits_bytes=_logits_bytes(c, Pass(workload.batch_size, 1), dtype),
    )


def _logits_bytes(c: RelativeDimensions, p: Pass, dtype: Dtype) -> int:
    """Bytes of a pass's logits, in every type in which they exist at once."""
    t = Tape(dtype, records=False)
    t.call("", head, t.input(p.tokens * c.decoder.hidden_size, dtype), p, c)
    t.check_nothing_is_left()
    return t.peak.nbytes
