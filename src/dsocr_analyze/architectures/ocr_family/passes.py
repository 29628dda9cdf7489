"""A relative of DeepSeek-OCR, and its passes on tapes: a page, its views, the decoder and its head.

Source: `DeepseekOCRModel.forward`, `DeepseekOCRForCausalLM.forward` (`modeling_deepseekocr.py`) and
the relatives'. Like the vendor's names, attributes here hold what a page has left until the next
page replaces it, and the last one's until the decoder has finished.
"""

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.decoder import NOT_MODELLED, decoder, lm_head
from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions
from dsocr_analyze.architectures.ocr_family.ocr_model import LayerCache, OcrModel
from dsocr_analyze.architectures.stages import DECODE_STAGE, PREFILL_STAGE, StageScope
from dsocr_analyze.architectures.views import CropRule
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64, Dtype
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.tape.modules import embedding, linear
from dsocr_analyze.workload import PageWorkload, ViewBatch

_CHANNELS: Final = 3


# --- a relative ------------------------------------------------------------------------------

SAM: Final = StageScope("sam", ("model.sam_model",), "vision")
PROJECTOR: Final = StageScope("projector", ("model.projector",), "vision")
PREFILL: Final = StageScope(
    PREFILL_STAGE,
    ("model.embed_tokens", "model.layers", "model.norm"),
    "prefill",
    ("lm_head runs over all positions; its parameters are decode's",),
)
DECODE: Final = StageScope(
    DECODE_STAGE,
    ("lm_head",),
    "decode",
    ("one step over a cache of seq_len tokens, with all of the decoder's work",),
)

ROUTED_EXPERT: Final = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<index>\d+)(?P<below>\..*)?")
"""Paths of a routed expert and what is in it."""


_NUMBERED: Final = re.compile(
    r"(?P<list>model\.sam_model\.blocks|model\.vision_model\.transformer\.layers"
    r"|model\.qwen2_model\.model\.model\.layers|model\.layers)"
    r"\.(?P<index>\d+)(?P<below>\..*)?"
)
_PUBLISHED_GLOBAL_BLOCKS: Final = frozenset({2, 5, 8, 11})
"""SAM's global blocks that the published files hard-code."""


@dataclass(slots=True)
class ViewFeatures:
    """What a vision call leaves: features of SAM and a second encoder, and tokens."""

    spatial: Operand | None = None
    semantic: Operand | None = None
    tokens: Operand | None = None


@dataclass(slots=True)
class HeldPages:
    """What is held: the last page's views and tokens, and the last prompt's tokens."""

    local: ViewFeatures = field(default_factory=ViewFeatures)
    whole: ViewFeatures = field(default_factory=ViewFeatures)
    page: Operand | None = None
    tokens: Operand | None = None


class Relative(OcrModel):
    """One relative, as its forward asks for it.

    Attributes:
        base_size: Default pixels per side of the global view.
        image_size: Default pixels per side of a local view, or of the only one.
    """

    crop: ClassVar[CropRule]
    base_size: ClassVar[int]
    image_size: ClassVar[int]
    layers_path = "model"
    not_modelled = NOT_MODELLED
    decoder = staticmethod(decoder)

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

    def lay_out(  # some lay nothing out
        self, t: Tape, features: ViewFeatures, view: ViewBatch, grid: tuple[int, int], c: Any
    ) -> None:
        """Lays out the tokens of a grid of columns and rows of views."""

    @abstractmethod
    def visual_tokens(
        self, base_size: int, image_size: int, crop_mode: bool, grid: tuple[int, int]
    ) -> int:
        """Tokens of a page, by sizes as of a `PageWorkload`."""

    def whole_model(
        self, t: Tape, c: RelativeDimensions, p: Pass, page: PageWorkload | None
    ) -> list[LayerCache]:
        """A prefill pass over prompts with a page, or a decode step without: the cache by layer."""
        hidden, cache = t.call("model", _model, self, c, p, page)
        logits = t.call("lm_head", lm_head, hidden, p, c.decoder)
        t.cast(logits, FLOAT32)
        t.hold(hidden)
        return cache

    def embedded_page(
        self, t: Tape, c: RelativeDimensions, p: Pass, page: PageWorkload | None
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
            seen.tokens = _visual_tokens(t, self, c, seen, page)
            mask = t.input(p.T, BOOL)
            sequence = t.view(embeds, p.T * d)
            t.move("masked_scatter", sequence, seen.tokens, mask, into=embeds)
        return embeds, seen

    def served_views(self, t: Tape, view: ViewBatch, c: RelativeDimensions) -> None:
        """The vision stages in one call, as a serving engine runs them."""
        features = ViewFeatures()
        t.call("model", self.encode, features, pixels_of(t, view), view, c, is_served=True)

    # --- pages

    @property
    def page_rule(self) -> CropRule:
        """How it crops pages."""
        return self.crop

    def page_with(self, sizes: tuple[int, ...]) -> PageWorkload:
        """A page with views of these sides: of the blank patch, the global and local ones, a grid.

        Sides are in pixels.
        """
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
            visual_tokens=self.visual_tokens(whole, image_size, is_cut, (columns, rows)),
            text_tokens=1,
            batch_size=1,
            max_new_tokens=1,
        )

    def view_sizes(self, *sizes: Size) -> tuple[Size, ...]:
        """The sides of views, and the grid."""
        return sizes[:5]

    def inputs_bytes(self, workload: PageWorkload, dtype: Dtype) -> int:
        """Bytes of pixels, token ids, positions, both masks and the crop grid.

        A blank fp32 patch stands for no local views.
        """
        pages = workload.prompt_pages
        page = workload.seq_len * (3 * INT64.nbytes + BOOL.nbytes)
        for view in workload.views:
            page += pages * _CHANNELS * view.pixels * dtype.nbytes
        if workload.local_views is None:
            page += _CHANNELS * workload.base_size**2 * FLOAT32.nbytes
        return workload.batch_size * (page + pages * len(workload.grid) * INT64.nbytes)

    def repeats(self, dimensions: RelativeDimensions) -> Callable[[str], str | None]:
        """Maps the path of a module to a name that it shares with those that are alike.

        These do the same work on equal arguments, in the reference and in the published files:
        SAM's blocks of a kind, the second encoder's layers, the decoder's dense and its MoE layers,
        and routed experts.
        """

        def name(path: str) -> str | None:
            layer = _NUMBERED.fullmatch(path)
            if layer is None:
                return path
            index, below = int(layer["index"]), layer["below"] or ""
            expert = ROUTED_EXPERT.fullmatch(below)
            if below and (expert is None or expert["below"]):
                return None
            if layer["list"] == "model.sam_model.blocks":
                # By the config, as in the reference, and by the published files.
                indexes = dimensions.sam.global_attn_indexes
                variant = "global-" if index in indexes else "windowed-"
                variant += "global" if index in _PUBLISHED_GLOBAL_BLOCKS else "windowed"
            elif layer["list"] == "model.layers":
                variant = "moe" if dimensions.decoder.is_moe(index) else "dense"
            else:
                variant = "each"
            return f"{layer['list']}.{variant}{' expert' if below else ''}"

        return name


# --- a page -----------------------------------------------------------------------------------


def classified(
    t: Tape, model: Relative, c: RelativeDimensions, p: Pass, labels: Size
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
    t: Tape, model: Relative, c: RelativeDimensions, p: Pass, page: PageWorkload | None
) -> tuple[Operand, list[LayerCache]]:
    """The model without its head: normed features `[B, T, d]`, and the cache by layer."""
    embeds, seen = model.embedded_page(t, c, p, page)
    output = decoder(t, embeds, p, c.decoder)
    t.hold(seen.tokens)
    return output


def pixels_of(t: Tape, view: ViewBatch, pages: int = 1) -> Operand:
    """Pixels `[N, 3, R, R]` of the views of all pages."""
    return t.input(pages * _CHANNELS * view.pixels, t.dtype)


def _visual_tokens(
    t: Tape, model: Relative, c: RelativeDimensions, seen: HeldPages, w: PageWorkload
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
