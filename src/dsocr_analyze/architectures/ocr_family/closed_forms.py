"""The closed forms of a relative: figures from the tapes of its passes, memory at their peaks.

`prefill_bytes_alive` and `decode_bytes_alive` assume that the model's own `generate` runs a batch:
all pages prefill at once, and the prefill pass's inputs are held until the last token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures.config_file import (
    Code,
    Config,
    ConfigFindings,
    ConfigKeys,
    findings_of,
)
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.decoder import (
    NOT_MODELLED,
    expert_params,
    experts_touched,
)
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions, SamDimensions
from dsocr_analyze.architectures.ocr_family.passes import (
    DECODE,
    PREFILL,
    ROUTED_EXPERT,
    OcrModel,
    head,
    inputs_bytes,
    owned_params,
    prefill,
    step,
)
from dsocr_analyze.architectures.stages import Composition, NotModelled, PageTotals
from dsocr_analyze.dtypes import BFLOAT16, Dtype
from dsocr_analyze.figures import BytesAlive, ExpertsTouched, Memory, Peak, StageFigures
from dsocr_analyze.kernels import NO_WORK, Kernel, Work, merged, total_work
from dsocr_analyze.tape import Size, Tape
from dsocr_analyze.workload import Workload

if TYPE_CHECKING:
    from dsocr_analyze.architectures.ocr_family.served import Served

__all__ = ["ClosedForms"]

_LAYER: Final = re.compile(r"model\.layers\.(?P<index>\d+)(?:\..*)?")
_HEAD: Final = ("", "lm_head")
"""Path of the peak if it is in the head: the model itself casts the logits."""

_NUMBERED: Final = re.compile(
    r"(?P<list>model\.sam_model\.blocks|model\.vision_model\.transformer\.layers"
    r"|model\.qwen2_model\.model\.model\.layers|model\.layers)"
    r"\.(?P<index>\d+)(?P<below>\..*)?"
)
_PUBLISHED_GLOBAL_BLOCKS: Final = frozenset({2, 5, 8, 11})
"""SAM's global blocks in the published files, which hard-code them."""


class ClosedForms:
    """Everything known about a relative without running it.

    Args:
        model: The relative.

    Attributes:
        not_modelled: Operators that the closed forms leave out.
        crop_grids: How pages are cropped into local views.
    """

    not_modelled: tuple[NotModelled, ...] = NOT_MODELLED

    def __init__(self, model: OcrModel) -> None:
        self.model, self.crop_grids = model, model.crop

    @cached_property
    def served(self) -> Served:
        """What a serving engine launches for it."""
        # Imported here because few runs need it and the import takes time.
        from dsocr_analyze.architectures.ocr_family.served import Served

        return Served(self.model)

    # --- dimensions

    def dimensions(self, config: Config, code: Code = "reference") -> ModelDimensions:
        """Dimensions of the model that the given code builds from a config.

        Args:
            config: The top-level object of a `config.json`.
            code: Whose code reads it; other code is assumed to read what the reference reads.

        Raises:
            ConfigError: The file does not describe a model, or one that is not modelled.
        """
        self.config_findings(config, code).check_modelled()
        if code != "published":
            return self.model.read_dimensions(config)
        built = self.model.config_table.built
        width = built["projector_config"]["n_embed"]
        if config.get("hidden_size") != width:
            raise ConfigKeys(config).refusal(
                "hidden_size",
                f"{width}, the width for which the directory's code builds its projector",
            )
        return self.model.read_dimensions({**config, **built})

    def config_findings(self, config: Config, code: Code) -> ConfigFindings:
        """What a config's keys other than dimensions do, for the code that reads it."""
        return findings_of(config, self.model.config_table, code)

    def parameter_count(self, dimensions: ModelDimensions) -> int:
        """Parameters of the whole model."""
        _, parameters = owned_params(self.model, dimensions)
        return parameters.total

    def expert_params(self, dimensions: ModelDimensions) -> int:
        """Parameters of one routed expert; 0 without experts."""
        return expert_params(dimensions.decoder)

    def repeats(self, dimensions: ModelDimensions) -> Callable[[str], str | None]:
        """Which of its modules are alike, those that do the same work on equal arguments.

        In the built-in reference and in the published files, these are SAM's blocks with the same
        kind of attention (windowed or global), the second encoder's layers, the decoder's dense
        layers, its MoE layers, all routed experts, and within each of these the modules at the same
        place. That is tested on both against a trace of every module. Any other module is only like
        itself.

        Returns:
            Maps a path to the name that they share, or to None for a module like no other.
        """

        def name(path: str) -> str:
            layer = _NUMBERED.fullmatch(path)
            if layer is None:
                return path
            index, below = int(layer["index"]), layer["below"] or ""
            if layer["list"] == "model.sam_model.blocks":
                variant = _sam_variant(dimensions.sam, index)
            elif layer["list"] == "model.layers":
                variant = "moe" if dimensions.decoder.is_moe(index) else "dense"
            else:
                variant = "each"
            shared = f"{layer['list']}.{variant}{below}"
            expert = ROUTED_EXPERT.fullmatch(shared)
            return shared if expert is None else f"{expert['experts']}.each{expert['below'] or ''}"

        return name

    # --- figures of a workload

    @lru_cache(maxsize=4)  # noqa: B019  # a page is composed for its report and for its seconds
    def compose(
        self, c: ModelDimensions, workload: Workload, dtype: Dtype, flash_attention: bool
    ) -> Composition:
        """The figures of a workload.

        Args:
            c: The model's dimensions.
            workload: Page, text, batch and new tokens.
            dtype: Type of weights and activations.
            flash_attention: FlashAttention instead of the decoder's eager attention.

        Raises:
            ConfigError: A part of the model has no closed form.
        """
        c.decoder.check_positions(workload.seq_len, workload.max_new_tokens)
        if flash_attention:
            self.model.check_flash(c)
        pages, cache_bytes = prefill(self.model, c, workload, dtype, flash=flash_attention)
        first = step(self.model, c, _pass_of_step(c, workload, 0, flash=flash_attention), dtype)
        params, parameters = owned_params(self.model, c)
        experts = self.experts_touched(c, workload, dtype)
        stages = self._figures_by_stage(pages, first, params, experts)
        works = {name: stage.work for name, stage in stages.items()}
        first_step = works.pop(DECODE.name)
        steps = self._steps_work(c, workload, dtype, first_step, flash=flash_attention)
        return Composition(
            stages=stages,
            parameters=parameters,
            batch=total_work(works.values()).plus(steps),
            causal_savable_flops=2 * sum(pages.savings),
            memory=self._memory_of(c, workload, dtype, pages.peak, cache_bytes),
        )

    def _steps_work(
        self,
        c: ModelDimensions,
        workload: Workload,
        dtype: Dtype,
        first: Work,
        *,
        flash: bool,
    ) -> Work:
        """Work of all decode steps, summed exactly: within a stretch it is affine in the cache.

        Args:
            c: Its dimensions.
            workload: The workload.
            dtype: Type of weights and features.
            first: Work of the first step.
            flash: FlashAttention instead of the eager product.
        """

        def work(number: int) -> Work:
            if not number:
                return first
            p = _pass_of_step(c, workload, number, flash=flash)
            return total_work(map(attrgetter("total"), step(self.model, c, p, dtype).kernels))

        steps, total = workload.max_new_tokens - 1, NO_WORK
        cuts = {min(cut, steps) for cut in (0, *c.step_cuts(workload.seq_len), steps)}
        for start, stop in pairwise(sorted(cuts)):
            n = stop - start
            begin = work(start)
            more = work(start + 1).minus(begin) if n > 1 else NO_WORK
            total = total.plus(begin.times(n)).plus(more.times(n * (n - 1) // 2))
        return total

    def _figures_by_stage(
        self,
        pages: Tape,
        first: Tape,
        params: Mapping[str, int],
        experts: Mapping[str, ExpertsTouched],
    ) -> dict[str, StageFigures]:
        """Every stage's records and calls, from the tapes of the prefill pass and first step."""
        kernels: dict[str, list[Kernel]] = {stage.name: [] for stage in self.model.stages}
        calls: dict[str, dict[str, int]] = {stage.name: {} for stage in self.model.stages}
        for tape in (pages, first):
            for name, records in groupby(tape.kernels, attrgetter("stage")):
                kernels[name] += records
            for path, name, times in tape.calls:
                calls[name][path] = calls[name].get(path, 0) + times
        return {
            stage.name: StageFigures(
                name=stage.name,
                params=params[stage.name],
                calls=calls[stage.name][stage.prefixes[0] if stage.role == "vision" else ""],
                kernels=merged(kernels[stage.name]),
                module_calls=calls[stage.name],
                notes=stage.notes,
                experts=experts.get(stage.name),
            )
            for stage in self.model.stages
        }

    def step_kernels(
        self,
        c: ModelDimensions,
        batch: int,
        cached: int,
        dtype: Dtype,
        flash_attention: bool,
        overwrites: bool = False,
    ) -> tuple[Kernel, ...]:
        """The records of an expected decode step over caches of `cached` tokens.

        They are those of `compose`, except that a batch runs the number of experts touched by
        independent choices, rounded to a whole number, instead of the maximum. If the new token
        `overwrites` one of a full window, `cached` excludes that.
        """
        experts = experts_touched(batch, c.decoder, dtype)
        touched = None if experts is None else round(experts.expected)
        p = Pass(batch, 1, cached, flash=flash_attention, overwrites=overwrites, touched=touched)
        return merged(step(self.model, c, p, dtype).kernels)

    def page_totals(
        self,
        dimensions: ModelDimensions,
        *,
        dtype: Dtype = BFLOAT16,
        flash_attention: bool = False,
        **sizes: Size,
    ) -> PageTotals:
        """The closed forms of many workloads at once; see `totals.page_totals`.

        Args:
            dimensions: The model's dimensions.
            dtype: Type of weights and features.
            flash_attention: FlashAttention instead of the decoder's eager attention.
            sizes: `base_size`, `whole_resolution`, `local_resolution`, `columns`, `rows`,
                `text_tokens`, `max_new_tokens`, `batch_size`; each an integer for all workloads, or
                an array `[n]`.

        Raises:
            WorkloadError: A size is not an integer, is too small, or differs in length.
            ConfigError: A part of the model has no closed form.
        """
        # Imported here because few runs need it and the import takes time.
        from dsocr_analyze.architectures.ocr_family.totals import page_totals

        return page_totals(
            self.model, dimensions, dtype=dtype, flash_attention=flash_attention, **sizes
        )

    def experts_touched(
        self, c: ModelDimensions, workload: Workload, dtype: Dtype
    ) -> dict[str, ExpertsTouched]:
        """Routed experts that a workload touches under an even split: its prompts, and a step."""
        batch = workload.batch_size
        tokens = {PREFILL.name: batch * workload.seq_len, DECODE.name: batch}
        found = {name: experts_touched(n, c.decoder, dtype) for name, n in tokens.items()}
        return {name: experts for name, experts in found.items() if experts is not None}

    # --- memory

    @lru_cache(maxsize=4096)  # noqa: B019  # a search for the largest batch asks again and again
    def memory(
        self, c: ModelDimensions, workload: Workload, dtype: Dtype, flash_attention: bool
    ) -> Memory:
        """Bytes that a workload holds in memory."""
        t, cache = prefill(self.model, c, workload, dtype, flash=flash_attention, records=False)
        return self._memory_of(c, workload, dtype, t.peak, cache)

    def _memory_of(
        self, c: ModelDimensions, workload: Workload, dtype: Dtype, peak: Peak, cache_bytes: int
    ) -> Memory:
        """The same, from what the prefill pass holds."""
        generated = workload.max_new_tokens - 1
        if c.sliding_window is not None:
            generated = min(generated, c.sliding_window)
        per_token = cache_bytes // workload.seq_len
        return Memory(
            weights_bytes=self.parameter_count(c) * dtype.nbytes,
            inputs_bytes=inputs_bytes(workload, dtype),
            prefill_cache_bytes=cache_bytes,
            kv_cache_bytes=cache_bytes + per_token * generated,
            peak=peak,
        )

    def prefill_bytes_alive(
        self, c: ModelDimensions, workload: Workload, dtype: Dtype, flash_attention: bool
    ) -> BytesAlive:
        """Bytes alive at the peak of the prefill pass, besides the weights."""
        if flash_attention:
            self.model.check_flash(c)
        held = self.memory(c, workload, dtype, flash_attention)
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

    def decode_bytes_alive(
        self, c: ModelDimensions, workload: Workload, dtype: Dtype, flash_attention: bool
    ) -> BytesAlive:
        """Bytes alive in the last decode step, besides the weights.

        The full KV cache, with one layer duplicated while it grows by a token, and the logits.
        """
        held = self.memory(c, workload, dtype, flash_attention)
        return BytesAlive(
            inputs_bytes=held.inputs_bytes,
            cache_bytes=held.kv_cache_bytes + held.kv_cache_bytes // c.decoder.layers,
            activation_bytes=0,
            logits_bytes=_logits_bytes(c, Pass(workload.batch_size, 1), dtype),
        )


def _pass_of_step(c: ModelDimensions, workload: Workload, number: int, *, flash: bool) -> Pass:
    """The decode step of this number, from 0."""
    cached, window = workload.seq_len + number, c.sliding_window
    if window is None or number < window:
        return Pass(workload.batch_size, 1, cached, flash=flash)
    others = workload.seq_len + window - 1
    return Pass(workload.batch_size, 1, others, flash=flash, overwrites=True)


def _layers_cached(path: str, layers: int) -> int:
    """Layers whose keys and values exist when the module at `path` runs."""
    if path in (*_HEAD, "model.norm"):
        return layers
    found = _LAYER.fullmatch(path)
    return int(found["index"]) + 1 if found else 0


def _logits_bytes(c: ModelDimensions, p: Pass, dtype: Dtype) -> int:
    """Bytes of a pass's logits, in every type in which they exist at once."""
    t = Tape(dtype, records=False)
    t.call("", head, t.input(p.tokens * c.decoder.hidden_size, dtype), p, c)
    t.check_nothing_is_left()
    return t.peak.nbytes


def _sam_variant(sam: SamDimensions, index: int) -> str:
    """A block's attention by the config, as in the reference, and by the published files."""
    kinds = (index in sam.global_attn_indexes, index in _PUBLISHED_GLOBAL_BLOCKS)
    return "-".join("global" if is_global else "windowed" for is_global in kinds)
