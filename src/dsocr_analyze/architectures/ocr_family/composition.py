"""The closed forms of a whole workload, composed from layer families.

`compose` evaluates one workload, with Python integers throughout; `totals.page_totals` evaluates
the same functions on arrays.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from dsocr_analyze.architectures.architecture import Composition
from dsocr_analyze.architectures.ocr_family.decoder import (
    cache_width,
    decoder_params,
    decoder_savable_macs,
    decoder_sections,
    experts_touched,
    head_params,
)
from dsocr_analyze.architectures.ocr_family.layout import blank_sum, page_layout, pixel_sum
from dsocr_analyze.architectures.ocr_family.peak import peak
from dsocr_analyze.architectures.ocr_family.stages import DECODE, PREFILL
from dsocr_analyze.architectures.ocr_family.vision import token_side
from dsocr_analyze.costs.integers import Count, largest, maximum, minimum
from dsocr_analyze.costs.kv_cache import cache_bytes
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.costs.sections import Expansion, sections_work
from dsocr_analyze.costs.sums import combined, multiplied, repeated
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64, Dtype
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.figures import ExpertsTouched, Memory, Parameters, StageFigures
from dsocr_analyze.kernels import CUDA, Kernel, KernelsOf, Work, merged, total_work

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Stage
    from dsocr_analyze.architectures.ocr_family.dimensions import (
        DecoderDimensions,
        RelativeDimensions,
    )
    from dsocr_analyze.architectures.ocr_family.network import Network
    from dsocr_analyze.workload import Workload

__all__ = [
    "check_positions",
    "compose",
    "decode_steps_work",
    "decode_work",
    "experts_by_stage",
    "is_dynamic",
    "kept_tokens",
    "memory",
    "model_params",
    "prefill_work",
    "step_kernels",
]

_CHANNELS = 3


# --- one workload ----------------------------------------------------------------------------


@lru_cache(maxsize=4)  # a page is composed for its report, and again for its seconds
def compose(
    network: Network,
    dimensions: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    flash_attention: bool,
    kernels_of: KernelsOf = CUDA,
) -> Composition:
    """The closed forms of a workload.

    Args:
        network: The relative.
        dimensions: Its dimensions.
        workload: Page, text, batch and new tokens.
        dtype: Type of weights and activations.
        flash_attention: FlashAttention instead of the decoder's eager attention.
        kernels_of: Whose kernels run.

    Raises:
        ConfigError: A part of the model has no closed form.
    """
    batch, seq_len = workload.batch_size, workload.seq_len
    check_positions(dimensions.decoder, seq_len, workload.max_new_tokens)
    if flash_attention:
        network.check_flash(dimensions)
    params = model_params(network, dimensions)
    expansions = _expanded(network, dimensions, workload, dtype, flash_attention, kernels_of)
    experts = experts_by_stage(dimensions, workload, dtype)
    stages = {
        stage.name: _stage_figures(
            stage, expansions[stage.name], params[stage.name], experts.get(stage.name)
        )
        for stage in network.stages
    }
    *prefill, _ = stages.values()
    prefill_pass = total_work(stage.work for stage in prefill)
    steps = decode_steps_work(
        batch,
        seq_len,
        workload.max_new_tokens - 1,
        dimensions,
        dtype,
        flash=flash_attention,
        kernels_of=kernels_of,
    )
    return Composition(
        stages=stages,
        parameters=Parameters(
            total=sum(params.values()),
            unassigned=dict.fromkeys(network.separators, dimensions.decoder.hidden_size),
        ),
        batch=prefill_pass.plus(steps),
        causal_savable_flops=2
        * decoder_savable_macs(batch, seq_len, dimensions.decoder, flash=flash_attention),
        memory=memory(network, dimensions, workload, dtype, flash_attention, kernels_of),
    )


def _expanded(
    network: Network,
    dimensions: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    flash_attention: bool,
    kernels_of: KernelsOf,
) -> dict[str, Expansion]:
    """Every module of every stage, by stage name."""
    batch, seq_len = workload.batch_size, workload.seq_len
    expansions = {stage.name: Expansion() for stage in network.stages}
    for view in workload.views:
        sections = network.sections(view.count, view.resolution, dimensions, dtype, kernels_of)
        for stage, parts in sections.items():
            expansions[stage.name].add(parts, times=workload.pages, stage=stage.name)
    for stage, new, cached in ((PREFILL, seq_len, 0), (DECODE, 1, seq_len)):
        parts = decoder_sections(
            batch,
            new,
            cached,
            dimensions.decoder,
            dtype,
            flash=flash_attention,
            each_expert=True,
            kernels_of=kernels_of,
        )
        expansions[stage.name].add(parts, stage=stage.name)
    expansions[PREFILL.name].kernels += [
        kernel._replace(path="model", stage=PREFILL.name)
        for kernel in _page_layout(network, workload, dimensions, dtype)
    ]
    return expansions


def experts_by_stage(
    dimensions: RelativeDimensions, workload: Workload, dtype: Dtype
) -> dict[str, ExpertsTouched]:
    """Routed experts that a workload touches, by stage that has any: its prompts, and a step."""
    batch = workload.batch_size
    tokens = {PREFILL.name: batch * workload.seq_len, DECODE.name: batch}
    found = {name: experts_touched(n, dimensions, dtype) for name, n in tokens.items()}
    return {name: experts for name, experts in found.items() if experts is not None}


def _stage_figures(
    stage: Stage, expansion: Expansion, params: int, experts: ExpertsTouched | None
) -> StageFigures:
    calls = expansion.module_calls
    root = "" if stage.role != "vision" else stage.prefixes[0]
    return StageFigures(
        name=stage.name,
        params=params,
        calls=calls[root],
        kernels=merged(expansion.kernels),
        module_calls=calls,
        notes=stage.notes,
        experts=experts,
    )


def step_kernels(
    dimensions: RelativeDimensions,
    batch: int,
    cached: int,
    dtype: Dtype,
    flash_attention: bool,
    overwrites: bool = False,
    kernels_of: KernelsOf = CUDA,
) -> tuple[Kernel, ...]:
    """The records of an expected decode step over caches of `cached` tokens.

    If it `overwrites` a token of a full window, `cached` excludes that token.

    The records are those of `compose`, except that a batch runs the number of experts touched by
    independent choices, rounded to a whole number, instead of the maximum.
    """
    expansion = Expansion()
    experts = experts_touched(batch, dimensions, dtype)
    parts = decoder_sections(
        batch,
        1,
        cached,
        dimensions.decoder,
        dtype,
        flash=flash_attention,
        each_expert=True,
        kernels_of=kernels_of,
        touched=None if experts is None else round(experts.expected),
        overwrites=overwrites,
    )
    expansion.add(parts, stage=DECODE.name)
    return merged(expansion.kernels)


def _page_layout(
    network: Network, workload: Workload, dimensions: RelativeDimensions, dtype: Dtype
) -> Kernels:
    """What the model itself does between its parts."""
    columns, rows = workload.grid
    pages = workload.prompt_pages
    whole = workload.global_view.resolution
    first_look = pixel_sum(pages, whole, dtype)
    parts: list[Kernels] = pages * [
        network.whole_layout(token_side(whole, dimensions.sam), dimensions, dtype),
    ]
    d = dimensions.decoder.hidden_size
    parts.append(page_layout(workload.seq_len, workload.visual_tokens, d, dtype, pages=pages))
    if workload.local_views is None:
        parts.append(blank_sum(workload.base_size))
    else:
        local = workload.local_views.resolution
        q = token_side(local, dimensions.sam)
        parts.append(pixel_sum(columns * rows, local, dtype))
        parts.append(network.local_layout(columns, rows, q, dimensions, dtype))
    each = [kernel for part in parts for kernel in part]
    return (*first_look, *repeated(each, workload.batch_size))


def model_params(network: Network, dimensions: RelativeDimensions) -> dict[str, int]:
    """Parameters by owning stage; the separators belong to none (the empty name)."""
    return {
        **{stage.name: params for stage, params in network.params(dimensions).items()},
        PREFILL.name: decoder_params(dimensions.decoder),
        DECODE.name: head_params(dimensions.decoder),
        "": len(network.separators) * dimensions.decoder.hidden_size,
    }


# --- memory ----------------------------------------------------------------------------------


def memory(
    network: Network,
    dimensions: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    flash_attention: bool,
    kernels_of: KernelsOf = CUDA,
) -> Memory:
    """Bytes that a workload holds in memory; arguments as for `compose`."""
    decoder, prompt = dimensions.decoder, workload.seq_len
    width = cache_width(decoder, flash=flash_attention)

    def cache(tokens: int) -> int:
        return cache_bytes(workload.batch_size, tokens, decoder.layers, width, dtype.nbytes)

    return Memory(
        weights_bytes=sum(model_params(network, dimensions).values()) * dtype.nbytes,
        inputs_bytes=_inputs_bytes(workload, dtype),
        prefill_cache_bytes=cache(prompt),
        kv_cache_bytes=cache(prompt + kept_tokens(decoder, workload.max_new_tokens - 1)),
        peak=peak(
            network,
            dimensions,
            workload,
            dtype,
            flash_attention=flash_attention,
            kernels_of=kernels_of,
        ),
    )


def _inputs_bytes(workload: Workload, dtype: Dtype) -> int:
    """Pixels, token ids, positions, the padding and image masks, and the crop grid.

    If there are no local views, a blank fp32 patch replaces them.
    """
    pages = workload.prompt_pages
    pixels = pages * sum(_CHANNELS * view.count * view.resolution**2 for view in workload.views)
    page = pixels * dtype.nbytes + workload.seq_len * (3 * INT64.nbytes + BOOL.nbytes)
    if workload.local_views is None:
        page += _CHANNELS * workload.base_size**2 * FLOAT32.nbytes
    return workload.batch_size * (page + pages * len(workload.grid) * INT64.nbytes)


# --- parts, for integers or arrays -----------------------------------------------------------


def prefill_work(
    B: Count, T: Count, dimensions: RelativeDimensions, dtype: Dtype, *, flash: bool
) -> Work:
    """Work of embedding, layers, norm and head over a prompt, without the page's layout.

    Args:
        B: Batch.
        T: Tokens of the prompt.
        dimensions: The model.
        dtype: Type of weights and features.
        flash: FlashAttention instead of the eager product.
    """
    return sections_work(decoder_sections(B, T, 0, dimensions.decoder, dtype, flash=flash))


def decode_work(
    B: Count,
    cached: Count,
    dimensions: RelativeDimensions,
    dtype: Dtype,
    *,
    flash: bool,
    kernels_of: KernelsOf = CUDA,
    overwrites: bool = False,
) -> Work:
    """Work of one decode step: one new token per sequence over a cache of `cached` tokens.

    Args:
        B: Batch.
        cached: Tokens in the cache.
        dimensions: The model.
        dtype: Type of weights and features.
        flash: FlashAttention instead of the eager product.
        kernels_of: Whose kernels run.
        overwrites: Whether the new token overwrites an additional one in the cache.
    """
    return sections_work(
        decoder_sections(
            B, 1, cached, dimensions.decoder, dtype, flash=flash, kernels_of=kernels_of,
            overwrites=overwrites,
        )
    )  # fmt: skip


def kept_tokens(decoder: DecoderDimensions, generated: Count) -> Count:
    """How many of the generated tokens the cache keeps."""
    return (
        generated if decoder.sliding_window is None else minimum(generated, decoder.sliding_window)
    )


def decode_steps_work(
    B: Count,
    first: Count,
    steps: Count,
    dimensions: RelativeDimensions,
    dtype: Dtype,
    *,
    flash: bool,
    kernels_of: KernelsOf = CUDA,
) -> Work:
    """Work of `steps` decode steps over caches of `first`, `first + 1`, ... tokens, summed exactly.

    A step's work is affine in the cache's length K: `a + b K`, so m steps from K0 on cost
    `m a + b (m K0 + m (m - 1) / 2)`. With latent attention, "dynamic" rotary positions add a
    constant to every step beyond the trained length; those steps are summed separately, as are
    those after a sliding window is full, which all cost the same.

    Args:
        B: Batch.
        first: Tokens in the first step's cache, which are those of the prompt.
        steps: Number of steps m.
        dimensions: The model.
        dtype: Type of weights and features.
        flash: FlashAttention instead of the eager product.
        kernels_of: Whose kernels run.
    """
    decoder = dimensions.decoder
    trained = decoder.max_position_embeddings

    def step(cached: Count, *, overwrites: bool = False) -> Work:
        return decode_work(
            B, cached, dimensions, dtype, flash=flash, kernels_of=kernels_of, overwrites=overwrites
        )

    parts = []
    if decoder.sliding_window is not None:
        full = step(first + decoder.sliding_window - 1, overwrites=True)
        kept = kept_tokens(decoder, steps)
        parts.append(multiplied(full, steps - kept))
        steps = kept
    base, slope = step(0), step(1).minus(step(0))
    parts.append(multiplied(base, steps))
    if is_dynamic(decoder):
        slope = step(trained + 1).minus(step(trained))
        update = step(trained).minus(combined((base, multiplied(slope, trained))))
        parts.append(multiplied(update, steps - minimum(steps, maximum(0, trained - first))))
    parts.append(multiplied(slope, steps * first + steps * (steps - 1) // 2))
    return combined(parts)


def is_dynamic(decoder: DecoderDimensions) -> bool:
    """Whether decode steps cost more beyond the trained length: "dynamic" and latent."""
    return decoder.use_mla and decoder.rope_scaling == "dynamic"


def check_positions(decoder: DecoderDimensions, seq_len: Count, max_new_tokens: Count) -> None:
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
