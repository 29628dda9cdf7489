"""The relatives with two encoders: SAM feeds CLIP, and both feed the projector.

Source: `DeepseekOCRModel.forward` (`modeling_deepseekocr.py`), `UnlimitedOCRModel.forward`
(`modeling_unlimitedocr.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsocr_analyze.architectures.ocr_family.layout import features_joined, newlines, picture
from dsocr_analyze.architectures.ocr_family.network import Network
from dsocr_analyze.architectures.ocr_family.projector import projector_params
from dsocr_analyze.architectures.ocr_family.stages import CLIP, PROJECTOR, SAM
from dsocr_analyze.architectures.ocr_family.vision import (
    clip_params,
    clip_sections,
    projector_sections,
    sam_params,
    sam_sections,
    token_side,
)
from dsocr_analyze.architectures.ocr_family.vision_lifetimes import ViewFeatures, replay_views

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Stage
    from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
    from dsocr_analyze.costs.integers import Count
    from dsocr_analyze.costs.lifetimes import Lifetimes
    from dsocr_analyze.costs.operators import Kernels
    from dsocr_analyze.costs.sections import Section
    from dsocr_analyze.dtypes import Dtype
    from dsocr_analyze.kernels import KernelsOf
    from dsocr_analyze.workload import ViewBatch, Workload

__all__ = ["ClipNetwork"]


class ClipNetwork(Network):
    """A relative with SAM and CLIP, whose views are laid out in rows that end in newlines."""

    vision = (SAM, CLIP, PROJECTOR)
    separators = ("model.image_newline", "model.view_seperator")

    def sections(
        self, N: Count, R: Count, dimensions: ModelDimensions, dtype: Dtype, kernels_of: KernelsOf
    ) -> dict[Stage, list[Section]]:
        """SAM on pixels, CLIP on its features, the projector on both."""
        q = token_side(R, dimensions.sam)
        return {
            SAM: sam_sections(N, R, dimensions.sam, dtype, kernels_of),
            CLIP: clip_sections(N, q, dimensions.clip, dtype),
            PROJECTOR: projector_sections(N, q, dimensions.projector, dtype),
        }

    def params(self, dimensions: ModelDimensions) -> dict[Stage, int]:
        """Parameters of both encoders and the projector."""
        return {
            SAM: sam_params(dimensions.sam),
            CLIP: clip_params(dimensions.clip),
            PROJECTOR: projector_params(dimensions.projector),
        }

    def whole_tokens(self, q: Count) -> Count:
        """`q (q + 1) + 1`: a newline ends each of q rows, and a separator ends the page."""
        return q * (q + 1) + 1

    def local_tokens(self, q: Count, columns: Count, rows: Count) -> Count:
        """`(q w + 1) (q h)`: the views form one picture, and a newline ends each of its rows."""
        return (q * columns + 1) * (q * rows)

    def whole_layout(self, q: Count, dimensions: ModelDimensions, dtype: Dtype) -> Kernels:
        """Joins both features before the projector; afterwards adds a newline to each of q rows."""
        d_in, d = _widths(dimensions)
        return features_joined(1, q, d_in, dtype) + newlines(q, q, d, dtype)

    def local_layout(
        self, columns: Count, rows: Count, q: Count, dimensions: ModelDimensions, dtype: Dtype
    ) -> Kernels:
        """The same, with all views laid out as one picture."""
        d_in, d = _widths(dimensions)
        joined = features_joined(columns * rows, q, d_in, dtype)
        return joined + picture(columns, rows, q, d, dtype)

    def replay_views(
        self, lives: Lifetimes, view: ViewBatch, dimensions: ModelDimensions, before: ViewFeatures
    ) -> ViewFeatures:
        """SAM, CLIP and projector."""
        return replay_views(lives, view, dimensions, before)

    def replay_layout(
        self,
        lives: Lifetimes,
        views: tuple[ViewFeatures, ...],
        dimensions: ModelDimensions,
        workload: Workload,
    ) -> tuple[ViewFeatures, ...]:
        """Adds a newline to each row; the global view, which comes last, is laid out first."""
        d, laid_out = dimensions.decoder.hidden_size, list(views)
        for index in reversed(range(len(views))):
            view = workload.views[index]
            q = token_side(view.resolution, dimensions.sam)
            columns, rows = workload.grid if view is workload.local_views else (1, 1)
            tokens = views[index].tokens
            if columns > 1 and q > 1:
                picture = lives.features(rows * q * columns * q * d)
                lives.free(tokens)
                tokens = picture
            with_newlines = lives.features(rows * q * (columns * q + 1) * d)
            lives.free(tokens)
            laid_out[index] = views[index]._replace(tokens=with_newlines)
        return tuple(laid_out)


def _widths(dimensions: ModelDimensions) -> tuple[int, int]:
    """Features before and after the projector."""
    return dimensions.clip.width + dimensions.sam.out_channels, dimensions.decoder.hidden_size
