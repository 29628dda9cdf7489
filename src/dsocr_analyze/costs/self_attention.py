"""Plain self-attention, as in CLIP.

Source: Vaswani et al. 2017, eq. 1; `NoTPAttention` (`deepencoder.py`).
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.operators import attention
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.kernels import Attention

__all__ = ["self_attention"]


def self_attention(N: Count, T: Count, d: int, heads: int, dtype: Dtype) -> ModuleKernels:
    """`softmax(q k^T / sqrt(D)) v`, fused and without a mask, between two linears with bias.

    The fused kernel writes `[N, T, H, D]`, so merging the heads is a view.

    Args:
        N: Views.
        T: Tokens per view.
        d: Width.
        heads: H; D = d / H.
        dtype: Type of features and weights.

    Returns:
        Own kernel (the attention), `qkv_proj` and `out_proj`.
    """
    D = d // heads
    shape = Attention(N, heads, heads, T, T, D, D)
    return {
        "": attention("scaled_dot_product_attention", shape, dtype),
        "qkv_proj": linear(N * T, d, 3 * d, dtype, bias=True),
        "out_proj": linear(N * T, d, d, dtype, bias=True),
    }
