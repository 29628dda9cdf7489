"""DeepSeek-OCR-2 as a relative: a Qwen2 encoder between SAM and projector, and no newlines.

Source: `DeepseekOCR2Model.forward` (`modeling_deepseekocr2.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures.deepseek_ocr_2.encoder import encoder_params, encoder_sections
from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import VIEW_SIZES
from dsocr_analyze.architectures.deepseek_ocr_2.encoder_lifetimes import replay_encoder
from dsocr_analyze.architectures.deepseek_ocr_2.stages import ENCODER
from dsocr_analyze.architectures.ocr_family.crop_grid import CropRule
from dsocr_analyze.architectures.ocr_family.network import Network
from dsocr_analyze.architectures.ocr_family.projector import projector_params
from dsocr_analyze.architectures.ocr_family.stages import PROJECTOR, SAM
from dsocr_analyze.architectures.ocr_family.tokens import tokens_per_side
from dsocr_analyze.architectures.ocr_family.vision import (
    projector_sections,
    sam_params,
    sam_sections,
    token_side,
)
from dsocr_analyze.architectures.ocr_family.vision_lifetimes import (
    ViewFeatures,
    replay_projector,
    replay_sam,
)
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.kernels import CUDA

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Stage
    from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import OCR2Dimensions
    from dsocr_analyze.costs.integers import Count
    from dsocr_analyze.costs.lifetimes import Lifetimes
    from dsocr_analyze.costs.operators import Kernels
    from dsocr_analyze.costs.sections import Section
    from dsocr_analyze.dtypes import Dtype
    from dsocr_analyze.kernels import KernelsOf
    from dsocr_analyze.workload import ViewBatch

__all__ = ["NETWORK"]


class _OCR2(Network):
    """Each view becomes as many tokens as it has queries, and the views are concatenated."""

    vision = (SAM, ENCODER, PROJECTOR)
    separators = ("model.view_seperator",)
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

    def sections(
        self, N: Count, R: Count, dimensions: OCR2Dimensions, dtype: Dtype, kernels_of: KernelsOf
    ) -> dict[Stage, list[Section]]:
        """SAM on pixels, the encoder on its features, the projector on the encoded queries."""
        q = token_side(R, dimensions.sam)
        return {
            SAM: sam_sections(N, R, dimensions.sam, dtype, kernels_of),
            ENCODER: encoder_sections(N, q, dimensions.encoder, dtype, kernels_of),
            # The encoded queries follow the image tokens of their view.
            PROJECTOR: projector_sections(N, q, dimensions.projector, dtype, are_apart=True),
        }

    def served_sections(
        self, N: Count, R: Count, dimensions: OCR2Dimensions, dtype: Dtype
    ) -> dict[Stage, list[Section]]:
        """The same, but engines build the encoder's mask once and keep it (vLLM pull 49531)."""
        sections = self.sections(N, R, dimensions, dtype, CUDA)
        q = token_side(R, dimensions.sam)
        kept = encoder_sections(N, q, dimensions.encoder, dtype, has_mask=True)
        return {**sections, ENCODER: kept}

    def params(self, dimensions: OCR2Dimensions) -> dict[Stage, int]:
        """Parameters of both encoders and the projector."""
        return {
            SAM: sam_params(dimensions.sam),
            ENCODER: encoder_params(dimensions.encoder),
            PROJECTOR: projector_params(dimensions.projector),
        }

    def whole_tokens(self, q: Count) -> Count:
        """`q q + 1`: there are no newlines; a separator ends the page."""
        return q * q + 1

    def local_tokens(self, q: Count, columns: Count, rows: Count) -> Count:
        """`q q` per view."""
        return q * q * columns * rows

    def whole_layout(self, q: Count, dimensions: OCR2Dimensions, dtype: Dtype) -> Kernels:
        """Nothing: tokens keep their layout."""
        return ()

    def local_layout(
        self, columns: Count, rows: Count, q: Count, dimensions: OCR2Dimensions, dtype: Dtype
    ) -> Kernels:
        """Nothing: views are concatenated."""
        return ()

    def replay_views(
        self, lives: Lifetimes, view: ViewBatch, dimensions: OCR2Dimensions, before: ViewFeatures
    ) -> ViewFeatures:
        """SAM, encoder and projector; the encoder's output includes its image tokens."""
        N, q = view.count, token_side(view.resolution, dimensions.sam)
        spatial = replay_sam(lives, N, view.resolution, dimensions.sam)
        lives.free(before.spatial)
        semantic = replay_encoder(lives, N, q * q, dimensions.encoder)
        lives.free(before.semantic)
        lives.path = "model"
        lives.free(before.tokens)
        projected = replay_projector(lives, N * q * q, dimensions.projector, is_copied=N > 1)
        return ViewFeatures(spatial, semantic, projected)


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
