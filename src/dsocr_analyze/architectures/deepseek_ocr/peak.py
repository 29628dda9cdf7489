"""Peak activation: the most bytes of tensors alive at once in the prefill pass.

The pass is replayed as the lives of its tensors: what it makes, besides weights and inputs, from
the operator that writes it until nothing refers to it any more, with the copies that a kernel makes
and the scratch that it takes while it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsocr_analyze.architectures.deepseek_ocr.decoder_lifetimes import replay_decoder, replay_head
from dsocr_analyze.architectures.deepseek_ocr.vision import token_side
from dsocr_analyze.architectures.deepseek_ocr.vision_lifetimes import replay_views
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
    page = _replay_page(lives, dimensions, workload)
    if B > 1:
        # While the second page is looked at, what the first one left is still there.
        page = _replay_page(lives, dimensions, workload, before=page)
    replay_decoder(lives, B, T, decoder, flash=flash_attention, inputs=inputs + page)
    if has_logits:
        replay_head(lives, B * T, decoder)
    return lives.peak


def _replay_page(
    lives: Lifetimes, dimensions: ModelDimensions, workload: Workload, before: int = 0
) -> int:
    """One page's views, laid out as tokens; returns the bytes of what stays of it.

    Args:
        lives: What is alive.
        dimensions: The model.
        workload: The page.
        before: Bytes of what the page before has left: its tokens go at once, the rest by and by.
    """
    d, visual = dimensions.decoder.hidden_size, workload.visual_tokens
    if before:
        tokens = visual * d * lives.dtype.nbytes
        lives.free(tokens)
        before -= tokens
    kept: list[int] = []
    for view in workload.views:
        features, projected = replay_views(lives, view, dimensions)
        kept += [features, projected]
    lives.path = "model"
    held = 0
    for view, features, projected in zip(workload.views, kept[::2], kept[1::2], strict=True):
        q = token_side(view.resolution, dimensions.sam)
        columns, rows = workload.grid if view is workload.local_views else (1, 1)
        laid_out = projected
        if columns > 1 and q > 1:
            laid_out = lives.features(rows * q * columns * q * d)
            lives.free(projected)
        with_newlines = lives.features(rows * q * (columns * q + 1) * d)
        lives.free(laid_out)
        held += features + with_newlines
    held += lives.features(visual * d)
    held += lives.features(visual * d)
    lives.free(before)
    return held
