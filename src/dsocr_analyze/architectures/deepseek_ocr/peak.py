"""Peak activation: the most bytes of tensors alive at once in the prefill pass.

The pass is replayed as the lives of its tensors: what it makes, besides weights and inputs, from
the operator that writes it until nothing refers to it any more, with the copies that a kernel makes
and the scratch that it takes while it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsocr_analyze.architectures.deepseek_ocr.decoder_lifetimes import replay_decoder, replay_head
from dsocr_analyze.architectures.deepseek_ocr.vision import token_side
from dsocr_analyze.architectures.deepseek_ocr.vision_lifetimes import (
    NO_FEATURES,
    ViewFeatures,
    replay_views,
)
from dsocr_analyze.costs.lifetimes import Lifetimes
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import CUDA, KernelsOf

if TYPE_CHECKING:
    from dsocr_analyze.architectures.deepseek_ocr.dimensions import ModelDimensions
    from dsocr_analyze.workload import Workload

__all__ = ["peak"]


def peak(
    dimensions: ModelDimensions,
    workload: Workload,
    dtype: Dtype,
    *,
    flash_attention: bool,
    kernels_of: KernelsOf = CUDA,
    has_logits: bool = True,
) -> Peak:
    """The peak of a workload's prefill pass.

    Args:
        dimensions: The model.
        workload: Page, text and batch.
        dtype: Type of features.
        flash_attention: FlashAttention in place of the decoder's eager attention.
        kernels_of: Whose kernels run.
        has_logits: Whether the head runs over the whole prompt.
    """
    lives = Lifetimes(dtype, kernels_of)
    decoder, B, T = dimensions.decoder, workload.batch_size, workload.seq_len
    lives.path = "model.embed_tokens"
    inputs = lives.features(B * T * decoder.hidden_size)
    page = _replay_page(lives, dimensions, workload, None)
    if B > 1:
        # While the second page is looked at, what the first one left is still there.
        page = _replay_page(lives, dimensions, workload, page)
    replay_decoder(lives, B, T, decoder, flash=flash_attention, inputs=inputs + page.nbytes)
    if has_logits:
        replay_head(lives, B * T, decoder)
    return lives.peak


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
