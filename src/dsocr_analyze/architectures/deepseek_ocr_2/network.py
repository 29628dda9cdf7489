"""DeepSeek-OCR-2 as a relative: a Qwen2 encoder between SAM and projector, and no newlines.

Source: `DeepseekOCR2Model.forward` (`modeling_deepseekocr2.py`).
"""

from __future__ import annotations

from typing import Final

from dsocr_analyze.architectures.architecture import Stage
from dsocr_analyze.architectures.crop_grid import CropRule
from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import VIEW_SIZES, OCR2Dimensions
from dsocr_analyze.architectures.deepseek_ocr_2.qwen2_encoder import qwen2_encoder
from dsocr_analyze.architectures.ocr_family.network import Network, ViewFeatures
from dsocr_analyze.architectures.ocr_family.projector import projector
from dsocr_analyze.architectures.ocr_family.sam import sam
from dsocr_analyze.architectures.ocr_family.stages import PROJECTOR, SAM
from dsocr_analyze.architectures.ocr_family.views import tokens_per_side
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.workload import ViewBatch

__all__ = ["NETWORK"]


ENCODER: Final = Stage(
    "encoder",
    ("model.qwen2_model",),
    "vision",
    (
        "a Qwen2 decoder: image tokens see one another, queries also the queries before them;"
        " all T x T products are multiplied",
        "it fills a KV cache that nothing reads",
    ),
)


class _OCR2(Network):
    """Each view becomes as many tokens as it has queries, and the views are concatenated."""

    vision = (SAM, ENCODER, PROJECTOR)
    crop = CropRule(tile=768, most=6)
    base_size, image_size = 1024, 768
    text_tokens = 10
    r"""BOS and the text of `<image>\n<|grounding|>Convert the document to markdown.`"""

    def check_sizes(self, base_size: int, image_size: int, crop_mode: bool) -> None:
        """Rejects views for which the encoder has no queries, and tiles of another size."""
        if crop_mode:
            _check_view("base_size", base_size)
            if image_size != self.crop.tile:
                raise WorkloadError(
                    f"image_size {image_size} is not supported in crop mode: tiles always"
                    f" have {self.crop.tile} pixels per side, and tokens laid out for another size"
                    f" do not match their features; give {self.crop.tile}",
                    arguments=["image_size"],
                )
        else:
            _check_view("image_size", image_size)

    def encode(
        self,
        t: Tape,
        features: ViewFeatures,
        pixels: Operand,
        view: ViewBatch,
        c: OCR2Dimensions,
        *,
        is_served: bool = False,
    ) -> None:
        """SAM on pixels, the encoder on its features, the projector on the encoded queries.

        Serving engines build the encoder's mask once and keep it (vLLM pull 49531).
        """
        N, q = view.count, tokens_per_side(view.resolution)
        features.spatial = t.again("sam_model", sam, pixels, N, view.resolution, c.sam)
        features.semantic = t.again(
            "qwen2_model", qwen2_encoder, features.spatial, N, q, c.encoder, has_mask=is_served
        )
        features.tokens = features.semantic  # frees the previous page's tokens first
        # The encoded queries follow the image tokens of their view.
        features.tokens = t.again(
            "projector", projector, features.tokens, N, q, c.projector, are_apart=True
        )

    def whole_tokens(self, q: Size) -> Size:
        """`q q + 1`: there are no newlines; a separator ends the page."""
        return q * q + 1

    def local_tokens(self, q: Size, columns: Size, rows: Size) -> Size:
        """`q q` per view."""
        return q * q * columns * rows


NETWORK: Final = _OCR2()


def _check_view(argument: str, size: int) -> None:
    """Rejects a view whose number of tokens has no queries in the published code.

    That code fixes the sizes that have queries; a config may name others for a small model, and
    then pages are planned without this check.
    """
    if tokens_per_side(size) not in {tokens_per_side(each) for each in VIEW_SIZES}:
        sizes = " or ".join(map(str, VIEW_SIZES))
        raise WorkloadError(
            f"{argument} {size} is not supported: the encoder has no queries for the"
            f" {tokens_per_side(size) ** 2} tokens of such a view; give {sizes}",
            arguments=[argument],
        )
