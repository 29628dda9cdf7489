"""A neighbour of DeepSeek-OCR: its dimensions, and its passes on tapes.

A page is one image; its tokens take their places in the prompt of a dense decoder, whose head sees
the last position. Like `generate` of transformers 5.23, a pass encodes images first, and keeps what
its encoder returns and all positions until it ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from dsocr_analyze.architectures.config_file import Config
from dsocr_analyze.architectures.neighbours.decoder import DenseDecoder, decoder, lm_head
from dsocr_analyze.architectures.neighbours.vision import ImageGrid
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.decoder import LayerCache
from dsocr_analyze.architectures.ocr_family.passes import DECODE
from dsocr_analyze.architectures.stages import StageScope
from dsocr_analyze.dtypes import BOOL, INT64
from dsocr_analyze.kernels import Rows
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.tape.modules import embedding
from dsocr_analyze.toml_table import read_toml

# --- what a neighbour is ---------------------------------------------------------------------


class Vision(Protocol):
    """Dimensions of vision stages."""

    @property
    def patch_size(self) -> int:
        """Pixels per side of a patch."""

    @property
    def merge(self) -> int:
        """Patches per side of a visual token."""


VisionT = TypeVar("VisionT", bound=Vision)


@dataclass(frozen=True, slots=True)
class NeighbourDimensions(Generic[VisionT]):
    """The dimensions of a model."""

    decoder: DenseDecoder
    vision: VisionT

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the model's figures."""
        return ()

    def step_cuts(self, seq_len: int) -> tuple[int, ...]:
        """Decode steps from which the work changes in kind: none."""
        return ()


@dataclass(frozen=True, slots=True)
class ImageFeatures:
    """What the vision stages leave.

    Attributes:
        tokens: `[N h w / m^2, d]`.
        deepstack: The same of inner layers.
        kept: What stays alive besides.
    """

    tokens: Operand
    deepstack: tuple[Operand, ...] = ()
    kept: tuple[Operand, ...] = ()


class Neighbour(ABC, Generic[VisionT]):
    """A neighbour of DeepSeek-OCR; its own class says what distinguishes it.

    Args:
        file: Python file of its class, beside which a TOML file of the same name has its data.

    Attributes:
        name: On the command line and in reports; `title` is for readers.
        transformers_class: That builds it.
        vendor_classes: Its names in `architectures`.
        model_types: Used if no class is named.
        source: Where the built-in config is from.
        config: The built-in config.
        stages: The vision stages, the prefill pass, a decode step.
        begins: Names of vision stages by the path at which each begins.
        joins_images: Whether features are divided by image, and joined where they take their place.
        has_videos: Whether a prompt is searched for a video's tokens as well.
        returns_features: Whether the model returns the features that took their places.
    """

    joins_images: ClassVar[bool] = True
    has_videos: ClassVar[bool] = False
    returns_features: ClassVar[bool] = False

    def __init__(self, file: str) -> None:
        path = Path(file)
        data = read_toml(path.with_suffix(".toml"))
        self.name, self.title = path.stem.replace("_", "-"), data.text("title")
        self.vendor_classes = data.texts("vendor_classes")
        self.transformers_class = data.text("transformers_class", self.vendor_classes[0])
        self.model_types, self.source = data.texts("model_types"), data.text("source")
        self.config: Config = data.value("config", None, dict, "a table")
        prefixes = data.texts("vision")
        self.stages = (
            StageScope("vision", prefixes, "vision"),
            StageScope("prefill", ("model.language_model",), "prefill"),
            DECODE,
        )
        self.begins: Mapping[str, str] = dict.fromkeys(prefixes, "vision")
        data.done()

    def recognizes(self, config: Config) -> bool:
        """Whether a parsed `config.json` belongs to it."""
        classes = config.get("architectures")
        if isinstance(classes, list) and classes:
            return classes[0] in self.vendor_classes
        return config.get("model_type") in self.model_types

    def read_dimensions(self, config: Config) -> NeighbourDimensions[VisionT]:
        """Reads a `config.json`; raises ConfigError for absent, wrong or conflicting keys."""
        text = self.read_decoder(config)
        return NeighbourDimensions(text, self.read_vision(config, text.hidden_size))

    @abstractmethod
    def read_decoder(self, config: Config) -> DenseDecoder:
        """Reads the decoder's dimensions from a whole `config.json`; raises ConfigError."""

    @abstractmethod
    def read_vision(self, config: Config, out_width: int) -> VisionT:
        """Reads those of the vision stages, whose tokens have `out_width` features."""

    @abstractmethod
    def encode(self, t: Tape, images: ImageGrid, c: VisionT) -> ImageFeatures:
        """The vision stages in one call, on a tape without a path."""


# --- passes ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Prompt:
    """What a pass keeps: token ids, positions, features of its images, masks of their places."""

    positions: Operand | None = None
    features: ImageFeatures | None = None
    ids: Operand | None = None
    placed: Operand | None = None
    masks: tuple[Operand, ...] = ()


def whole_model(
    t: Tape,
    model: Neighbour[VisionT],
    c: NeighbourDimensions[VisionT],
    p: Pass,
    images: ImageGrid | None,
    visual_tokens: Size = 0,
) -> list[LayerCache]:
    """A prefill pass, or a decode step if `p.past`: the cache by layer.

    To be called as a module, `t.call("", whole_model, ...)`.

    Args:
        t: The tape.
        model: The neighbour.
        c: Its dimensions.
        p: How the pass runs.
        images: In the prompts of a prefill pass. None to leave out the vision stages and how their
            tokens take their places, but not what the decoder does with them.
        visual_tokens: Per prompt, without images.
    """
    seen = _seen(t, model, c, p, images)
    hidden, cache = t.call("model", _model, model, c, p, seen, visual_tokens)
    logits = t.call("lm_head", lm_head, hidden, p, c.decoder)
    t.hold(hidden, logits)
    return cache


def embedded_prompt(
    t: Tape,
    model: Neighbour[VisionT],
    c: NeighbourDimensions[VisionT],
    p: Pass,
    images: ImageGrid | None,
) -> tuple[Operand, Prompt]:
    """Embeddings `[B, T, d]` with visual tokens, and what is kept of the pass."""
    seen = _seen(t, model, c, p, images)
    return t.call("model", _embedded, model, c, p, seen), seen


def _seen(
    t: Tape,
    model: Neighbour[VisionT],
    c: NeighbourDimensions[VisionT],
    p: Pass,
    images: ImageGrid | None,
) -> Prompt:
    """What is there before the model runs: positions, features of the images, token ids."""
    axes, seen = c.decoder.axes, Prompt()
    if images is not None:
        seen.positions = t.empty((axes + 1 if axes > 1 else 1) * p.tokens, INT64)
        seen.features = model.encode(t, images, c.vision)
        seen.ids = t.empty(p.tokens, INT64)
    return seen


def _model(
    t: Tape,
    model: Neighbour[VisionT],
    c: NeighbourDimensions[VisionT],
    p: Pass,
    seen: Prompt,
    visual_tokens: Size,
) -> tuple[Operand, list[LayerCache]]:
    """The model without its head: normed features `[B, T, d]`, and the cache by layer."""
    embeds = _embedded(t, model, c, p, seen)
    deepstack: list[Operand] = []
    if seen.features is not None:
        deepstack += map(t.cat, seen.features.deepstack)
    elif not p.past:
        added = p.B * visual_tokens * c.decoder.hidden_size
        deepstack += [t.input(added, t.dtype)] * c.decoder.deepstack
    positions = _step_positions(t, p) if p.past and c.decoder.axes > 1 else None
    output = t.call("language_model", decoder, embeds, p, c.decoder, deepstack)
    t.hold(positions)
    if not model.returns_features:
        seen.placed = None
    seen.masks = ()
    return output


def _embedded(
    t: Tape, model: Neighbour[VisionT], c: NeighbourDimensions[VisionT], p: Pass, seen: Prompt
) -> Operand:
    """Embeddings `[B, T, d]`, with tokens of images in their places.

    Source: `get_placeholder_mask` and its caller.
    """
    rows, d, ids = c.decoder.vocab_size, c.decoder.hidden_size, t.input(p.tokens, INT64)
    embeds = t.call("language_model.embed_tokens", embedding, ids, rows, d)
    if seen.features is None:
        return embeds
    tokens = seen.features.tokens
    seen.placed = t.cat(tokens) if model.joins_images else tokens
    masks = [t.map("eq", ids, output=BOOL) for _ in range(1 + model.has_videos)]
    _checked_places(t, masks[0], p, has_videos=model.has_videos)
    seen.masks = tuple(masks)
    return t.move("masked_scatter", embeds, seen.placed, masks[0])


def _checked_places(t: Tape, mask: Operand, p: Pass, *, has_videos: bool) -> None:
    """Whether there are as many places as tokens."""
    shape, output = Rows(1, p.tokens), (1, INT64)
    count, *_ = t.rows("reduction", "sum", mask, shape, output, flops=p.tokens)
    agrees = t.map("eq", t.map("mul", count), output=BOOL)
    t.rows("reduction", "_is_all_true", agrees, Rows(1, 1), (1, BOOL), flops=1)
    del agrees
    if has_videos:
        t.rows("reduction", "sum", mask, shape, output, flops=p.tokens)
    t.hold(count)


def _step_positions(t: Tape, p: Pass) -> Operand:
    """Positions of a step's tokens in three axes (`compute_3d_position_ids`)."""
    position = t.move("arange", n=1, dtype=INT64, into=t.host(1, INT64))
    position = t.move("transfer", position, n=3 * p.B)
    delta = t.move("clone", t.input(p.B, INT64))
    return t.map("add", position, delta)
