"""Plain self-attention, as in CLIP.

Source: Vaswani et al. 2017, eq. 1; `NoTPAttention` (`deepencoder.py`).
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.linear import linear, linear_params
from dsocr_analyze.costs.sums import ModuleWork
from dsocr_analyze.work import Work

__all__ = ["self_attention", "self_attention_params"]


def self_attention(N: Count, T: Count, d: int, heads: int, element_bytes: int) -> ModuleWork:
    """`softmax(q k^T / sqrt(D)) v`, fused and without a mask, between two linears with bias.

    With S = N H T^2 scores: 2 S D MACs, 6 S FLOPs (scale and a softmax of five). The fused kernel
    puts its output out with the heads behind the tokens, so that merging them copies nothing.

    Args:
        N: Views.
        T: Tokens of a view.
        d: Width.
        heads: H; D = d / H.
        element_bytes: Bytes of a feature.

    Returns:
        Own work, `qkv_proj` and `out_proj`.
    """
    features = N * T * d
    scores = N * T * T * heads
    attention = Work(
        macs=2 * scores * (d // heads),
        vector_flops=6 * scores,
        activations=features,
        bytes_read=3 * element_bytes * features,
        bytes_written=element_bytes * features,
    )
    return {
        "qkv_proj": linear(N * T, d, 3 * d, element_bytes, bias=True),
        "": attention,
        "out_proj": linear(N * T, d, d, element_bytes, bias=True),
    }


def self_attention_params(d: int) -> int:
    """Parameters: q, k, v and output projections with bias."""
    return linear_params(d, 3 * d, bias=True) + linear_params(d, d, bias=True)
