"""A relative of DeepSeek-OCR, and its passes on tapes: a page, its views, the decoder and its head.

The relatives share SAM, the projector and the decoder; an `OcrModel` says what distinguishes one
from another: stages, vision side and tokens.

Source: `DeepseekOCRModel.forward`, `DeepseekOCRForCausalLM.forward` (`modeling_deepseekocr.py`) and
the relatives'. The vendor's code holds what it computed of a page until the next page replaces it
name by name, and of the last one until the decoder has finished; so do the attributes here.
"""

from __future__ import annotations

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
from dsocr_analyze.architectures.ocr_family.decoder import Kept, decoder, lm_head
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.stages import Stage, owner_among
from dsocr_analyze.architectures.views import CropRule, tokens_per_side
from dsocr_analyze.dtypes import BFLOAT16, BOOL, FLOAT32, INT64, Dtype
from dsocr_analyze.figures import Parameters
from dsocr_analyze.tape import Operand, Size, Spans, Tape
from dsocr_analyze.tape.modules import embedding, linear
from dsocr_analyze.workload import ViewBatch, Workload

__all__ = [
    "DECODE",
    "PREFILL",
    "PROJECTOR",
    "ROUTED_EXPERT",
    "SAM",
    "OcrModel",
    "Seen",
    "ViewFeatures",
    "ViewSizes",
    "classified",
    "embedded_page",
    "head",
    "inputs_bytes",
    "owned_params",
    "page_with",
    "pixels_of",
    "prefill",
    "step",
    "whole_model",
]

_CHANNELS: Final = 3

_MOST_SPANS: Final = 256
"""Calls that are remembered, each with up to some hundred records."""


# --- a relative ------------------------------------------------------------------------------

SAM: Final = Stage("sam", ("model.sam_model",), "vision")
PROJECTOR: Final = Stage("projector", ("model.projector",), "vision")
PREFILL: Final = Stage(
    "prefill",
    ("model.embed_tokens", "model.layers", "model.norm"),
    "prefill",
    ("lm_head runs over all positions; its parameters are decode's",),
)
DECODE: Final = Stage(
    "decode",
    ("lm_head",),
    "decode",
    ("one step over a cache of seq_len tokens, with all of the decoder's work",),
)

ROUTED_EXPERT: Final = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<index>\d+)(?P<below>\..*)?")
"""Paths of a routed expert and everything in it; what runs there depends on the routing."""


@dataclass(slots=True)
class ViewFeatures:
    """What one vision call leaves.

    Attributes:
        spatial: SAM's features.
        semantic: The second encoder's, if there is one.
        tokens: The projector's output, and finally the tokens as laid out.
    """

    spatial: Operand | None = None
    semantic: Operand | None = None
    tokens: Operand | None = None


class OcrModel(ABC):
    """One relative, as its forwards and its closed forms ask for it.

    Attributes:
        stages: Stages in order; the last is the decode step.
        crop: How pages are cropped into local views.
        base_size: Default pixels per side of the global view.
        image_size: Default pixels per side of a local view, or of the only one.
        config_table: What each key of a `config.json` does.
    """

    stages: tuple[Stage, ...]
    crop: ClassVar[CropRule]
    base_size: ClassVar[int]
    image_size: ClassVar[int]
    config_table: ClassVar[KeyTable]

    @property
    def begins(self) -> dict[str, str]:
        """Names of the vision stages, by the path of the module at which each begins."""
        return {
            prefix: stage.name
            for stage in self.stages
            if stage.role == "vision"
            for prefix in stage.prefixes
        }

    @abstractmethod
    def read_dimensions(self, config: Config) -> ModelDimensions:
        """Dimensions from the top-level object of a `config.json`.

        Raises:
            ConfigError: A key is absent or has a wrong value, or two keys conflict.
        """

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
        """The vision stages in one call.

        Args:
            t: The tape; the model's own forward runs.
            features: What the call before has left, replaced name by name.
            pixels: The views' pixels `[N, 3, R, R]`.
            view: The views.
            c: The model's dimensions.
            is_served: Whether a serving engine runs them.
        """

    def lay_out(  # noqa: B027  # some lay nothing out
        self, t: Tape, features: ViewFeatures, view: ViewBatch, grid: tuple[int, int], c: Any
    ) -> None:
        """Lays the projector's output out as tokens of a page.

        Args:
            t: The tape; the model's own forward runs.
            features: What the vision stages left.
            view: The views.
            grid: Columns and rows of views; (1, 1) for the global view.
            c: The model's dimensions.
        """

    # --- tokens

    @abstractmethod
    def whole_tokens(self, q: Size) -> Size:
        """Tokens of the whole page's view, including those that end the page.

        Args:
            q: Tokens per side of the view.
        """

    @abstractmethod
    def local_tokens(self, q: Size, columns: Size, rows: Size) -> Size:
        """Tokens of local views.

        Args:
            q: Tokens per side of a view.
            columns: Columns of views.
            rows: Rows of views.
        """

    def visual_tokens(
        self, base_size: int, image_size: int, crop_mode: bool, grid: tuple[int, int]
    ) -> int:
        """Tokens of a page in the sequence.

        Args:
            base_size: Pixels per side of the global view in crop mode.
            image_size: Pixels per side of a local view in crop mode, otherwise of the only view.
            crop_mode: Whether the page is cropped.
            grid: Columns and rows of local views.
        """
        tokens = self.whole_tokens(tokens_per_side(base_size if crop_mode else image_size))
        if crop_mode and grid != (1, 1):
            tokens += self.local_tokens(tokens_per_side(image_size), *grid)
        return int(tokens)


# --- a page -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Seen:
    """What is held of the pages seen: the last one of each kind.

    Attributes:
        local: Features of the local views.
        whole: Features of the global view.
        page: Tokens of the last page.
        tokens: Tokens of all pages of the last prompt.
    """

    local: ViewFeatures = field(default_factory=ViewFeatures)
    whole: ViewFeatures = field(default_factory=ViewFeatures)
    page: Operand | None = None
    tokens: Operand | None = None


def whole_model(
    t: Tape, model: OcrModel, c: ModelDimensions, p: Pass, page: Workload | None
) -> list[Kept]:
    """The whole model: a prefill pass over prompts with a page, or a decode step without one.

    Returns:
        The cache by layer.
    """
    return t.call("", _causal_lm, model, c, p, page)


def _causal_lm(
    t: Tape, model: OcrModel, c: ModelDimensions, p: Pass, page: Workload | None
) -> list[Kept]:
    hidden, cache = t.call("model", _model, model, c, p, page)
    head(t, hidden, p, c)
    return cache


def classified(t: Tape, model: OcrModel, c: ModelDimensions, p: Pass, labels: Size) -> None:
    """The decoder with a linear map of every token, of which the last token's labels are taken.

    Source: `DeepseekV2ForSequenceClassification`.
    """
    t.call("", _classified, model, c, p, labels)


def _classified(
    t: Tape, model: OcrModel, c: ModelDimensions, p: Pass, labels: Size
) -> tuple[None, list[Kept]]:
    hidden, cache = t.call("model", _model, model, c, p, None)
    scores = t.call("score", linear, hidden, p.tokens, c.decoder.hidden_size, labels)
    pooled = t.gather("index", t.move("arange", n=p.B, dtype=INT64), p.B * labels, t.dtype)
    t.hold(scores, pooled)
    return None, cache


def head(t: Tape, hidden: Operand, p: Pass, c: ModelDimensions) -> Operand:
    """Logits `[B, T, V]` of every position, cast to fp32."""
    logits = t.call("lm_head", lm_head, hidden, p, c.decoder)
    return t.cast(logits, FLOAT32)


def _model(
    t: Tape, model: OcrModel, c: ModelDimensions, p: Pass, page: Workload | None
) -> tuple[Operand, list[Kept]]:
    """The whole model but its head: normed features `[B, T, d]`, and the cache by layer."""
    embeds, seen = embedded_page(t, model, c, p, page)
    output = decoder(t, embeds, p, c.decoder)
    t.hold(seen.tokens)
    return output


def embedded_page(
    t: Tape, model: OcrModel, c: ModelDimensions, p: Pass, page: Workload | None
) -> tuple[Operand, Seen]:
    """Embeddings `[B, T, d]` with each prompt's visual tokens, and what is held of the pages."""
    d, seen = c.decoder.hidden_size, Seen()
    ids = t.input(p.tokens, INT64)
    embeds = t.call("embed_tokens", embedding, ids, c.decoder.vocab_size, d)
    if page is None:
        return embeds, seen
    _sum_of_pixels(t, pixels_of(t, page.global_view, page.prompt_pages))
    for _ in t.turns(p.B):
        seen.tokens = None  # frees those of the last prompt first
        seen.tokens = _visual_tokens(t, model, c, seen, page)
        mask = t.input(p.T, BOOL)
        sequence = t.view(embeds, p.T * d)
        t.move("masked_scatter", sequence, seen.tokens, mask, into=embeds)
    return embeds, seen


def pixels_of(t: Tape, view: ViewBatch, pages: int = 1) -> Operand:
    """The views' pixels `[N, 3, R, R]`, of several pages if given."""
    return t.input(pages * view.count * _CHANNELS * view.resolution**2, t.dtype)


def inputs_bytes(workload: Workload, dtype: Dtype) -> int:
    """Bytes of pixels, token ids, positions, the padding and image masks, and the crop grid.

    If there are no local views, a blank fp32 patch replaces them.
    """
    pages = workload.prompt_pages
    pixels = pages * sum(_CHANNELS * view.count * view.resolution**2 for view in workload.views)
    page = pixels * dtype.nbytes + workload.seq_len * (3 * INT64.nbytes + BOOL.nbytes)
    if workload.local_views is None:
        page += _CHANNELS * workload.base_size**2 * FLOAT32.nbytes
    return workload.batch_size * (page + pages * len(workload.grid) * INT64.nbytes)


def _sum_of_pixels(t: Tape, pixels: Operand) -> None:
    """Tells whether there is an image: one addition per value."""
    t.reduce("sum", pixels, 1, pixels.n)


def _visual_tokens(
    t: Tape, model: OcrModel, c: ModelDimensions, seen: Seen, w: Workload
) -> Operand:
    """The tokens of a prompt's pages `[tokens, d]`."""
    if w.local_views is None:
        _sum_of_pixels(t, t.input(_CHANNELS * w.base_size**2, FLOAT32))
    else:
        pixels = pixels_of(t, w.local_views)
        _sum_of_pixels(t, pixels)
        model.encode(t, seen.local, pixels, w.local_views, c)
    pages: list[Operand] = []
    for skipped in t.turns(w.prompt_pages):
        if skipped:
            pages.append(t.empty(skipped * pages[0].n, t.dtype))
        pages.append(_page(t, model, c, seen, w))
    return t.cat(*pages)


def _page(t: Tape, model: OcrModel, c: ModelDimensions, seen: Seen, w: Workload) -> Operand:
    """One page's tokens: local views, global view, separator."""
    model.encode(t, seen.whole, pixels_of(t, w.global_view), w.global_view, c)
    model.lay_out(t, seen.whole, w.global_view, (1, 1), c)
    assert seen.whole.tokens is not None
    parts = [seen.whole.tokens, t.weight(c.decoder.hidden_size, "view_seperator")]
    if w.local_views is not None:
        model.lay_out(t, seen.local, w.local_views, w.grid, c)
        assert seen.local.tokens is not None
        parts.insert(0, seen.local.tokens)
    seen.page = t.cat(*parts)
    return seen.page


# --- passes ----------------------------------------------------------------------------------


def prefill(
    model: OcrModel,
    c: ModelDimensions,
    workload: Workload,
    dtype: Dtype,
    *,
    flash: bool,
    records: bool = True,
) -> tuple[Tape, int]:
    """The prefill pass: its tape, with records and weights unless left out.

    Returns:
        The tape, and the bytes of keys and values that the pass leaves.

    Raises:
        RuntimeError: Something kept tensors alive, such as a debugger.
    """
    is_traced = sys.gettrace() is not None

    def run(*, records: bool) -> tuple[Tape, int]:
        spans = {} if is_traced else _spans(model, c, dtype)
        if len(spans) > _MOST_SPANS:
            spans.clear()
        t = Tape(dtype, model.begins, PREFILL.name, records=records, spans=spans)
        p = Pass(workload.batch_size, workload.seq_len, flash=flash)
        cache = whole_model(t, model, c, p, workload)
        cache_bytes = sum(keys.nbytes + values.nbytes for keys, values, *_ in cache)
        del cache
        t.check_nothing_is_left()
        return t, cache_bytes

    tape, cache_bytes = run(records=records)
    if is_traced:
        found: list[tuple[Tape, int]] = []
        # No tracer of this thread sees another one.
        thread = threading.Thread(target=lambda: found.append(run(records=False)))
        thread.start()
        thread.join()
        if (tape.peak, cache_bytes) != (found[0][0].peak, found[0][1]):
            # Before Python 3.13, variables that a tracer has looked at live on for a while.
            raise RuntimeError(
                f"the peak of {tape.peak.nbytes} bytes is wrong: a debugger or tracer keeps tensors"
                " alive; run without it"
            )
    return tape, cache_bytes


@lru_cache(maxsize=16)
def _spans(model: OcrModel, c: ModelDimensions, dtype: Dtype) -> Spans:
    """What modules have left on earlier tapes: pages with the same views run the same encoders."""
    return {}


def step(model: OcrModel, c: ModelDimensions, p: Pass, dtype: Dtype) -> Tape:
    """A decode step: its records and calls."""
    t = Tape(dtype, stage=DECODE.name, weights=False)  # which are the prefill pass's
    whole_model(t, model, c, p, None)
    t.check_nothing_is_left()
    return t


ViewSizes: TypeAlias = tuple[int, int, int, int, int]
"""Pixels per side of the blank patch, of the global view and of local views; their grid."""


def page_with(model: OcrModel, sizes: ViewSizes) -> Workload:
    """A page with these views."""
    base, whole, local, columns, rows = sizes
    is_cut = columns * rows > 1
    seen = ViewBatch(1, whole)
    image_size = local if is_cut else whole
    return Workload(
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
    """The parameters that a prefill pass of any page declares: by stage that owns them, and all."""
    page = page_with(model, (*3 * (model.base_size,), 1, 1))
    t, _ = prefill(model, c, page, BFLOAT16, flash=False)
    # No prefix is longer than this, so modules that begin alike have one owner.
    depth = max(prefix.count(".") + 1 for stage in model.stages for prefix in stage.prefixes)
    owner = cache(partial(owner_among, model.stages))
    by_stage = dict.fromkeys((stage.name for stage in model.stages), 0)
    unassigned: dict[str, int] = {}
    for path, name, n in dict.fromkeys(t.weights):
        stage = owner(".".join(path.split(".", depth)[:depth]))
        if stage is None:
            unassigned[f"{path}.{name}"] = n
        else:
            by_stage[stage.name] += n
    total = sum(by_stage.values()) + sum(unassigned.values())
    return by_stage, Parameters(total, unassigned)
