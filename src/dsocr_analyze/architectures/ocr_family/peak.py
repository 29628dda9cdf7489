"""Peak activation: the most bytes of tensors alive at once in the prefill pass.

The pass is replayed as the lifetimes of its tensors, besides weights and inputs: from the operator
that writes a tensor until nothing refers to it any more, including the copies a kernel makes and
the scratch it takes while it runs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from dsocr_analyze.architectures.ocr_family.decoder_lifetimes import replay_decoder, replay_head
from dsocr_analyze.architectures.ocr_family.page_lifetimes import replay_pages
from dsocr_analyze.costs.lifetimes import Lifetimes
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import CUDA, KernelsOf

if TYPE_CHECKING:
    from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions
    from dsocr_analyze.architectures.ocr_family.network import Network
    from dsocr_analyze.workload import Workload

__all__ = ["peak"]


@lru_cache(maxsize=4096)  # a search for the largest batch asks for the same peaks again and again
def peak(
    network: Network,
    dimensions: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    *,
    flash_attention: bool,
    kernels_of: KernelsOf = CUDA,
    has_logits: bool = True,
) -> Peak:
    """The peak of a workload's prefill pass.

    Args:
        network: The relative.
        dimensions: Its dimensions.
        workload: Page, text and batch.
        dtype: Type of features.
        flash_attention: FlashAttention instead of the decoder's eager attention.
        kernels_of: Whose kernels run.
        has_logits: Whether the head runs over the whole prompt.
    """
    lives = Lifetimes(dtype, kernels_of)
    decoder, B, T = dimensions.decoder, workload.batch_size, workload.seq_len
    lives.path = "model.embed_tokens"
    inputs = lives.features(B * T * decoder.hidden_size)
    inputs += replay_pages(network, lives, dimensions, workload)
    replay_decoder(lives, B, T, decoder, flash=flash_attention, inputs=inputs)
    if has_logits:
        replay_head(lives, B * T, decoder)
    return lives.peak
