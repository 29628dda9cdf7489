"""The relatives with two encoders: SAM feeds CLIP, and both feed the projector.

Source: `DeepseekOCRModel.forward` (`modeling_deepseekocr.py`), `UnlimitedOCRModel.forward`
(`modeling_unlimitedocr.py`).
"""

from __future__ import annotations

from dsocr_analyze.architectures.ocr_family.clip import clip
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.ocr_family.network import Network, ViewFeatures
from dsocr_analyze.architectures.ocr_family.projector import projector
from dsocr_analyze.architectures.ocr_family.sam import sam
from dsocr_analyze.architectures.ocr_family.stages import CLIP, PROJECTOR, SAM
from dsocr_analyze.architectures.ocr_family.tokens import tokens_per_side
from dsocr_analyze.dtypes import INT64
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.workload import ViewBatch

__all__ = ["ClipNetwork"]


class ClipNetwork(Network):
    """A relative with SAM and CLIP, whose views are laid out in rows that end in newlines."""

    vision = (SAM, CLIP, PROJECTOR)
    separators = ("model.image_newline", "model.view_seperator")

    def encode(
        self,
        t: Tape,
        features: ViewFeatures,
        pixels: Operand,
        view: ViewBatch,
        c: ModelDimensions,
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
        c: ModelDimensions,
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
