"""A relative of DeepSeek-OCR: what it recognizes and plans, and its passes on tapes.

A pass is a page, its views, the decoder and its head.

Source: `DeepseekOCRModel.forward`, `DeepseekOCRForCausalLM.forward` (`modeling_deepseekocr.py`) and
the relatives'. Like the vendor's names, attributes here hold what a page has left until the next
page replaces it, and the last one's until the decoder has finished.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dsocr_analyze.architectures.architecture import (
    BATCH,
    TOKENS,
    Architecture,
    CacheStep,
    ForwardInputs,
    GrowingCache,
    Input,
    KeyValueCache,
    PlacedValue,
    TensorInput,
    made_inputs,
    zeros_like,
)
from dsocr_analyze.architectures.config_file import Config
from dsocr_analyze.architectures.ocr_family.attention import LayerCache, Pass, lm_head
from dsocr_analyze.architectures.ocr_family.closed_forms import ClosedForms
from dsocr_analyze.architectures.ocr_family.decoder import NOT_MODELLED, decoder
from dsocr_analyze.architectures.ocr_family.dimensions import (
    CHANNELS,
    SAM_PATCH,
    RelativeDimensions,
)
from dsocr_analyze.architectures.ocr_family.ocr_model import OcrModel
from dsocr_analyze.architectures.views import CropRule, tokens_per_side
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.figures import DECODE_STAGE, PREFILL_STAGE, StageScope
from dsocr_analyze.kernels import BOOL, FLOAT32, INT64, Dtype
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.tape.modules import embedding, linear
from dsocr_analyze.workload import (
    BOUNDS,
    PageWorkload,
    ViewBatch,
    check_count,
    checked_page,
    prompt_text,
)

if TYPE_CHECKING:
    import torch

_TOKEN: Final = 64
"""Pixels per side that become one visual token: four patches per side."""


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

_NUMBERED: Final = re.compile(
    r"(?P<list>model\.sam_model\.blocks|model\.vision_model\.transformer\.layers"
    r"|model\.qwen2_model\.model\.model\.layers|model\.layers)"
    r"\.(?P<index>\d+)(?P<expert>\.mlp\.experts\.\d+)?(?P<below>\..*)?"
)
_PUBLISHED_GLOBAL_BLOCKS: Final = frozenset({2, 5, 8, 11})
"""SAM's global blocks that the published files hard-code."""


class ViewFeatures:
    """What a vision call leaves: features of SAM and a second encoder, and tokens."""

    spatial: Operand
    semantic: Operand
    tokens: Operand


@dataclass(slots=True)
class HeldPages:
    """What is held: the last page's views and tokens, and the last prompt's tokens."""

    local: ViewFeatures = field(default_factory=ViewFeatures)
    whole: ViewFeatures = field(default_factory=ViewFeatures)
    page: Operand | None = None
    tokens: Operand | None = None


class FamilyMember(OcrModel, Architecture):
    """A relative of DeepSeek-OCR; its own class says what distinguishes it.

    Attributes:
        prompt_pages: Most pages per prompt.
        base_size: Default pixels per side of the global view.
        image_size: Default pixels per side of a local view, or of the only one.
    """

    prompt_pages: ClassVar[int] = 1
    page_rule: CropRule
    base_size: ClassVar[int]
    image_size: ClassVar[int]
    layers_path = "model"
    views_of = slice(5)  # their sides, and the grid
    not_modelled = NOT_MODELLED
    decoder = staticmethod(decoder)
    routed_expert = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<index>\d+)(?P<below>\..*)?")

    def __init__(self) -> None:
        self.closed_forms = ClosedForms(self)

    def recognizes(self, config: Config) -> bool:
        """Whether a parsed `config.json` belongs to it, by its `auto_map` if it has one."""
        auto_map = config.get("auto_map")
        named = auto_map.get("AutoModel") if isinstance(auto_map, Mapping) else None
        if isinstance(named, str):
            return named.rpartition(".")[2] == self.config_class
        return super().recognizes(config)

    # --- a workload

    def check_sizes(self, base_size: int, image_size: int, crop_mode: bool) -> None:
        """Raises WorkloadError for sizes of views that the relative's code cannot run."""

    def plan(
        self,
        *,
        page: tuple[int, int],
        base_size: int | None = None,
        image_size: int | None = None,
        crop_mode: bool | None = None,
        text_tokens: int | None = None,
        seq_len: int | None = None,
        batch_size: int = 1,
        max_new_tokens: int = 1024,
        prompt_pages: int = 1,
    ) -> PageWorkload:
        """What the vendor's `infer()` makes of a page; the rest is as of `plan_workload`."""
        page = checked_page(page, batch_size, max_new_tokens)
        if self.prompt_pages == 1 != prompt_pages:
            raise WorkloadError(
                f"prompt_pages {prompt_pages!r} is not supported: this model takes one page per"
                " prompt; leave prompt_pages out",
                arguments=["prompt_pages"],
            )
        check_count("prompt_pages", prompt_pages, 1, self.prompt_pages, " pages in one prompt")
        crop_mode = prompt_pages == 1 if crop_mode is None else crop_mode
        image_size = self.image_size if image_size is None else image_size
        if base_size is None:
            # With several pages, the blank patch has the size of a page's view.
            base_size = self.base_size if prompt_pages == 1 else image_size
        check_count("base_size", base_size, *BOUNDS["base_size"])
        check_count("image_size", image_size, *BOUNDS["image_size"])
        if not isinstance(crop_mode, bool):
            raise WorkloadError(
                f"crop_mode {crop_mode!r} is not a boolean; give True or False",
                arguments=["crop_mode"],
            )
        if prompt_pages > 1:
            _check_several(base_size, image_size, crop_mode)
        self.check_sizes(base_size, image_size, crop_mode)
        grid = self.page_rule.grid(*page) if crop_mode else (1, 1)
        whole = base_size if crop_mode else image_size
        found = self.page_with((base_size, whole, image_size, *grid))
        visual = prompt_pages * found.visual_tokens
        return replace(
            found,
            page=page,
            image_size=image_size,
            crop_mode=crop_mode,
            visual_tokens=visual,
            text_tokens=prompt_text(text_tokens, seq_len, visual, self.text_tokens),
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            prompt_pages=prompt_pages,
        )

    def notes_of(self, workload: PageWorkload) -> list[str]:
        """Notes for a reader of a workload's figures, one line each."""
        tile = self.page_rule.tile
        if workload.local_views is None or workload.image_size == tile:
            return []
        return [
            f"crop mode with an image size of {workload.image_size} is counted as laid out; the "
            f"vendor's infer() does not run it as shipped: it cuts {tile}-pixel tiles while laying "
            f"out tokens for {workload.image_size}"
        ]

    def warnings_of(self, workload: PageWorkload) -> Iterator[str]:
        """What is odd about the sizes of a workload's views, one line each."""
        base, image = workload.base_size, workload.image_size
        sizes = {"image_size": image}
        if workload.crop_mode:
            sizes = {"base_size": base} if image == base else {"base_size": base, **sizes}
        if workload.crop_mode and base < image:
            yield (
                f"base_size {base} is below image_size {image}: the global view has fewer pixels"
                " per side than each local view, unlike in any published mode; if they are"
                f" swapped, give base_size {image} and image_size {base}"
            )
        for argument, size in sizes.items():
            if size % _TOKEN:
                patches, side = size // SAM_PATCH, tokens_per_side(size)
                seen, below = patches * SAM_PATCH, max(_TOKEN, size // _TOKEN * _TOKEN)
                lost = f"only {seen} of {size} pixels per side are used, in " * (seen < size)
                yield (
                    f"{argument} {size} is not a multiple of {_TOKEN}: {lost}{patches} patches of"
                    f" {SAM_PATCH} pixels, which become the {side} tokens per side of"
                    f" {side * _TOKEN} pixels; give {below} or {below + _TOKEN}"
                )

    # --- its passes, as `generate` calls the model's forward

    def prefill_inputs(
        self, device: torch.device, dtype: torch.dtype, workload: PageWorkload
    ) -> ForwardInputs:
        """Keyword arguments of the model's forward for one prefill pass, without the cache.

        The prompt is BOS, the visual tokens, the text. Where there is no view, pixels are zero, and
        fp32. Grids stay on the CPU, as in `infer()`.
        """
        import torch

        batch, pages, local = workload.batch_size, workload.prompt_pages, workload.local_views
        blank = (1, CHANNELS, workload.base_size, workload.base_size)
        crops = TensorInput(blank, dtype=FLOAT32.name, fill=0) if local is None else _pixels(local)
        visual = PlacedValue(True, 1, workload.visual_tokens)
        mask = TensorInput((BATCH, TOKENS), dtype=BOOL.name, fill=False, placed=(visual,))
        images = ((crops, _pixels(workload.global_view, pages)),) * batch
        given: dict[str, Input] = {"images": images, "images_seq_mask": mask}
        return {
            **_tokens(device, batch, workload.seq_len),
            **made_inputs(None, given, device, dtype, workload),
            "images_spatial_crop": torch.tensor([workload.grid] * (batch * pages)),
        }

    def decode_inputs(
        self, device: torch.device, workload: PageWorkload, cached: int
    ) -> ForwardInputs:
        """Keyword arguments of a decode step over `cached` tokens, without the cache and images."""
        given = _tokens(device, workload.batch_size, cached + 1)
        return given | {name: given[name][:, -1:] for name in ("input_ids", "position_ids")}

    def decode_cache(self, cache: KeyValueCache, step: CacheStep) -> KeyValueCache:
        """The cache that a decode step finds, which holds every token; skipped ones are zeros."""
        from transformers import DynamicCache

        longer = GrowingCache() if isinstance(cache, GrowingCache) else DynamicCache()
        for layer, (key, value, *_) in enumerate(cache):
            missing = step.cached_tokens - key.shape[-2]
            longer.update(key, value, layer)
            longer.update(zeros_like(key, -2, missing), zeros_like(value, -2, missing), layer)
        return longer

    # --- the forward

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
        logits = t.call("lm_head", lm_head, hidden, p.tokens, c.decoder)
        t.cast(logits, FLOAT32)
        return t.hold(cache, hidden)

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

    def inputs_bytes(self, workload: PageWorkload, dtype: Dtype) -> int:
        """Bytes of pixels, token ids, positions, both masks and the crop grid.

        A blank fp32 patch stands for no local views.
        """
        pages, pixels = workload.prompt_pages, sum(view.pixels for view in workload.views)
        page = workload.seq_len * (3 * INT64.nbytes + BOOL.nbytes)
        page += pages * CHANNELS * pixels * dtype.nbytes
        if workload.local_views is None:
            page += CHANNELS * workload.base_size**2 * FLOAT32.nbytes
        return workload.batch_size * (page + pages * len(workload.grid) * INT64.nbytes)

    def repeats(self, dimensions: RelativeDimensions) -> Callable[[str], str | None]:
        """Maps the path of a module to a name that it shares with those that are alike.

        These do the same work on equal arguments, in the reference and in the published files:
        SAM's blocks of a kind, the second encoder's layers, the decoder's dense and its MoE layers,
        and routed experts.
        """

        def name(path: str) -> str:
            layer = _NUMBERED.fullmatch(path)
            if layer is None:
                return path
            index, variant = int(layer["index"]), "each"
            if layer["list"] == "model.sam_model.blocks":
                # By the config, as in the reference, and by the published files.
                indexes = dimensions.sam.global_attn_indexes
                variant = "global-" if index in indexes else "windowed-"
                variant += "global" if index in _PUBLISHED_GLOBAL_BLOCKS else "windowed"
            elif layer["list"] == "model.layers":
                variant = "moe" if dimensions.decoder.is_moe(index) else "dense"
            expert = "" if layer["expert"] is None else ".mlp.experts.each"
            return f"{layer['list']}.{variant}{expert}{layer['below'] or ''}"

        return name


# --- plans, and inputs -----------------------------------------------------------------------


def _check_several(base_size: int, image_size: int, crop_mode: bool) -> None:
    """Rejects what `infer_multi()` does not do to pages that share a prompt."""
    if crop_mode:
        raise WorkloadError(
            "pages that share a prompt are not cropped; give a mode that crops none, such as base,"
            " or crop_mode=False",
            arguments=["crop_mode"],
        )
    if base_size != image_size:
        raise WorkloadError(
            f"base_size {base_size} is not supported if several pages share a prompt: each is one"
            f" view of image_size; leave out base_size, or give {image_size}",
            arguments=["base_size", "image_size"],
        )


def _tokens(device: torch.device, batch: int, tokens: int) -> ForwardInputs:
    """Ids of prompts without padding, their mask [B, K], and the resulting positions."""
    import torch

    mask = torch.ones(batch, tokens, dtype=torch.long, device=device)
    # The mask's running sum in `generate`; on meta, torch imports sympy for one.
    positions = torch.arange(tokens, device=device).repeat(batch, 1)
    ids = torch.zeros_like(mask)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": True}


def _pixels(view: ViewBatch, pages: int = 1) -> TensorInput:
    """Pixels `[N, 3, R, R]` of the views of all pages."""
    side = view.resolution
    return TensorInput((pages * view.count, CHANNELS, side, side), fill=0.5)


# --- the forward -----------------------------------------------------------------------------


def classified(
    t: Tape, model: FamilyMember, c: RelativeDimensions, p: Pass, labels: Size
) -> tuple[None, list[LayerCache]]:
    """The decoder with a linear map of every token; the last token's labels are taken.

    Source: `DeepseekV2ForSequenceClassification`.
    """
    hidden, cache = t.call("model", _model, model, c, p, None)
    scores = t.call("score", linear, hidden, p.tokens, c.decoder.hidden_size, labels)
    pooled = t.gather("index", t.move("arange", n=p.B, dtype=INT64), p.B * labels, t.dtype)
    return t.hold((None, cache), scores, pooled)


def _model(
    t: Tape, model: FamilyMember, c: RelativeDimensions, p: Pass, page: PageWorkload | None
) -> tuple[Operand, list[LayerCache]]:
    """The model without its head: normed features `[B, T, d]`, and the cache by layer."""
    embeds, seen = model.embedded_page(t, c, p, page)
    return t.hold(decoder(t, embeds, p, c.decoder), seen.tokens)


def pixels_of(t: Tape, view: ViewBatch, pages: int = 1) -> Operand:
    """Pixels `[N, 3, R, R]` of the views of all pages."""
    return t.input(pages * CHANNELS * view.pixels, t.dtype)


def _visual_tokens(
    t: Tape, model: FamilyMember, c: RelativeDimensions, seen: HeldPages, w: PageWorkload
) -> Operand:
    """Tokens `[tokens, d]` of a prompt's pages: local views, global view, separator."""
    if w.local_views is None:
        blank = CHANNELS * w.base_size**2
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
        parts = [seen.whole.tokens, t.weight(c.decoder.hidden_size, "view_seperator")]
        if w.local_views is not None:
            model.lay_out(t, seen.local, w.local_views, w.grid, c)
            parts.insert(0, seen.local.tokens)
        seen.page = t.cat(*parts)
        del parts
        pages.append(seen.page)
    return t.cat(*pages)
