"""The closed forms of a relative, from the tapes of its passes.

`prefill_bytes_alive` and `decode_bytes_alive` are those of the model's own `generate`: all pages
prefill at once, and their inputs are held until the last token.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Final

from dsocr_analyze.architectures.config_file import (
    Code,
    Config,
    ConfigKeys,
    findings_of,
)
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.decoder import experts_touched
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.ocr_family.ocr_model import (
    OcrModel,
    owned_params,
    prefill,
    step,
)
from dsocr_analyze.architectures.ocr_family.served import Served
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.figures import (
    DECODE_STAGE,
    PREFILL_STAGE,
    BytesAlive,
    Composition,
    MemoryFigures,
    PageTotals,
    Peak,
    RoutedExperts,
    StageFigures,
)
from dsocr_analyze.kernels import (
    BFLOAT16,
    FLOAT32,
    NO_WORK,
    Dtype,
    Kernel,
    Work,
    grouped,
    merged,
    total_work,
)
from dsocr_analyze.tape import Size
from dsocr_analyze.workload import PageWorkload, step_stretches

_HEAD: Final = ("", "lm_head")
"""Paths of a peak in the head: the model itself casts the logits."""


@dataclass(frozen=True, eq=False)
class ClosedForms:
    """What is known of a model without running it, except what it says is not modelled."""

    model: OcrModel

    @cached_property
    def served(self) -> Served:
        """What a serving engine launches for it."""
        return Served(self.model)

    # --- dimensions

    def dimensions(self, config: Config, code: Code = "reference") -> ModelDimensions:
        """Dimensions of the model that code builds; that of others, as the reference would.

        Raises ConfigError for a file that describes no model, or one that is not modelled.
        """
        for message, _ in findings_of(config, self.model.config_table, code).refusals:
            raise ConfigError(message)
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

    def parameter_count(self, dimensions: ModelDimensions) -> int:
        """Parameters of the whole model."""
        return owned_params(self.model, dimensions)[1].total

    # --- figures of a workload

    @lru_cache(maxsize=4)  # noqa: B019  # a page is composed for its report and for its seconds
    def compose(
        self, c: ModelDimensions, workload: PageWorkload, dtype: Dtype, flash_attention: bool
    ) -> Composition:
        """The figures of a workload; raises ConfigError for what has no closed form."""
        c.decoder.check_positions(workload.seq_len, workload.max_new_tokens)
        if flash_attention:
            self.model.check_flash(c)
        pages, cache_bytes = prefill(self.model, c, workload, dtype, flash=flash_attention)
        first = step(self.model, c, _pass_of_step(c, workload, 0, flash=flash_attention), dtype)
        params, parameters = owned_params(self.model, c)
        experts = self.experts_touched(c, workload, dtype)
        kernels = grouped((each.stage, each) for tape in (pages, first) for each in tape.kernels)
        calls: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for path, name, times in (*pages.calls, *first.calls):
            calls[name][path] = calls[name].get(path, 0) + times
        stages = {
            stage.name: StageFigures(
                name=stage.name,
                params=params[stage.name],
                calls=calls[stage.name][stage.prefixes[0] if stage.role == "vision" else ""],
                kernels=merged(kernels.get(stage.name, ())),
                module_calls=calls[stage.name],
                notes=stage.notes,
                experts=experts.get(stage.name),
            )
            for stage in self.model.stages
        }
        *passes, decode = map(attrgetter("work"), stages.values())
        steps = self._steps_work(c, workload, dtype, decode, flash=flash_attention)
        return Composition(
            stages=stages,
            parameters=parameters,
            batch=total_work([*passes, steps]),
            causal_savable_flops=2 * sum(pages.savings),
            memory=self._memory_of(c, workload, dtype, pages.peak, cache_bytes),
        )

    def _steps_work(
        self,
        c: ModelDimensions,
        workload: PageWorkload,
        dtype: Dtype,
        first: Work,
        *,
        flash: bool,
    ) -> Work:
        """Work of all decode steps, which within a stretch is affine in the cache."""
        total = NO_WORK
        for stretch in step_stretches(workload.max_new_tokens, c.step_cuts(workload.seq_len)):
            works, n = [] if stretch[0] else [first], len(stretch)
            for number in stretch[len(works) : 2]:
                p = _pass_of_step(c, workload, number, flash=flash)
                kernels = step(self.model, c, p, dtype).kernels
                works.append(total_work(map(attrgetter("total"), kernels)))
            total = total.plus(works[0].times(n))
            if n > 1:
                total = total.plus(works[1].minus(works[0]).times(n * (n - 1) // 2))
        return total

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

        A batch runs the experts that independent choices touch, rounded. A token that the new one
        `overwrites` in a full window is not among the `cached`.
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
        """The closed forms of many workloads, of `sizes` as in `totals.page_totals`."""
        # Few runs need it, and the import takes time.
        from dsocr_analyze.architectures.ocr_family.totals import page_totals

        return page_totals(
            self.model, dimensions, dtype=dtype, flash_attention=flash_attention, **sizes
        )

    def experts_touched(
        self, c: ModelDimensions, workload: PageWorkload, dtype: Dtype
    ) -> dict[str, RoutedExperts]:
        """Routed experts that prompts and a step touch, by stage."""
        batch = workload.batch_size
        prompts = experts_touched(batch * workload.seq_len, c.decoder, dtype)
        steps = experts_touched(batch, c.decoder, dtype)
        return {PREFILL_STAGE: prompts, DECODE_STAGE: steps} if prompts and steps else {}

    # --- memory

    @lru_cache(maxsize=4096)  # noqa: B019  # a search for the largest batch asks again and again
    def memory(
        self, c: ModelDimensions, workload: PageWorkload, dtype: Dtype, flash_attention: bool
    ) -> MemoryFigures:
        """Bytes that a workload holds."""
        t, cache = prefill(self.model, c, workload, dtype, flash=flash_attention, records=False)
        return self._memory_of(c, workload, dtype, t.peak, cache)

    def _memory_of(
        self, c: ModelDimensions, workload: PageWorkload, dtype: Dtype, peak: Peak, cache_bytes: int
    ) -> MemoryFigures:
        steps = workload.max_new_tokens - 1
        generated = min(steps, c.decoder.sliding_window or steps)
        per_token = cache_bytes // workload.seq_len
        return MemoryFigures(
            weights_bytes=owned_params(self.model, c)[1].total * dtype.nbytes,
            inputs_bytes=self.model.inputs_bytes(workload, dtype),
            prefill_cache_bytes=cache_bytes,
            kv_cache_bytes=cache_bytes + per_token * generated,
            peak=peak,
        )

    def prefill_bytes_alive(
        self, c: ModelDimensions, workload: PageWorkload, dtype: Dtype, flash_attention: bool
    ) -> BytesAlive:
        """Bytes alive at the peak of the prefill pass, besides weights."""
        if flash_attention:
            self.model.check_flash(c)
        held = self.memory(c, workload, dtype, flash_attention)
        decoder, path = c.decoder, held.peak.path
        layers = self._layers_cached(path, decoder.layers)
        cached = layers * held.prefill_cache_bytes // decoder.layers
        logits = 0
        if path in _HEAD:
            rows = 1 if decoder.is_of_transformers else workload.seq_len
            logits = _logits_bytes(c, Pass(workload.batch_size, rows), dtype)
        return BytesAlive(
            inputs_bytes=held.inputs_bytes,
            cache_bytes=cached,
            activation_bytes=held.peak.nbytes - cached - logits,
            logits_bytes=logits,
        )

    def decode_bytes_alive(
        self, c: ModelDimensions, workload: PageWorkload, dtype: Dtype, flash_attention: bool
    ) -> BytesAlive:
        """Bytes alive in the last decode step, besides weights.

        The KV cache, with one layer twice as it grows, and the logits.
        """
        held = self.memory(c, workload, dtype, flash_attention)
        return BytesAlive(
            inputs_bytes=held.inputs_bytes,
            cache_bytes=held.kv_cache_bytes + held.kv_cache_bytes // c.decoder.layers,
            activation_bytes=0,
            logits_bytes=_logits_bytes(c, Pass(workload.batch_size, 1), dtype),
        )

    def _layers_cached(self, path: str, layers: int) -> int:
        """Layers that have keys and values when the module at `path` runs."""
        above = re.escape(self.model.layers_path)
        if path in (*_HEAD, f"{self.model.layers_path}.norm"):
            return layers
        found = re.fullmatch(rf"{above}\.layers\.(?P<index>\d+)(?:\..*)?", path)
        return int(found["index"]) + 1 if found else 0


def _pass_of_step(c: ModelDimensions, workload: PageWorkload, number: int, *, flash: bool) -> Pass:
    """The decode step of a number from 0."""
    cached, window = workload.seq_len + number, c.decoder.sliding_window
    if window is None or number < window:
        return Pass(workload.batch_size, 1, cached, flash=flash)
    others = workload.seq_len + window - 1
    return Pass(workload.batch_size, 1, others, flash=flash, overwrites=True)


def _logits_bytes(c: ModelDimensions, p: Pass, dtype: Dtype) -> int:
    """Bytes of a pass's logits, in the model's type and, unless it is the same, in fp32."""
    logits: int = p.tokens * c.decoder.vocab_size
    return logits * (dtype.nbytes + (FLOAT32.nbytes if dtype != FLOAT32 else 0))
