"""The passes of a model on tapes: a page, its views and their layout, the decoder and its head.

Source: `DeepseekOCRModel.forward`, `DeepseekOCRForCausalLM.forward` (`modeling_deepseekocr.py`) and
the relatives'. The vendor's code holds what it computed of a page until the next page replaces it
name by name, and of the last one until the decoder has finished; so do the attributes here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.decoder import Kept, decoder, lm_head
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.ocr_family.ocr_model import DECODE, PREFILL, OcrModel, ViewFeatures
from dsocr_analyze.architectures.stages import Stage, owner_among
from dsocr_analyze.dtypes import BFLOAT16, BOOL, FLOAT32, INT64, Dtype
from dsocr_analyze.figures import Parameters, Peak
from dsocr_analyze.tape import Operand, Size, Tape, View, embedding, linear
from dsocr_analyze.tape.tape import Given, Spans
from dsocr_analyze.workload import ViewBatch, Workload

__all__ = [
    "Held",
    "OwnedParams",
    "Seen",
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


# --- a page -----------------------------------------------------------------------------------


class Seen:
    """What is held of the pages seen: the last one of each kind.

    Attributes:
        local: Features of the local views.
        whole: Features of the global view.
        page: Tokens of the last page.
        tokens: Tokens of all pages of the last prompt.
    """

    __slots__ = ("local", "page", "tokens", "whole")

    def __init__(self) -> None:
        self.local, self.whole = ViewFeatures(), ViewFeatures()
        self.page: Operand | None = None
        self.tokens: Operand | None = None


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
    pooled = t.gather("index", t.fill("arange", p.B, INT64), p.B * labels, t.dtype)
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


def pixels_of(t: Tape, view: ViewBatch, pages: int = 1) -> View:
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


def _sum_of_pixels(t: Tape, pixels: View) -> None:
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


class Held(NamedTuple):
    """What a prefill pass holds: its peak, and the bytes of keys and values that it leaves."""

    peak: Peak
    cache_bytes: int


def prefill(
    model: OcrModel,
    c: ModelDimensions,
    workload: Workload,
    dtype: Dtype,
    *,
    flash: bool,
    records: bool = True,
) -> tuple[Tape, Held]:
    """The prefill pass: its tape, with records and weights unless left out, and its memory.

    Raises:
        RuntimeError: Something kept tensors alive, such as a debugger.
    """
    is_traced = sys.gettrace() is not None

    def run(*, records: bool) -> tuple[Tape, Held]:
        spans = {} if is_traced else _spans(model, c, dtype)
        if len(spans) > _MOST_SPANS:
            spans.clear()
        t = Tape(dtype, model.begins, PREFILL.name, records=records, spans=spans)
        p = Pass(workload.batch_size, workload.seq_len, flash=flash)
        cache = whole_model(t, model, c, p, workload)
        cache_bytes = sum(keys.nbytes + values.nbytes for keys, values, *_ in cache)
        del cache
        t.check_nothing_is_left()
        return t, Held(t.peak, cache_bytes)

    tape, held = run(records=records)
    if is_traced and held != _untraced(lambda: run(records=False)[1]):
        # Before Python 3.13, variables that a tracer has looked at live on for a while.
        raise RuntimeError(
            f"the peak of {held.peak.nbytes} bytes is wrong: a debugger or tracer keeps tensors"
            " alive; run without it"
        )
    return tape, held


@lru_cache(maxsize=16)
def _spans(model: OcrModel, c: ModelDimensions, dtype: Dtype) -> Spans:
    """What modules have left on earlier tapes: pages with the same views run the same encoders."""
    return {}


def _untraced(run: Callable[[], Held]) -> Held:
    """What `run` returns in a thread of its own, which no tracer of this one sees."""
    found: list[Held] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


class _StepTape(Tape):
    """A tape that notes no weights: a step has those of the prefill pass."""

    def weight(self, n: Size, name: str = "weight") -> View:
        """A parameter of the module that is running."""
        return View(n, self.dtype)

    def idle_each(
        self,
        name: str,
        start: Size,
        stop: Size,
        forward: Callable[[Tape, *Given], Operand],
        *inputs: *Given,
    ) -> None:
        """Nothing."""


def step(model: OcrModel, c: ModelDimensions, p: Pass, dtype: Dtype) -> Tape:
    """A decode step: its records and calls."""
    t = _StepTape(dtype, stage=DECODE.name)
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


class OwnedParams(NamedTuple):
    """Parameters of a model by the stage that owns them, and as a whole."""

    by_stage: Mapping[str, int]
    whole: Parameters


@lru_cache
def owned_params(model: OcrModel, c: ModelDimensions) -> OwnedParams:
    """The parameters that a prefill pass of any page declares."""
    page = page_with(model, (*3 * (model.base_size,), 1, 1))
    t, _ = prefill(model, c, page, BFLOAT16, flash=False)
    # No prefix is longer than this, so modules that begin alike have one owner.
    depth = max(prefix.count(".") + 1 for stage in model.stages for prefix in stage.prefixes)
    by_stage = dict.fromkeys((stage.name for stage in model.stages), 0)
    unassigned: dict[str, int] = {}
    owners: dict[tuple[str, ...], Stage | None] = {}
    for path, name, n in dict.fromkeys(t.weights):
        begin = tuple(path.split(".", depth)[:depth])
        if begin not in owners:
            owners[begin] = owner_among(model.stages, ".".join(begin))
        stage = owners[begin]
        if stage is None:
            unassigned[f"{path}.{name}"] = n
        else:
            by_stage[stage.name] += n
    total = sum(by_stage.values()) + sum(unassigned.values())
    return OwnedParams(by_stage, Parameters(total, unassigned))
