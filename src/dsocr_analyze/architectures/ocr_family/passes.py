"""A relative of DeepSeek-OCR, and its passes on tapes: a page, its views, the decoder and its head.

Source: `DeepseekOCRModel.forward`, `DeepseekOCRForCausalLM.forward` (`modeling_deepseekocr.py`) and
the relatives'. Like the vendor's names, attributes here hold what a page has left until the next
page replaces it, and the last one's until the decoder has finished.
"""

import re
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import Any, ClassVar, Final, TypeAlias

from dsocr_analyze.architectures.config_file import Config, KeyTable
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.decoder import LayerCache, decoder, lm_head
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.stages import StageScope, owner_among
from dsocr_analyze.architectures.views import CropRule
from dsocr_analyze.dtypes import BFLOAT16, BOOL, FLOAT32, INT64, Dtype
from dsocr_analyze.figures import Parameters
from dsocr_analyze.tape import Operand, Size, Spans, Tape
from dsocr_analyze.tape.modules import embedding, linear
from dsocr_analyze.workload import PageWorkload, ViewBatch

_CHANNELS: Final = 3

_MOST_SPANS: Final = 256
"""Calls that are remembered, of up to some hundred records."""


# --- a relative ------------------------------------------------------------------------------

SAM: Final = StageScope("sam", ("model.sam_model",), "vision")
PROJECTOR: Final = StageScope("projector", ("model.projector",), "vision")
PREFILL: Final = StageScope(
    "prefill",
    ("model.embed_tokens", "model.layers", "model.norm"),
    "prefill",
    ("lm_head runs over all positions; its parameters are decode's",),
)
DECODE: Final = StageScope(
    "decode",
    ("lm_head",),
    "decode",
    ("one step over a cache of seq_len tokens, with all of the decoder's work",),
)

ROUTED_EXPERT: Final = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<index>\d+)(?P<below>\..*)?")
"""Paths of a routed expert and what is in it."""


@dataclass(slots=True)
class ViewFeatures:
    """What a vision call leaves: features of SAM and a second encoder, and tokens."""

    spatial: Operand | None = None
    semantic: Operand | None = None
    tokens: Operand | None = None


class OcrModel(ABC):
    """One relative, as forwards and closed forms ask for it.

    Attributes:
        stages: In order; the last is the decode step.
        begins: Names of vision stages by the path at which each begins.
        base_size: Default pixels per side of the global view.
        image_size: Default pixels per side of a local view, or of the only one.
    """

    stages: tuple[StageScope, ...]
    begins: dict[str, str]
    crop: ClassVar[CropRule]
    base_size: ClassVar[int]
    image_size: ClassVar[int]
    config_table: ClassVar[KeyTable]

    @abstractmethod
    def read_dimensions(self, config: Config) -> ModelDimensions:
        """Reads a `config.json`; raises ConfigError for absent, wrong or conflicting keys."""

    def check_flash(self, dimensions: Any) -> None:  # noqa: B027  # most have it
        """Raises ConfigError if the relative's code has no FlashAttention."""

    # --- forwards

    @abstractmethod
    def encode(
        self,
        t: Tape,
        features: ViewFeatures,
        pixels: Operand,
        view: ViewBatch,
        c: Any,
        *,
        is_served: bool = False,
    ) -> None:
        """The vision stages in one call, on a tape in the model's own forward.

        Args:
            t: The tape.
            features: What the call before has left, replaced name by name.
            pixels: `[N, 3, R, R]`.
            view: N and R.
            c: The model's dimensions.
            is_served: Whether a serving engine runs them.
        """

    def lay_out(  # noqa: B027  # some lay nothing out
        self, t: Tape, features: ViewFeatures, view: ViewBatch, grid: tuple[int, int], c: Any
    ) -> None:
        """Lays out the tokens of a grid of columns and rows of views."""

    # --- tokens

    @abstractmethod
    def visual_tokens(
        self, base_size: int, image_size: int, crop_mode: bool, grid: tuple[int, int]
    ) -> int:
        """Tokens of a page, by sizes as of a `PageWorkload`."""


# --- a page -----------------------------------------------------------------------------------


@dataclass(slots=True)
class HeldPages:
    """What is held: the last page's views and tokens, and the last prompt's tokens."""

    local: ViewFeatures = field(default_factory=ViewFeatures)
    whole: ViewFeatures = field(default_factory=ViewFeatures)
    page: Operand | None = None
    tokens: Operand | None = None


def whole_model(
    t: Tape, model: OcrModel, c: ModelDimensions, p: Pass, page: PageWorkload | None
) -> list[LayerCache]:
    """A prefill pass over prompts with a page, or a decode step without one: the cache by layer.

    To be called as a module, `t.call("", whole_model, ...)`.
    """
    hidden, cache = t.call("model", _model, model, c, p, page)
    logits = t.call("lm_head", lm_head, hidden, p, c.decoder)
    t.cast(logits, FLOAT32)
    t.hold(hidden)
    return cache


def classified(
    t: Tape, model: OcrModel, c: ModelDimensions, p: Pass, labels: Size
) -> tuple[None, list[LayerCache]]:
    """The decoder with a linear map of every token; the last token's labels are taken.

    Source: `DeepseekV2ForSequenceClassification`.
    """
    hidden, cache = t.call("model", _model, model, c, p, None)
    scores = t.call("score", linear, hidden, p.tokens, c.decoder.hidden_size, labels)
    pooled = t.gather("index", t.move("arange", n=p.B, dtype=INT64), p.B * labels, t.dtype)
    t.hold(scores, pooled)
    return None, cache


def _model(
    t: Tape, model: OcrModel, c: ModelDimensions, p: Pass, page: PageWorkload | None
) -> tuple[Operand, list[LayerCache]]:
    """The model without its head: normed features `[B, T, d]`, and the cache by layer."""
    embeds, seen = embedded_page(t, model, c, p, page)
    output = decoder(t, embeds, p, c.decoder)
    t.hold(seen.tokens)
    return output


def embedded_page(
    t: Tape, model: OcrModel, c: ModelDimensions, p: Pass, page: PageWorkload | None
) -> tuple[Operand, HeldPages]:
    """Embeddings `[B, T, d]` with visual tokens, and what is held of the pages."""
    d, seen = c.decoder.hidden_size, HeldPages()
    ids = t.input(p.tokens, INT64)
    embeds = t.call("embed_tokens", embedding, ids, c.decoder.vocab_size, d)
    if page is None:
        return embeds, seen
    pixels = pixels_of(t, page.global_view, page.prompt_pages)
    t.reduce("sum", pixels, 1, pixels.n)  # tells whether there is an image
    for _ in t.turns(p.B):
        seen.tokens = None  # frees those of the last prompt first
        seen.tokens = _visual_tokens(t, model, c, seen, page)
        mask = t.input(p.T, BOOL)
        sequence = t.view(embeds, p.T * d)
        t.move("masked_scatter", sequence, seen.tokens, mask, into=embeds)
    return embeds, seen


def pixels_of(t: Tape, view: ViewBatch, pages: int = 1) -> Operand:
    """Pixels `[N, 3, R, R]` of the views of all pages."""
    return t.input(pages * view.count * _CHANNELS * view.resolution**2, t.dtype)


def inputs_bytes(workload: PageWorkload, dtype: Dtype) -> int:
    """Bytes of pixels, token ids, positions, both masks and the crop grid.

    A blank fp32 patch stands for no local views.
    """
    pages = workload.prompt_pages
    page = workload.seq_len * (3 * INT64.nbytes + BOOL.nbytes)
    for view in workload.views:
        page += pages * _CHANNELS * view.count * view.resolution**2 * dtype.nbytes
    if workload.local_views is None:
        page += _CHANNELS * workload.base_size**2 * FLOAT32.nbytes
    return workload.batch_size * (page + pages * len(workload.grid) * INT64.nbytes)


def _visual_tokens(
    t: Tape, model: OcrModel, c: ModelDimensions, seen: HeldPages, w: PageWorkload
) -> Operand:
    """Tokens `[tokens, d]` of a prompt's pages: local views, global view, separator."""
    if w.local_views is None:
        blank = _CHANNELS * w.base_size**2
        t.reduce("sum", t.input(blank, FLOAT32), 1, blank)
    else:
        pixels = pixels_of(t, w.local_views)
        t.reduce("sum", pixels, 1, pixels.n)
        model.encode(t, seen.local, pixels, w.local_views, c)
    pages: list[Operand] = []
    for skipped in t.turns(w.prompt_pages):
        if skipped:
            pages.append(t.empty(skipped * pages[0].n, t.dtype))
        model.encode(t, seen.whole, pixels_of(t, w.global_view), w.global_view, c)
        model.lay_out(t, seen.whole, w.global_view, (1, 1), c)
        assert seen.whole.tokens is not None
        parts = [seen.whole.tokens, t.weight(c.decoder.hidden_size, "view_seperator")]
        if w.local_views is not None:
            model.lay_out(t, seen.local, w.local_views, w.grid, c)
            assert seen.local.tokens is not None
            parts.insert(0, seen.local.tokens)
        seen.page = t.cat(*parts)
        del parts
        pages.append(seen.page)
    return t.cat(*pages)


# --- passes ----------------------------------------------------------------------------------


def prefill(
    model: OcrModel,
    c: ModelDimensions,
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
    tape = Tape(dtype, model.begins, PREFILL.name, records=records, spans=spans)
    p = Pass(workload.batch_size, workload.seq_len, flash=flash)
    cache, nbytes = tape.call("", whole_model, model, c, p, workload), 0
    for kept in cache:
        nbytes += kept[0].nbytes + kept[1].nbytes
    del cache, kept
    tape.check_nothing_is_left()
    if is_traced:
        found: list[tuple[Tape, int]] = []
        again = partial(prefill, flash=flash, records=False, is_compared=False)
        # No tracer of this thread sees another one.
        thread = threading.Thread(target=lambda: found.append(again(model, c, workload, dtype)))
        thread.start()
        thread.join()
        if (tape.peak, nbytes) != (found[0][0].peak, found[0][1]):
            # Before Python 3.13, variables that a tracer has looked at live on for a while.
            raise RuntimeError(
                f"the peak of {tape.peak.nbytes} bytes is wrong: a debugger or tracer keeps tensors"
                " alive; run without it"
            )
    return tape, nbytes


@lru_cache(maxsize=16)
def _spans(model: OcrModel, c: ModelDimensions, dtype: Dtype) -> Spans:
    """What modules have left on earlier tapes: equal views run equal encoders."""
    return {}


def step(model: OcrModel, c: ModelDimensions, p: Pass, dtype: Dtype) -> Tape:
    """A decode step: its records and calls."""
    t = Tape(dtype, stage=DECODE.name, weights=False)  # which are the prefill pass's
    t.call("", whole_model, model, c, p, None)
    t.check_nothing_is_left()
    return t


ViewSizes: TypeAlias = tuple[int, int, int, int, int]
"""Pixels per side of the blank patch, of the global view and of local views; their grid."""


def page_with(model: OcrModel, sizes: ViewSizes) -> PageWorkload:
    """A page with these views."""
    base, whole, local, columns, rows = sizes
    is_cut = columns * rows > 1
    seen = ViewBatch(1, whole)
    image_size = local if is_cut else whole
    return PageWorkload(
        page=(1, 1),
        base_size=base,
        image_size=image_size,
        crop_mode=is_cut,
        grid=(columns, rows),
        views=(ViewBatch(columns * rows, local), seen) if is_cut else (seen,),
        visual_tokens=model.visual_tokens(whole, image_size, is_cut, (columns, rows)),
        text_tokens=1,
        batch_size=1,
        max_new_tokens=1,
    )


@lru_cache
def owned_params(model: OcrModel, c: ModelDimensions) -> tuple[Mapping[str, int], Parameters]:
    """Parameters, as any page's prefill pass declares them, by stage and all."""
    page = page_with(model, (*3 * (model.base_size,), 1, 1))
    t, _ = prefill(model, c, page, BFLOAT16, flash=False)
    by_stage: dict[str, int] = {}
    unassigned: dict[str, int] = {}
    depth = 1  # no prefix is longer, so modules that begin alike have one owner
    for stage in model.stages:
        by_stage[stage.name] = 0
        for prefix in stage.prefixes:
            depth = max(depth, prefix.count(".") + 1)
    owner_of = cache(partial(owner_among, model.stages))
    for path, name, n in dict.fromkeys(t.weights):
        owner = owner_of(".".join(path.split(".", depth)[:depth]))
        if owner is None:
            unassigned[f"{path}.{name}"] = n
        else:
            by_stage[owner.name] += n
    total = sum(by_stage.values()) + sum(unassigned.values())
    return by_stage, Parameters(total, unassigned)
