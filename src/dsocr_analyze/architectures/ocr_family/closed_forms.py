"""What closed forms ask of a model's network, and the closed forms, from tapes of its passes.

`prefill_bytes_alive` and `decode_bytes_alive` are those of the model's own `generate`: all pages
prefill at once, and their inputs are held until the last token.
"""

import re
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from operator import attrgetter
from typing import Any, ClassVar, Final

from dsocr_analyze.architectures.config_file import (
    Code,
    Config,
    ConfigKeys,
    KeyTable,
    findings_of,
)
from dsocr_analyze.architectures.ocr_family.attention import LayerCache, Pass
from dsocr_analyze.architectures.ocr_family.decoder import experts_touched
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.ocr_family.served import Served
from dsocr_analyze.architectures.views import PageRule
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.figures import (
    DECODE_STAGE,
    PREFILL_STAGE,
    BytesAlive,
    Composition,
    IncidentalOperators,
    MemoryFigures,
    PageTotals,
    Parameters,
    Peak,
    RoutedExperts,
    StageFigures,
    StageScope,
    owner_among,
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
from dsocr_analyze.tape import Operand, Size, Spans, Tape
from dsocr_analyze.workload import PageWorkload, ViewBatch, step_stretches

_MOST_SPANS: Final = 256
"""Calls that are remembered, of up to some hundred records."""


class OcrModel(ABC):
    """A network, from a page to its last logits.

    Attributes:
        stages: In order; the last is the decode step.
        layers_path: Of the module that has the decoder's layers and its last norm.
        not_modelled: Operators that no forward has.
        views_of: Which sizes of `page_totals`, in its order, decide what views cost.
    """

    stages: tuple[StageScope, ...]
    config_table: KeyTable
    layers_path: ClassVar[str]
    not_modelled: ClassVar[tuple[IncidentalOperators, ...]] = ()
    views_of: ClassVar[slice]

    @cached_property
    def begins(self) -> dict[str, str]:
        """Names of vision stages by the path at which each begins."""
        vision = (stage for stage in self.stages if stage.role == "vision")
        return {prefix: stage.name for stage in vision for prefix in stage.prefixes}

    @abstractmethod
    def read_dimensions(self, config: Config) -> ModelDimensions:
        """Reads a `config.json`; raises ConfigError for absent, wrong or conflicting keys."""

    def check_flash(self, dimensions: Any) -> None:
        """Raises ConfigError if the model's code has no FlashAttention, or it fails.

        Latent attention pads values to the width of keys (`DeepseekV2FlashAttention2`).
        """
        decoder = dimensions.decoder
        if decoder.use_mla and decoder.v_head_dim > decoder.head_dim:
            raise ConfigError(
                "flash_attention=True is not supported: latent attention's values are wider"
                f" ('v_head_dim' {decoder.v_head_dim}) than its keys ({decoder.head_dim}); give"
                " flash_attention=False",
                arguments=["flash_attention"],
            )

    def repeats(self, dimensions: Any) -> Callable[[str], str | None] | None:
        """Maps the path of a module to a name that it shares with those that are alike.

        These do the same work on equal arguments. None for a model without any that are known.
        """
        return None

    # --- forwards

    @abstractmethod
    def whole_model(self, t: Tape, c: Any, p: Pass, page: PageWorkload | None) -> list[LayerCache]:
        """A prefill pass over prompts with a page, or a decode step without: the cache by layer.

        To be called as a module, `t.call("", model.whole_model, ...)`.
        """

    @abstractmethod
    def embedded_page(self, t: Tape, c: Any, p: Pass, page: PageWorkload) -> tuple[Operand, Any]:
        """Embeddings `[B, T, d]` with visual tokens, and what is held of the pages."""

    @abstractmethod
    def decoder(
        self, t: Tape, embeds: Operand, p: Pass, c: Any
    ) -> tuple[Operand, list[LayerCache]]:
        """Embeddings `[B, T, d]` to normed features, and the cache by layer."""

    @abstractmethod
    def served_views(self, t: Tape, view: ViewBatch, c: Any) -> Any:
        """The vision stages in one call, as a serving engine runs them."""

    # --- pages

    @property
    @abstractmethod
    def page_rule(self) -> PageRule:
        """How it sees pages."""

    @abstractmethod
    def page_with(self, sizes: tuple[int, ...]) -> PageWorkload:
        """A page by the sizes that decide what its views cost."""

    @abstractmethod
    def inputs_bytes(self, workload: PageWorkload, dtype: Dtype) -> int:
        """Bytes of all that `generate` is given for a batch."""


# --- passes ------------------------------------------------------------------------------------


def prefill(
    model: OcrModel,
    c: Any,
    workload: PageWorkload,
    dtype: Dtype,
    *,
    flash: bool,
    records: bool = True,
    is_compared: bool = True,
) -> tuple[Tape, int]:
    """The tape of a prefill pass, and the bytes of keys and values that it leaves.

    Under a tracer it `is_compared` with another; raises RuntimeError if tensors were kept alive.
    """
    is_traced = is_compared and sys.gettrace() is not None
    spans = {} if is_traced or not is_compared else _spans(model, c, dtype)
    if len(spans) > _MOST_SPANS:
        spans.clear()
    tape = Tape(dtype, model.begins, PREFILL_STAGE, records=records, spans=spans)
    p = Pass(workload.batch_size, workload.seq_len, flash=flash)
    cache = tape.call("", model.whole_model, c, p, workload)
    nbytes = sum(keys.nbytes + values.nbytes for keys, values, *_ in cache)
    del cache
    tape.check_nothing_is_left()
    if is_traced:
        from concurrent.futures import ThreadPoolExecutor  # few runs need it

        again = partial(prefill, flash=flash, records=False, is_compared=False)
        with ThreadPoolExecutor() as other:  # no tracer of this thread sees another one
            untraced, held = other.submit(again, model, c, workload, dtype).result()
        if (tape.peak, nbytes) != (untraced.peak, held):
            # Before Python 3.13, variables that a tracer has looked at live on for a while.
            raise RuntimeError(
                f"the peak of {tape.peak.nbytes} bytes is wrong: a debugger or tracer keeps tensors"
                " alive; run without it"
            )
    return tape, nbytes


@lru_cache(maxsize=16)
def _spans(model: OcrModel, c: Any, dtype: Dtype) -> Spans:
    """What modules have left on earlier tapes: equal views run equal encoders."""
    return {}


def step(model: OcrModel, c: Any, p: Pass, dtype: Dtype) -> Tape:
    """A decode step: its records and calls."""
    t = Tape(dtype, stage=DECODE_STAGE, weights=False)  # which are the prefill pass's
    t.call("", model.whole_model, c, p, None)
    t.check_nothing_is_left()
    return t


@lru_cache
def owned_params(model: OcrModel, c: Any) -> tuple[Mapping[str, int], Parameters]:
    """Parameters, as any page's prefill pass declares them, by stage and all."""
    # Any page has them all.
    page = model.page_with(tuple([1024, 1024, 1024, 2, 2, 1, 1][model.views_of]))
    t, _ = prefill(model, c, page, BFLOAT16, flash=False)
    by_stage = {stage.name: 0 for stage in model.stages}
    unassigned: dict[str, int] = {}
    # No prefix is longer, so modules that begin alike have one owner.
    depth = 1 + max(prefix.count(".") for stage in model.stages for prefix in stage.prefixes)
    owner_of = cache(partial(owner_among, model.stages))
    for path, name, n in dict.fromkeys(t.weights):
        owner = owner_of(".".join(path.split(".", depth)[:depth]))
        if owner is None:
            unassigned[f"{path}.{name}"] = n
        else:
            by_stage[owner.name] += n
    total = sum(by_stage.values()) + sum(unassigned.values())
    return by_stage, Parameters(total, unassigned)


# --- closed forms --------------------------------------------------------------------------------

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
