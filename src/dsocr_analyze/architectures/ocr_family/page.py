"""A page on a tape: its views, their layout, the prefill pass and a decode step.

Source: `DeepseekOCRModel.forward`, `DeepseekOCRForCausalLM.forward` (`modeling_deepseekocr.py`) and
the relatives'. The vendor's code holds what it computed of a page until the next page replaces it
name by name, and of the last one until the decoder has finished; so do the attributes here.
"""

from __future__ import annotations

from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.decoder import Kept, decoder, lm_head
from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions
from dsocr_analyze.architectures.ocr_family.network import Network, ViewFeatures
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64
from dsocr_analyze.tape import Operand, Size, Tape, View, embedding, linear
from dsocr_analyze.workload import ViewBatch, Workload

__all__ = ["Seen", "classified", "embedded_page", "head", "pixels_of", "whole_model"]

_CHANNELS = 3


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
    t: Tape, network: Network, c: RelativeDimensions, p: Pass, page: Workload | None
) -> list[Kept]:
    """The whole model: a prefill pass over prompts with a page, or a decode step without one.

    Returns:
        The cache by layer.
    """
    return t.call("", _causal_lm, network, c, p, page)


def _causal_lm(
    t: Tape, network: Network, c: RelativeDimensions, p: Pass, page: Workload | None
) -> list[Kept]:
    hidden, cache = t.call("model", _model, network, c, p, page)
    head(t, hidden, p, c)
    return cache


def classified(t: Tape, network: Network, c: RelativeDimensions, p: Pass, labels: Size) -> None:
    """The decoder with a linear map of every token, of which the last token's labels are taken.

    Source: `DeepseekV2ForSequenceClassification`.
    """
    t.call("", _classified, network, c, p, labels)


def _classified(
    t: Tape, network: Network, c: RelativeDimensions, p: Pass, labels: Size
) -> tuple[None, list[Kept]]:
    hidden, cache = t.call("model", _model, network, c, p, None)
    scores = t.call("score", linear, hidden, p.tokens, c.decoder.hidden_size, labels)
    pooled = t.gather("index", t.fill("arange", p.B, INT64), p.B * labels, t.dtype)
    t.hold(scores, pooled)
    return None, cache


def head(t: Tape, hidden: Operand, p: Pass, c: RelativeDimensions) -> Operand:
    """Logits `[B, T, V]` of every position, cast to fp32."""
    logits = t.call("lm_head", lm_head, hidden, p, c.decoder)
    return t.cast(logits, FLOAT32)


def _model(
    t: Tape, network: Network, c: RelativeDimensions, p: Pass, page: Workload | None
) -> tuple[Operand, list[Kept]]:
    """The whole model but its head: normed features `[B, T, d]`, and the cache by layer."""
    embeds, seen = embedded_page(t, network, c, p, page)
    output = decoder(t, embeds, p, c.decoder)
    t.hold(seen.tokens)
    return output


def embedded_page(
    t: Tape, network: Network, c: RelativeDimensions, p: Pass, page: Workload | None
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
        seen.tokens = _visual_tokens(t, network, c, seen, page)
        mask = t.input(p.T, BOOL)
        sequence = t.view(embeds, p.T * d)
        t.move("masked_scatter", sequence, seen.tokens, mask, into=embeds)
    return embeds, seen


def pixels_of(t: Tape, view: ViewBatch, pages: int = 1) -> View:
    """The views' pixels `[N, 3, R, R]`, of several pages if given."""
    return t.input(pages * view.count * _CHANNELS * view.resolution**2, t.dtype)


def _sum_of_pixels(t: Tape, pixels: View) -> None:
    """Tells whether there is an image: one addition per value."""
    t.reduce("sum", pixels, 1, pixels.n)


def _visual_tokens(
    t: Tape, network: Network, c: RelativeDimensions, seen: Seen, w: Workload
) -> Operand:
    """The tokens of a prompt's pages `[tokens, d]`."""
    if w.local_views is None:
        _sum_of_pixels(t, t.input(_CHANNELS * w.base_size**2, FLOAT32))
    else:
        pixels = pixels_of(t, w.local_views)
        _sum_of_pixels(t, pixels)
        network.encode(t, seen.local, pixels, w.local_views, c)
    pages: list[Operand] = []
    for skipped in t.turns(w.prompt_pages):
        if skipped:
            pages.append(t.empty(skipped * pages[0].n, t.dtype))
        pages.append(_page(t, network, c, seen, w))
    return t.cat(*pages)


def _page(t: Tape, network: Network, c: RelativeDimensions, seen: Seen, w: Workload) -> Operand:
    """One page's tokens: local views, global view, separator."""
    network.encode(t, seen.whole, pixels_of(t, w.global_view), w.global_view, c)
    network.lay_out(t, seen.whole, w.global_view, (1, 1), c)
    assert seen.whole.tokens is not None
    parts = [seen.whole.tokens, t.weight(c.decoder.hidden_size, "view_seperator")]
    if w.local_views is not None:
        network.lay_out(t, seen.local, w.local_views, w.grid, c)
        assert seen.local.tokens is not None
        parts.insert(0, seen.local.tokens)
    seen.page = t.cat(*parts)
    return seen.page
