"""A neighbour of DeepSeek-OCR: its dimensions, its pages, and its passes on tapes.

A page is one image; its tokens take their places in the prompt of a dense decoder, whose head sees
the last position. Like `generate` of transformers 5.23, a pass encodes images first, and keeps what
its encoder returns and all positions until it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from dsocr_analyze.architectures.architecture import (
    MODEL_DTYPE,
    Architecture,
    ForwardInputs,
    PlacedValue,
    Prompt,
    TensorInput,
    made_inputs,
)
from dsocr_analyze.architectures.config_file import (
    LARGEST_WIDTH,
    USED,
    Config,
    ConfigKeys,
    Fixed,
    Harmless,
)
from dsocr_analyze.architectures.neighbours.config_keys import key_table
from dsocr_analyze.architectures.neighbours.decoder import decoder, read_decoder
from dsocr_analyze.architectures.neighbours.resizing import RULES, FixedView, ResizeRule
from dsocr_analyze.architectures.neighbours.vision import (
    ImageFeatures,
    ImageGrid,
    LayerKind,
    VisionTransformer,
    read_vision,
)
from dsocr_analyze.architectures.ocr_family.attention import LayerCache, Pass, lm_head
from dsocr_analyze.architectures.ocr_family.closed_forms import ClosedForms
from dsocr_analyze.architectures.ocr_family.config_table import Rules
from dsocr_analyze.architectures.ocr_family.dimensions import CHANNELS, ModelDimensions
from dsocr_analyze.architectures.ocr_family.family_member import DECODE
from dsocr_analyze.architectures.ocr_family.ocr_model import OcrModel
from dsocr_analyze.errors import ConfigError, WorkloadError
from dsocr_analyze.figures import PREFILL_STAGE, StageScope
from dsocr_analyze.kernels import BOOL, INT32, INT64, Dtype
from dsocr_analyze.package_data import package_toml
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import embedding
from dsocr_analyze.workload import Mode, PageWorkload, ViewBatch, checked_page, prompt_text

if TYPE_CHECKING:
    import torch

# --- what a neighbour is ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NeighbourDimensions(ModelDimensions):
    """The dimensions of a neighbour."""

    vision: VisionTransformer


class NeighbourData(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A neighbour's data file.

    Attributes:
        vision: Paths of the vision model and of a projector, if there is one.
        source: Where the built-in config is from.
        text_tokens: Of its usual prompt besides the visual ones.
        usual_page: How pages are usually rendered for it, in words.
        config: The built-in config; others of its class, or of its `model_type` if they name none,
            are recognised by it.
        transformers_class: What transformers calls its class, if otherwise than the config.
        resizing: Sizes of its processor's rule, by the name of that; empty if every page becomes a
            square of the encoder's size.
        counts_frames: Whether the limits of that rule are on the pixels of all frames of a patch.
        decoder: What distinguishes its decoder, as `read_decoder` takes it.
        is_tied: Whether the head has the embeddings' weights where a file does not say so.
        reads_flat: Whether the decoder's keys may be at the top level, as in old files.
        least_visual_tokens: Of a batch, below which transformers' class fails.
        merge: Patches per side of a visual token where no key says so.
        layers: What distinguishes those of its vision model.
        pixels: What its processor makes of a page: flat patches, as Qwen-VL's, whose models search
            a prompt for a video's tokens as well; square ones, as PaddleOCR's; or a view, as
            LLaVA's, whose models return the features that took their places.
        used: Config keys that only it reads, by dotted path.
        harmless: Reasons why such keys do nothing.
        fixed: Rules of such keys that may have few values.
    """

    title: str
    vision: tuple[str, ...]
    source: str
    text_tokens: int
    usual_page: str
    config: dict[str, Any]
    transformers_class: str | None = None
    resizing: dict[str, dict[str, Any]] = {}
    counts_frames: bool = False
    decoder: dict[str, Any] = {}
    is_tied: bool = False
    reads_flat: bool = False
    least_visual_tokens: int = 1
    merge: int = 1
    layers: LayerKind = LayerKind()
    pixels: Literal["flat patches", "square patches", "a view"] = "flat patches"
    used: tuple[str, ...] = ()
    harmless: dict[str, str] = {}
    fixed: dict[str, dict[str, Any]] = {}


class Neighbour(Architecture, OcrModel):
    """A neighbour of DeepSeek-OCR.

    Args:
        name: Its name; the TOML file of that name has its data, and the module its forwards.
        config: A `config.json` of the same network in other sizes.

    Attributes:
        data: What its file says.
        visual: Its vision model: features of images.
        project: Its projector, if it has one: tokens from the vision model's.
    """

    modes: Mapping[str, Mode] = {"native": Mode("native", 0, 0, crop_mode=False)}
    default_mode = "native"
    generate = Prompt(0, "input_ids", 0, without=("position_ids",))
    is_of_transformers = True
    visual: Callable[[Tape, ImageGrid, VisionTransformer], ImageFeatures]
    project: Callable[[Tape, Operand, ImageGrid, VisionTransformer], Operand] | None
    layers_path = "model.language_model"
    views_of = slice(3, 7)  # grid, text tokens and batch: all its pages are encoded at once
    least_transformers = "5.23"
    decoder = staticmethod(decoder)

    def __init__(self, name: str, config: Config | None = None) -> None:
        file = name.replace("-", "_")
        self.data = data = package_toml(__package__, f"{file}.toml", NeighbourData)
        forwards = import_module(f"{__package__}.{file}")
        self.visual, self.project = forwards.visual, getattr(forwards, "project", None)
        self.name, self.title, self.text_tokens = name, data.title, data.text_tokens
        self.config_class = data.config["architectures"][0]
        self.model_types = (data.config["model_type"],)
        self.model_class = data.transformers_class or self.config_class
        self.config = data.config if config is None else config
        own: Rules = dict.fromkeys(data.used, USED)
        own |= {key: Harmless(reason) for key, reason in data.harmless.items()}
        own |= {key: Fixed(**rule) for key, rule in data.fixed.items()}
        self.config_table = key_table(data.config, own, is_flat=data.reads_flat)
        self.stages = (
            StageScope("vision", data.vision, "vision"),
            StageScope(PREFILL_STAGE, (self.layers_path,), "prefill"),
            DECODE,
        )
        self.closed_forms = ClosedForms(self)

    def of_config(self, config: Config) -> Architecture:
        """The same network in the sizes of another `config.json`."""
        return self if config == self.config else Neighbour(self.name, config)

    @cached_property
    def dimensions(self) -> NeighbourDimensions:
        """Those of its config; raises ConfigError."""
        return cast("NeighbourDimensions", self.forms.dimensions(self.config))

    @cached_property
    def page_rule(self) -> ResizeRule:
        """How its processor resizes pages; raises ConfigError if that depends on a wrong config."""
        vision = self.dimensions.vision
        factor = vision.patch_size * vision.merge
        if not self.data.resizing:
            return FixedView(factor=factor, longest=vision.side * vision.patch_size)
        [(kind, sizes)] = self.data.resizing.items()
        if self.data.counts_frames:
            sizes = sizes | {"frames": vision.frames}
        return RULES[kind](factor=factor, **sizes)

    @property
    def image_token(self) -> int:
        """Id that stands for the image in a prompt."""
        names = "image_token_id", "image_token_index"
        name = next(each for each in (*self.config, *self.data.config) if each in names)
        return ConfigKeys(self.config).integer(name, least=0)

    def read_dimensions(self, config: Config) -> NeighbourDimensions:
        """Reads a `config.json`; raises ConfigError for absent, wrong or conflicting keys."""
        keys, data = ConfigKeys(config), self.data
        is_tied = keys.boolean("tie_word_embeddings", data.is_tied)
        text = self._decoder_keys(keys)
        # A flat file gives the decoder all keys but this one.
        if "text_config.tie_word_embeddings" in data.used:
            is_tied |= (
                data.is_tied if text is keys else text.boolean("tie_word_embeddings", data.is_tied)
            )
        vision = read_vision(
            keys,
            {path for path, rule in self.config_table.rules.items() if rule == USED},
            text.integer("hidden_size", most=LARGEST_WIDTH),
            merge=data.merge,
            has_fixed_view=not data.resizing,
            kind=data.layers,
        )
        decoder = read_decoder(
            text, is_tied=is_tied, deepstack=len(vision.deepstack), **data.decoder
        )
        return NeighbourDimensions(decoder, vision)

    def _decoder_keys(self, keys: ConfigKeys) -> ConfigKeys:
        """The object of a whole `config.json` that has the decoder's keys."""
        is_flat = self.data.reads_flat and keys.value("text_config", None) is None
        return keys if is_flat else keys.section("text_config")

    def notes_of(self, workload: PageWorkload) -> list[str]:
        """Notes for a reader of a workload's figures, one line each."""
        is_cached = self._decoder_keys(ConfigKeys(self.config)).value("use_cache", None)
        return [
            *["its config says use_cache: false; passes are counted with a cache"]
            * (is_cached is False),
            f"pages are usually rendered for {self.title} {self.data.usual_page}",
            *[f"{self.title}'s config: {self.data.source}"] * (self.config == self.data.config),
        ]

    def check_flash(self, dimensions: NeighbourDimensions) -> None:
        """Raises ConfigError, since only eager attention is modelled."""
        raise ConfigError(
            f"flash_attention=True is not supported: {self.name} is modelled with eager attention"
            " only, and serving engines with their own; give flash_attention=False",
            arguments=["flash_attention"],
        )

    # --- forwards

    def whole_model(
        self, t: Tape, c: NeighbourDimensions, p: Pass, page: PageWorkload | None
    ) -> list[LayerCache]:
        """A prefill pass over prompts with a page, or a decode step without: the cache by layer.

        Without a page, a prefill pass lacks all that is done to features of images.
        """
        embeds, (placed, *given) = self.embedded_page(t, c, p, page)
        hidden, cache = t.call(
            "model.language_model", decoder, embeds, p, c.decoder, placed.deepstack
        )
        returned = placed.tokens if self.data.pixels == "a view" else None
        del embeds, placed
        logits = t.call("lm_head", lm_head, hidden, p.B, c.decoder)
        return t.hold(cache, hidden, logits, returned, *given)

    def embedded_page(
        self, t: Tape, c: NeighbourDimensions, p: Pass, page: PageWorkload | None
    ) -> tuple[Operand, tuple[Any, ...]]:
        """Embeddings `[B, T, d]` with visual tokens, and what is held of the pages.

        First the features that have their places; then those before, positions and token ids.
        """
        features, given = ImageFeatures(t.input(0, t.dtype)), tuple[Operand, ...]()
        if page is not None:
            # In the text, and in time, height and width if the decoder tells them apart.
            positions = t.empty((4 if c.decoder.axes > 1 else 1) * p.tokens, INT64)
            features = self.served_views(t, replace(page.global_view, count=p.B), c)
            given = positions, t.empty(p.tokens, INT64)
        embeds, placed = t.call("model", self._embedded, c, p, features)
        return embeds, (placed, features, given)

    def _embedded(
        self, t: Tape, c: NeighbourDimensions, p: Pass, features: ImageFeatures
    ) -> tuple[Operand, ImageFeatures]:
        """Embeddings `[B, T, d]`, with tokens of images in their places.

        Source: `get_placeholder_mask` and its caller.
        """
        rows, d, ids = c.decoder.vocab_size, c.decoder.hidden_size, t.input(p.tokens, INT64)
        embeds = t.call("language_model.embed_tokens", embedding, ids, rows, d)
        if not features.tokens.n:
            kept = (_step_positions(t, p),) if p.past and c.decoder.axes > 1 else ()
            return embeds, replace(features, kept=kept)
        # Features of images that differ are divided by image, and joined again.
        tokens = t.cat(features.tokens) if self.data.resizing else features.tokens
        kinds = 2 if self.data.pixels == "flat patches" else 1
        masks = tuple(t.map("eq", ids, output=BOOL) for _ in range(kinds))
        _checked_places(t, masks, p)
        embeds = t.move("masked_scatter", embeds, tokens, masks[0])
        return embeds, ImageFeatures(tokens, tuple(map(t.cat, features.deepstack)), masks)

    def served_views(self, t: Tape, view: ViewBatch, c: NeighbourDimensions) -> ImageFeatures:
        """The vision stages in one call, on a tape without a path."""
        (width, height), patch = view.sides, c.vision.patch_size
        images = ImageGrid(view.count, height // patch, width // patch)
        features: ImageFeatures = t.call(self.data.vision[0], self.visual, images, c.vision)
        if self.project is not None:
            seen = features.tokens
            tokens = t.call(self.data.vision[1], self.project, seen, images, c.vision)
            features = ImageFeatures(tokens, kept=(seen,))
        return features

    # --- pages, each in one view, whose sides the model's processor chooses

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
        """What the processor makes of a page; the rest is as of `plan_workload`."""
        page = checked_page(page, batch_size, max_new_tokens)
        for name, value in (
            ("base_size", base_size),
            ("image_size", image_size),
            ("crop_mode", crop_mode),
            ("prompt_pages", None if prompt_pages == 1 else prompt_pages),
        ):
            if value:
                raise WorkloadError(
                    f"{name} {value!r} is not supported: {self.title}'s processor makes one view of"
                    f" every page, in sides of its own; leave {name} out",
                    arguments=[name],
                )
        columns, rows = self.page_rule.grid(*page)
        text = prompt_text(text_tokens, seq_len, columns * rows, self.text_tokens)
        return replace(
            self.page_with((columns, rows, text, batch_size)),
            page=page,
            max_new_tokens=max_new_tokens,
        )

    def page_with(self, sizes: tuple[int, ...]) -> PageWorkload:
        """A page of so many columns and rows of tokens, with text, in a batch."""
        columns, rows, text_tokens, batch = sizes
        factor, frames = self.page_rule.factor, self.dimensions.vision.frames
        return PageWorkload(
            page=(1, 1),
            base_size=0,
            image_size=0,
            crop_mode=False,
            grid=(columns, rows),
            views=(
                ViewBatch(1, columns * factor, None if rows == columns else rows * factor, frames),
            ),
            visual_tokens=columns * rows,
            text_tokens=text_tokens,
            batch_size=batch,
            max_new_tokens=1,
        )

    def inputs(self, workload: PageWorkload) -> Mapping[str, TensorInput]:
        """What `generate` is given: token ids, their mask, and what the processor makes of a page.

        That is patches, their grid, and which tokens are visual; or a view, and its sides unless
        they are those of all pages.

        Source: `Qwen2VLImageProcessor` and its likes, `PixtralImageProcessor`.
        """
        c, (width, height) = self.dimensions.vision, workload.global_view.sides
        prompt, visual, image = (1, workload.seq_len), workload.visual_tokens, self.image_token
        # The image comes first: no figure depends on where it is. Text has any other id.
        ids = _filled(prompt, PlacedValue(image, 0, visual), fill=image == 0, dtype=INT64.name)
        given = {"input_ids": ids, "attention_mask": _filled(prompt, fill=1, dtype=INT64.name)}
        if self.data.pixels == "a view":
            given["pixel_values"] = _filled((1, CHANNELS, height, width), fill=0.5)
            if self.data.resizing:
                given["image_sizes"] = _row(height, width)
            return given
        rows, columns = height // c.patch_size, width // c.patch_size
        is_square = self.data.pixels == "square patches"
        shape = (CHANNELS, c.patch_size, c.patch_size) if is_square else (CHANNELS * c.taps,)
        return given | {
            "pixel_values": _filled((rows * columns, *shape), fill=0.5),
            "image_grid_thw": _row(1, rows, columns),
            "mm_token_type_ids": _filled(prompt, PlacedValue(1, 0, visual), dtype=INT32.name),
        }

    def prefill_inputs(
        self, device: torch.device, dtype: torch.dtype, workload: PageWorkload
    ) -> ForwardInputs:
        """Keyword arguments of `generate` for a batch; raises WorkloadError where it fails."""
        if workload.batch_size * workload.visual_tokens < self.data.least_visual_tokens:
            raise WorkloadError(
                f"{self.model_class} of transformers fails on a single visual token, all that a"
                f" page of {' x '.join(map(str, workload.page))} pixels has; give a larger page, or"
                " the analytic engine",
                arguments=["the analytic engine"],
            )
        inputs = made_inputs(None, self.inputs(workload), device, dtype, workload)
        return {**inputs, "use_cache": True}

    def inputs_bytes(self, workload: PageWorkload, dtype: Dtype) -> int:
        """Bytes of all that `generate` is given for a batch; `text_tokens` may be an array."""
        widths = {MODEL_DTYPE: dtype.nbytes, INT32.name: INT32.nbytes, INT64.name: INT64.nbytes}
        return workload.batch_size * sum(
            prod(cast("tuple[int, ...]", each.shape)) * widths[each.dtype]
            for each in self.inputs(workload).values()
        )


# --- parts of passes -------------------------------------------------------------------------


def _row(*values: int) -> TensorInput:
    """Whole numbers for each page."""
    return TensorInput((1, len(values)), (values,), INT64.name, is_repeated=True)


def _filled(
    shape: tuple[int, ...], *placed: PlacedValue, fill: float = 0, dtype: str = MODEL_DTYPE
) -> TensorInput:
    """A tensor that is repeated for each page."""
    return TensorInput(shape, None, dtype, fill, placed, is_repeated=True)


def _checked_places(t: Tape, masks: Sequence[Operand], p: Pass) -> None:
    """Whether there are as many places as tokens."""
    count = t.reduce("sum", masks[0], 1, p.tokens, INT64)
    t.reduce("_is_all_true", t.map("eq", t.map("mul", count), output=BOOL), 1, 1)
    for mask in masks[1:]:
        t.reduce("sum", mask, 1, p.tokens, INT64)
    t.hold(count)


def _step_positions(t: Tape, p: Pass) -> Operand:
    """Positions of a step's tokens in three axes (`compute_3d_position_ids`)."""
    position = t.move("arange", n=1, dtype=INT64, into=t.host(1, INT64))
    position = t.move("transfer", position, n=3 * p.B)
    delta = t.move("clone", t.input(p.B, INT64))
    return t.map("add", position, delta)
