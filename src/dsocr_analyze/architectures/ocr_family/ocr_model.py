"""What closed forms ask of a model's network, and its passes on tapes."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache, cached_property, lru_cache, partial
from typing import Any, ClassVar, Final

from dsocr_analyze.architectures.config_file import Config, KeyTable
from dsocr_analyze.architectures.ocr_family.attention import LayerCache, Pass
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.views import PageRule
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.figures import (
    DECODE_STAGE,
    PREFILL_STAGE,
    IncidentalOperators,
    Parameters,
    StageScope,
    owner_among,
)
from dsocr_analyze.kernels import BFLOAT16, Dtype
from dsocr_analyze.tape import Operand, Spans, Tape
from dsocr_analyze.workload import PageWorkload, ViewBatch

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


# --- passes ----------------------------------------------------------------------------------


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
