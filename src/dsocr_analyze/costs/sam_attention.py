"""SAM's 2-D attention with decomposed relative positions, global or in windows.

Source: `Block`, `Attention` and its functions (`deepencoder.py`); MViTv2 (Li et al. 2022), eq. 4;
ViTDet (Li et al. 2022) for the windows.
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.operators import (
    Kernels,
    attention,
    cast,
    copy,
    elementwise,
    filled,
    moved,
    product,
)
from dsocr_analyze.costs.position_table import linear_resize
from dsocr_analyze.costs.sums import ModuleKernels, repeated
from dsocr_analyze.dtypes import FLOAT32, INT64, Dtype
from dsocr_analyze.kernels import Attention
from dsocr_analyze.tape.integers import ceil_div

__all__ = ["grid_attention", "relative_positions", "window_count", "window_partition"]


def window_count(g: Count, window: int) -> Count:
    """Windows per side after padding a grid of g tokens per side: `ceil(g / window)`."""
    count: Count = ceil_div(g, window)
    return count


def window_partition(N: Count, g: Count, window: int, d: int, dtype: Dtype) -> Kernels:
    """Cuts `[N, g, g, d]` into windows and reassembles their results.

    A padded copy before and a cropped one after, unless `window` divides g; in between, one copy
    each way if there is more than one window.

    Args:
        N: Views.
        g: Tokens per side of the grid.
        window: Tokens per side of a window.
        d: Width.
        dtype: Type of features.
    """
    windows = window_count(g, window)
    side = windows * window
    inner, padded = N * g * g * d, N * side * side * d
    is_padded = 1 * (side != g)
    padding = moved("constant_pad_nd", padded, inner * dtype.nbytes, padded * dtype.nbytes, dtype)
    return (
        *repeated(padding, is_padded),
        *repeated(copy("clone", padded, dtype), 2 * (windows != 1)),
        *repeated(copy("clone", inner, dtype), is_padded),
    )


def relative_positions(table: int, g: Count, D: int, dtype: Dtype) -> Kernels:
    """`R[i, j] = table[i - j + g - 1]`, `[g, g, D]`, for one axis.

    The table is resized linearly unless it has `2 g - 1` rows. The coordinates: two int64 ranges,
    scaled to fp32 (g each), subtracted, shifted (g^2 each) and cast to indices.

    Args:
        table: Rows of the learned table.
        g: Tokens per side.
        D: Features per head.
        dtype: Type of the table.
    """
    pairs = g * g
    axis = filled("arange", g, INT64) + elementwise("mul", g, INT64, output=FLOAT32)
    rows = pairs * (D * dtype.nbytes)
    return (
        *linear_resize(table, 2 * g - 1, D, dtype),
        *axis,
        *axis,
        *elementwise("sub", pairs, FLOAT32, read=2 * FLOAT32.nbytes * g),
        *elementwise("add", pairs, FLOAT32),
        *cast(pairs, FLOAT32, INT64),
        *moved("index", pairs * D, rows + INT64.nbytes * pairs, rows, dtype),
    )


def grid_attention(
    N: Count,
    g: Count,
    d: int,
    heads: int,
    table: int,
    dtype: Dtype,
) -> ModuleKernels:
    """`softmax(q k^T / sqrt(D) + q R_h + q R_w) v` over N grids of g x g tokens.

    With T = g^2 tokens and S = N H T^2 scores: the two bias terms are N H T g D MACs each, their
    broadcast sum is S additions; fused attention is 2 S D MACs and 7 S FLOPs (scale, bias, and a
    softmax of five).

    Args:
        N: Grids: the views, or all of their windows.
        g: Tokens per side.
        d: Width.
        heads: H; D = d / H.
        table: Rows of each of the two learned tables.
        dtype: Type of features and weights.

    Returns:
        Own kernels, `qkv` and `proj`.
    """
    D = d // heads
    T = g * g
    tokens = N * T
    term = tokens * (heads * g)
    axis = relative_positions(table, g, D, dtype)
    products = product("einsum", g, N * g * heads, g, D, dtype)
    # Copies made by reshaping: q, k and v with heads next to the batch, if both exceed one; the
    # first term if there is more than one matrix; the second term always. CUDA's attention writes
    # [N, T, H, D], so merging heads is a view.
    many = 1 * (N != 1)
    queries = copy("clone", tokens * d, dtype)
    split_heads = repeated(copy("clone", 3 * tokens * d, dtype), many) if heads > 1 else ()
    laid_out = copy("clone", term, dtype)
    shape = Attention(N, heads, heads, T, T, D, D, masked=True)
    own = (
        *split_heads,
        *axis,
        *axis,
        # Each product needs its axis first in the queries: a copy for rows; for columns only if
        # the heads are not next to the batch yet.
        *(queries if heads > 1 else repeated(queries, many)),
        *products,
        *(repeated(queries, 1 - many) if heads > 1 else ()),
        *products,
        *(laid_out if heads > 1 else repeated(laid_out, many)),
        *laid_out,
        *elementwise("add", tokens * (heads * T), dtype, read=2 * dtype.nbytes * term),
        *attention("scaled_dot_product_attention", shape, dtype),
    )
    return {
        "": own,
        "qkv": linear(tokens, d, 3 * d, dtype, bias=True),
        "proj": linear(tokens, d, d, dtype, bias=True),
    }
