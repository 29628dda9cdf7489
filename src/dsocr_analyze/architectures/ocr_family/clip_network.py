"""The relatives with two encoders: SAM's features go through CLIP, and both to the projector.

Source: `DeepseekOCRModel.forward` (`modeling_deepseekocr.py`), `UnlimitedOCRModel.forward`
(`modeling_unlimitedocr.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
from dsocr_analyze.architectures.ocr_family.vision_lifetimes import (
    NO_FEATURES,
    ViewFeatures,
    replay_views,
)

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Stage
    from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
    from dsocr_analyze.costs.integers import Count
    from dsocr_analyze.costs.lifetimes import Lifetimes
    from dsocr_analyze.costs.operators import Kernels
    from dsocr_analyze.costs.sections import Section
    from dsocr_analyze.dtypes import Dtype
    from dsocr_analyze.kernels import KernelsOf
    from dsocr_analyze.workload import Workload

__all__ = ["ClipNetwork"]


class ClipNetwork(Network):
    """A relative with SAM and CLIP, whose views are laid out in rows with a newline behind each."""

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
        """`q (q + 1) + 1`: a newline ends each of q rows, a separator the page."""
        return q * (q + 1) + 1

    def local_tokens(self, q: Count, columns: Count, rows: Count) -> Count:
        """`(q w + 1) (q h)`: the views are one picture, and a newline ends each of its rows."""
        return (q * columns + 1) * (q * rows)

    def whole_layout(self, q: Count, dimensions: ModelDimensions, dtype: Dtype) -> Kernels:
        """Both features joined before the projector; behind it, a newline for each of q rows."""
        d_in, d = _widths(dimensions)
        return features_joined(1, q, d_in, dtype) + newlines(q, q, d, dtype)

    def local_layout(
        self, columns: Count, rows: Count, q: Count, dimensions: ModelDimensions, dtype: Dtype
    ) -> Kernels:
        """The same, with all views laid out as one picture."""
        d_in, d = _widths(dimensions)
        joined = features_joined(columns * rows, q, d_in, dtype)
        return joined + picture(columns, rows, q, d, dtype)

    def replay_pages(
        self, lives: Lifetimes, dimensions: ModelDimensions, workload: Workload
    ) -> int:
        """Views and layout of the pages one by one; what a page leaves goes name by name."""
        if workload.prompt_pages > 1:
            prompt = _replay_prompt(lives, dimensions, workload, None)
            if workload.batch_size > 1:
                prompt = _replay_prompt(lives, dimensions, workload, prompt)
            return prompt.nbytes
        page = _replay_page(lives, dimensions, workload, None)
        if workload.batch_size > 1:
            # While the second page is looked at, what the first one left is still there.
            page = _replay_page(lives, dimensions, workload, page)
        return page.nbytes


def _widths(dimensions: ModelDimensions) -> tuple[int, int]:
    """Features before the projector and behind it."""
    return dimensions.clip.width + dimensions.sam.out_channels, dimensions.decoder.hidden_size


class _Page(NamedTuple):
    """Bytes of what a page leaves behind until the pass ends or the next page replaces it."""

    views: tuple[ViewFeatures, ...]
    tokens: int
    """All of its visual tokens; a copy of them is as large."""

    @property
    def nbytes(self) -> int:
        return sum(map(sum, self.views)) + 2 * self.tokens


def _replay_page(
    lives: Lifetimes, dimensions: ModelDimensions, workload: Workload, before: _Page | None
) -> _Page:
    """One page's views, laid out as tokens.

    Args:
        lives: What is alive.
        dimensions: The model.
        workload: The page.
        before: What the page before has left, if there was one.
    """
    d = dimensions.decoder.hidden_size
    if before is not None:
        lives.free(before.tokens)  # the copy; the rest goes name by name
    old = [NO_FEATURES] * len(workload.views) if before is None else before.views
    views = [
        replay_views(lives, view, dimensions, left)
        for view, left in zip(workload.views, old, strict=True)
    ]
    lives.path = "model"
    # The whole view, which comes last, is laid out first.
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
        views[index] = views[index]._replace(tokens=with_newlines)
    visual = lives.features(workload.visual_tokens * d)
    lives.free(before.tokens if before is not None else 0)
    lives.features(workload.visual_tokens * d)
    return _Page(tuple(views), visual)


class _Prompt(NamedTuple):
    """Bytes of what the pages of a prompt leave behind until the next prompt's replace it."""

    views: ViewFeatures
    page: int
    """The last page's visual tokens."""
    tokens: int
    """Those of all pages."""

    @property
    def nbytes(self) -> int:
        return sum(self.views) + self.page + self.tokens


def _replay_prompt(
    lives: Lifetimes, dimensions: ModelDimensions, workload: Workload, before: _Prompt | None
) -> _Prompt:
    """The whole views of a prompt's pages, one by one; of equal pages three are replayed.

    Arguments as of `_replay_page`; each page's tokens are held until those of all are joined.
    """
    d, pages = dimensions.decoder.hidden_size, workload.prompt_pages
    view = workload.global_view
    q = token_side(view.resolution, dimensions.sam)
    left, old_page = NO_FEATURES, 0
    if before is not None:
        lives.free(before.tokens)
        left, old_page = before.views, before.page
    size = workload.visual_tokens // pages * d * lives.dtype.nbytes
    for page in range(pages):
        if 2 <= page < pages - 1:
            lives.alive += size
            continue
        left = replay_views(lives, view, dimensions, left)
        lives.path = "model"
        with_newlines = lives.features(q * (q + 1) * d)
        lives.free(left.tokens)
        left = left._replace(tokens=with_newlines)
        lives.make(size)
        if not page:
            lives.free(old_page)
    tokens = lives.features(workload.visual_tokens * d)
    lives.free((pages - 1) * size)
    return _Prompt(left, size, tokens)
