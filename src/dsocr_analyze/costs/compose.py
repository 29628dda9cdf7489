"""The whole model composed: what a page costs, by stage and by module.

`page_costs` answers for one workload, with Python integers throughout; `totals.page_totals` asks
the same functions with arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from dsocr_analyze.costs.decoder import (
    cache_width,
    decoder_params,
    decoder_savable_macs,
    decoder_sections,
    head_params,
)
from dsocr_analyze.costs.integers import Count, maximum, minimum
from dsocr_analyze.costs.kv_cache import cache_bytes
from dsocr_analyze.costs.layout import global_layout, local_layout, page_layout, pixel_sum
from dsocr_analyze.costs.peak import peak_activation_bytes
from dsocr_analyze.costs.projector import projector_params
from dsocr_analyze.costs.sections import Section, expanded, sections_total
from dsocr_analyze.costs.sums import ModuleWork, combined, joined, scaled
from dsocr_analyze.costs.vision import (
    clip_params,
    clip_sections,
    projector_sections,
    sam_params,
    sam_sections,
    token_side,
)
from dsocr_analyze.model.stages import STAGES, Stage
from dsocr_analyze.work import Work

if TYPE_CHECKING:
    from dsocr_analyze.model.dimensions import DecoderDimensions, ModelDimensions
    from dsocr_analyze.workload.workload import Workload

__all__ = [
    "PageCosts",
    "StageCosts",
    "decode_steps_total",
    "decode_total",
    "is_dynamic",
    "layout_total",
    "model_params",
    "page_costs",
    "prefill_total",
    "vision_totals",
]


def vision_totals(
    N: Count, R: Count, dimensions: ModelDimensions, element_bytes: int
) -> dict[Stage, Work]:
    """Work of the three vision stages for one call on N views.

    Args:
        N: Views.
        R: Pixels a side.
        dimensions: The model.
        element_bytes: Bytes of a feature.
    """
    return {
        stage: sections_total(sections)
        for stage, sections in _vision_sections(N, R, dimensions, element_bytes).items()
    }


def _vision_sections(
    N: Count, R: Count, dimensions: ModelDimensions, element_bytes: int
) -> dict[Stage, list[Section]]:
    q = token_side(R, dimensions.sam)
    return {
        "sam": sam_sections(N, R, dimensions.sam, element_bytes),
        "clip": clip_sections(N, q, dimensions.clip, element_bytes),
        "projector": projector_sections(N, q, dimensions.projector, element_bytes),
    }


def prefill_total(
    B: Count, T: Count, dimensions: ModelDimensions, element_bytes: int, *, flash: bool
) -> Work:
    """Work of embedding, layers, norm and head over a prompt; the page's layout is not in it.

    Args:
        B: Batch.
        T: Tokens of the prompt.
        dimensions: The model.
        element_bytes: Bytes of a feature.
        flash: FlashAttention in place of the eager product.
    """
    return sections_total(decoder_sections(B, T, 0, dimensions.decoder, element_bytes, flash=flash))


def decode_total(
    B: Count, cached: Count, dimensions: ModelDimensions, element_bytes: int, *, flash: bool
) -> Work:
    """Work of one decode step: one new token a sequence over a cache of `cached` tokens.

    Args:
        B: Batch.
        cached: Tokens in the cache.
        dimensions: The model.
        element_bytes: Bytes of a feature.
        flash: FlashAttention in place of the eager product.
    """
    return sections_total(
        decoder_sections(B, 1, cached, dimensions.decoder, element_bytes, flash=flash)
    )


def decode_steps_total(
    B: Count,
    first: Count,
    steps: Count,
    dimensions: ModelDimensions,
    element_bytes: int,
    *,
    flash: bool,
) -> Work:
    """Work of `steps` decode steps over caches of `first`, `first + 1`, ... tokens, summed exactly.

    A step's work is affine in the cache's length K: `a + b K`, so m steps from K0 on are
    `m a + b (m K0 + m (m - 1) / 2)`. "dynamic" rotary positions with latent attention add a
    constant to every step beyond the trained length; those steps are summed apart.

    Args:
        B: Batch.
        first: Tokens in the first step's cache.
        steps: Number of steps m.
        dimensions: The model.
        element_bytes: Bytes of a feature.
        flash: FlashAttention in place of the eager product.
    """
    decoder = dimensions.decoder
    trained = decoder.max_position_embeddings

    def step(cached: int) -> Work:
        return decode_total(B, cached, dimensions, element_bytes, flash=flash)

    base, slope = step(0), _difference(step(1), step(0))
    parts = [scaled(base, steps)]
    if is_dynamic(decoder):
        slope = _difference(step(trained + 1), step(trained))
        update = _difference(step(trained), combined((base, scaled(slope, trained))))
        parts.append(scaled(update, steps - minimum(steps, maximum(0, trained - first))))
    parts.append(scaled(slope, steps * first + steps * (steps - 1) // 2))
    return combined(parts)


def is_dynamic(decoder: DecoderDimensions) -> bool:
    """Whether a decode step costs more beyond the trained length: "dynamic" positions, latent."""
    scaling = decoder.rope_scaling
    return decoder.use_mla and scaling is not None and scaling.kind == "dynamic"


def _difference(work: Work, other: Work) -> Work:
    return Work(*(a - b for a, b in zip(work, other, strict=True)))


def model_params(dimensions: ModelDimensions) -> dict[Stage | None, int]:
    """Parameters by owning stage; the two separator embeddings belong to None."""
    return {
        "sam": sam_params(dimensions.sam),
        "clip": clip_params(dimensions.clip),
        "projector": projector_params(dimensions.projector),
        "prefill": decoder_params(dimensions.decoder),
        "decode": head_params(dimensions.decoder),
        None: 2 * dimensions.decoder.hidden_size,
    }


@dataclass(frozen=True)
class StageCosts:
    """One stage of one page.

    Attributes:
        params: Parameters that the stage owns.
        work: What it does: for "decode" one step, for the others their part of the prefill pass.
    """

    params: int
    work: Work
    _expand: Callable[[], ModuleWork]

    @cached_property
    def centres(self) -> ModuleWork:
        """Each module's own work (its children's not included) by full path; sums to `work`."""
        return self._expand()


@dataclass(frozen=True)
class PageCosts:
    """What one page (with its batch) costs; every count a Python integer.

    Attributes:
        dimensions: The model.
        workload: The page.
        element_bytes: Bytes of a weight and a feature.
        flash_attention: Whether attention is FlashAttention.
        stages: Costs by stage.
        prefill: The whole prefill pass: `sam + clip + projector + prefill`.
        decode_step: One step over a cache of `seq_len` tokens.
        page: The prefill pass and `max_new_tokens - 1` decode steps over growing caches.
    """

    dimensions: ModelDimensions
    workload: Workload
    element_bytes: int
    flash_attention: bool
    stages: Mapping[Stage, StageCosts]
    prefill: Work
    decode_step: Work
    page: Work

    @property
    def params(self) -> int:
        """Parameters of the whole model, the unassigned ones included."""
        return sum(stage.params for stage in self.stages.values()) + self.unassigned_params

    @property
    def unassigned_params(self) -> int:
        """Parameters that no stage owns: the two separator embeddings."""
        return model_params(self.dimensions)[None]

    @property
    def weights_bytes(self) -> int:
        """Bytes of all parameters."""
        return self.params * self.element_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache for a token of one sequence, all layers together."""
        return self.kv_bytes(1) // self.workload.batch_size

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes of KV cache at the end of the page, when the last token has been generated.

        The last token itself is never fed back, so `seq_len + max_new_tokens - 1` are held.
        """
        return self.kv_bytes(self.workload.seq_len + self.workload.max_new_tokens - 1)

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of KV cache of the batch with `tokens` tokens a sequence."""
        decoder = self.dimensions.decoder
        width = cache_width(decoder, flash=self.flash_attention)
        batch = self.workload.batch_size
        return cache_bytes(batch, tokens, decoder.layers, width, self.element_bytes)

    @property
    def causal_savable_flops(self) -> int:
        """Matrix FLOPs of the prefill pass above the diagonal, which a causal kernel may skip."""
        batch, seq_len = self.workload.batch_size, self.workload.seq_len
        return 2 * decoder_savable_macs(
            batch, seq_len, self.dimensions.decoder, flash=self.flash_attention
        )

    @cached_property
    def peak_activation_bytes(self) -> int:
        """Bytes of tensors alive at once in the prefill pass, besides weights and inputs."""
        return peak_activation_bytes(
            self.dimensions,
            self.workload,
            element_bytes=self.element_bytes,
            flash_attention=self.flash_attention,
        )


def page_costs(
    dimensions: ModelDimensions,
    workload: Workload,
    *,
    element_bytes: int = 2,
    flash_attention: bool = False,
) -> PageCosts:
    """What a page costs, from algebra alone: no model, no torch.

    Args:
        dimensions: The model.
        workload: Page, text, batch and new tokens.
        element_bytes: Bytes of a weight and a feature: 2 (bf16, fp16) or 4 (fp32).
        flash_attention: FlashAttention in place of the decoder's eager attention.

    Raises:
        ConfigError: The model has a part without a closed form.
    """
    decoder, batch = dimensions.decoder, workload.batch_size
    prefill_sections = decoder_sections(
        batch, workload.seq_len, 0, decoder, element_bytes, flash=flash_attention
    )
    layout = _layout(workload, dimensions, element_bytes)
    works: dict[Stage, Work] = _workload_vision(workload, dimensions, element_bytes)
    works["prefill"] = combined((sections_total(prefill_sections), layout))
    works["decode"] = decode_total(
        batch, workload.seq_len, dimensions, element_bytes, flash=flash_attention
    )
    params = model_params(dimensions)

    def centres(stage: Stage) -> ModuleWork:
        return _centres(stage, dimensions, workload, element_bytes, flash_attention)

    prefill = combined(works[stage] for stage in STAGES if stage != "decode")
    steps = decode_steps_total(
        batch,
        workload.seq_len,
        workload.max_new_tokens - 1,
        dimensions,
        element_bytes,
        flash=flash_attention,
    )
    return PageCosts(
        dimensions=dimensions,
        workload=workload,
        element_bytes=element_bytes,
        flash_attention=flash_attention,
        stages={
            stage: StageCosts(params[stage], works[stage], partial(centres, stage))
            for stage in STAGES
        },
        prefill=prefill,
        decode_step=works["decode"],
        page=combined((prefill, steps)),
    )


def _workload_vision(
    workload: Workload, dimensions: ModelDimensions, element_bytes: int
) -> dict[Stage, Work]:
    calls = [
        vision_totals(view.count, view.resolution, dimensions, element_bytes)
        for view in workload.views
    ]
    return {
        stage: scaled(combined(call[stage] for call in calls), workload.batch_size)
        for stage in calls[0]
    }


def _layout(workload: Workload, dimensions: ModelDimensions, element_bytes: int) -> Work:
    """Work between the parts: pixels summed, visual tokens laid out and put in their places.

    Where a page has no local views, blank pixels as many as the whole view's stand for them.
    """
    columns, rows = workload.grid
    whole, local = workload.global_view, workload.local_views
    return layout_total(
        workload.batch_size,
        workload.seq_len,
        workload.visual_tokens,
        whole.resolution,
        None if local is None else local.resolution,
        columns,
        rows,
        dimensions,
        element_bytes,
    )


def layout_total(
    B: Count,
    T: Count,
    visual: Count,
    whole: Count,
    local: Count | None,
    columns: Count,
    rows: Count,
    dimensions: ModelDimensions,
    element_bytes: int,
) -> Work:
    """Work of the model itself between its parts, for B pages alike.

    Args:
        B: Batch.
        T: Tokens of the prompt.
        visual: Visual tokens.
        whole: Pixels a side of the whole view.
        local: Pixels a side of a local view; None for no local views.
        columns: Local views side by side.
        rows: Local views one above the other.
        dimensions: The model.
        element_bytes: Bytes of a feature.
    """
    d = dimensions.decoder.hidden_size
    d_in = dimensions.clip.width + dimensions.sam.out_channels
    first_look = pixel_sum(1, whole, element_bytes)
    page = [
        global_layout(token_side(whole, dimensions.sam), d_in, d, element_bytes),
        page_layout(T, visual, d, element_bytes),
    ]
    if local is None:
        page.append(first_look)
    else:
        q = token_side(local, dimensions.sam)
        page.append(pixel_sum(columns * rows, local, element_bytes))
        page.append(local_layout(columns, rows, q, d_in, d, element_bytes))
    return combined((first_look, scaled(combined(page), B)))


def _centres(
    stage: Stage,
    dimensions: ModelDimensions,
    workload: Workload,
    element_bytes: int,
    flash: bool,
) -> ModuleWork:
    """Own work of a stage's modules, by full path."""
    batch, decoder = workload.batch_size, dimensions.decoder
    if stage in ("prefill", "decode"):
        new, cached = (workload.seq_len, 0) if stage == "prefill" else (1, workload.seq_len)
        modules = expanded(
            decoder_sections(
                batch, new, cached, decoder, element_bytes, flash=flash, each_expert=True
            )
        )
        if stage == "prefill":
            layout = _layout(workload, dimensions, element_bytes)
            modules["model"] = combined((modules["model"], layout))
        return modules
    calls = [
        expanded(_vision_sections(view.count, view.resolution, dimensions, element_bytes)[stage])
        for view in workload.views
    ]
    return {path: scaled(work, batch) for path, work in joined(*calls).items()}
