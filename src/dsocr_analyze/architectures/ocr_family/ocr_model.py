"""What distinguishes one relative of DeepSeek-OCR from another: stages, vision side and tokens.

The relatives share SAM, the projector and the decoder. `passes` and `served` run them on a tape and
ask an `OcrModel` for the rest.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

from dsocr_analyze.architectures.config_file import Config, KeyTable
from dsocr_analyze.architectures.ocr_family.clip import clip
from dsocr_analyze.architectures.ocr_family.dimensions import ClipModelDimensions, ModelDimensions
from dsocr_analyze.architectures.ocr_family.projector import projector
from dsocr_analyze.architectures.ocr_family.sam import sam
from dsocr_analyze.architectures.stages import Stage
from dsocr_analyze.architectures.views import CropRule, tokens_per_side
from dsocr_analyze.dtypes import INT64
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.workload import ViewBatch

__all__ = [
    "DECODE",
    "PREFILL",
    "PROJECTOR",
    "ROUTED_EXPERT",
    "SAM",
    "ClipModel",
    "OcrModel",
    "ViewFeatures",
]

SAM: Final = Stage("sam", ("model.sam_model",), "vision")
CLIP: Final = Stage(
    "clip",
    ("model.vision_model",),
    "vision",
    ("SAM's features replace the patch embedding, whose convolution never runs",),
)
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


class ViewFeatures:
    """What one vision call leaves.

    Attributes:
        spatial: SAM's features.
        semantic: The second encoder's, if there is one.
        tokens: The projector's output, and finally the tokens as laid out.
    """

    __slots__ = ("semantic", "spatial", "tokens")

    def __init__(self) -> None:
        self.spatial: Operand | None = None
        self.semantic: Operand | None = None
        self.tokens: Operand | None = None


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
    def vision(self) -> tuple[Stage, ...]:
        """Stages of the vision side, in the order of their calls."""
        return tuple(stage for stage in self.stages if stage.role == "vision")

    @property
    def begins(self) -> dict[str, str]:
        """Names of the vision stages, by the path of the module at which each begins."""
        return {prefix: stage.name for stage in self.vision for prefix in stage.prefixes}

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


class ClipModel(OcrModel):
    """A relative with SAM and CLIP, whose views are laid out in rows that end in newlines.

    Source: `DeepseekOCRModel.forward` (`modeling_deepseekocr.py`), `UnlimitedOCRModel.forward`
    (`modeling_unlimitedocr.py`).
    """

    stages: tuple[Stage, ...] = (SAM, CLIP, PROJECTOR, PREFILL, DECODE)

    def read_dimensions(self, config: Config) -> ClipModelDimensions:
        """Dimensions from the top-level object of a `config.json`."""
        return ClipModelDimensions.from_config(config)

    def encode(
        self,
        t: Tape,
        features: ViewFeatures,
        pixels: Operand,
        view: ViewBatch,
        c: ClipModelDimensions,
        *,
        is_served: bool = False,
    ) -> None:
        """SAM on pixels, CLIP on its features, the projector on both."""
        N, q = view.count, tokens_per_side(view.resolution)
        features.spatial = t.again("sam_model", sam, pixels, N, view.resolution, c.sam)
        features.semantic = t.again("vision_model", clip, features.spatial, N, q, c.clip)
        patches = t.view(features.semantic, N * q * q * c.clip.width)
        features.tokens = t.cat(patches, features.spatial)
        del patches
        features.tokens = t.again("projector", projector, features.tokens, N, q, c.projector)

    def lay_out(
        self,
        t: Tape,
        features: ViewFeatures,
        view: ViewBatch,
        grid: tuple[int, int],
        c: ClipModelDimensions,
    ) -> None:
        """As one picture, with a newline after each of its rows.

        Local views take a copy unless there is one column or one token per side. Their grid is a
        tensor on the host: its sides are multiplied by q, the rows twice.
        """
        assert features.tokens is not None
        (columns, rows), q, d = grid, tokens_per_side(view.resolution), c.decoder.hidden_size
        if view.count > 1:
            for _ in range(3):
                t.map("mul", t.host(1, INT64), into=t.host(1, INT64))
        if columns > 1 and q > 1:
            features.tokens = t.clone(features.tokens)
        newline = t.weight(d, "image_newline")
        n = rows * q * (columns * q + 1) * d
        features.tokens = t.move("cat", features.tokens, newline, n=n)

    def whole_tokens(self, q: Size) -> Size:
        """`q (q + 1) + 1`: a newline ends each of q rows, and a separator ends the page."""
        return q * (q + 1) + 1

    def local_tokens(self, q: Size, columns: Size, rows: Size) -> Size:
        """`(q w + 1) (q h)`: the views form one picture, and a newline ends each of its rows."""
        return (q * columns + 1) * (q * rows)
