"""SAM's 2-D attention with decomposed relative positions, global or in windows.

Source: `Block`, `Attention` and its functions (`deepencoder.py`); MViTv2 (Li et al. 2022), eq. 4;
ViTDet (Li et al. 2022) for the windows.
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count, ceil_div
from dsocr_analyze.costs.linear import linear, linear_params
from dsocr_analyze.costs.movement import FP32_BYTES, INDEX_BYTES, copy, moved
from dsocr_analyze.costs.position_table import linear_resize
from dsocr_analyze.costs.sums import ModuleWork, combined, scaled
from dsocr_analyze.work import Work

__all__ = [
    "grid_attention",
    "grid_attention_params",
    "relative_positions",
    "window_count",
    "window_partition",
]


def window_count(g: Count, window: int) -> Count:
    """Windows a side that a grid of g tokens a side is padded to: `ceil(g / window)`."""
    return ceil_div(g, window)


def window_partition(N: Count, g: Count, window: int, d: int, element_bytes: int) -> Work:
    """Cutting `[N, g, g, d]` into windows and putting the windows' results together again.

    A padded copy and its undoing where `window` does not divide g; a copy each way where there is
    more than one window.

    Args:
        N: Views.
        g: Tokens a side of the grid.
        window: Tokens a side of a window.
        d: Width.
        element_bytes: Bytes of a feature.
    """
    windows = window_count(g, window)
    side = windows * window
    inner = N * g * g * d
    padded = N * side * side * d
    is_padded = 1 * (side != g)
    padding = scaled(moved(inner, padded), is_padded)
    cropping = scaled(moved(inner, inner), is_padded)
    reordering = scaled(moved(padded, padded), 2 * (windows != 1))
    return scaled(combined((padding, cropping, reordering)), element_bytes)


def relative_positions(table: int, g: Count, D: int, element_bytes: int) -> Work:
    """`R[i, j] = table[i - j + g - 1]`, `[g, g, D]`, of one axis.

    The table is resized linearly where it has not `2 g - 1` rows. The coordinates: two ranges
    (int64), scaled to fp32 (g each), subtracted, shifted (g^2 each) and cast to indices.

    Args:
        table: Rows of the learned table.
        g: Tokens a side.
        D: Features of a head.
        element_bytes: Bytes of a feature of the table.
    """
    pairs = g * g
    coordinates = Work(
        vector_flops=2 * g + 2 * pairs,
        bytes_read=2 * INDEX_BYTES * g + 2 * FP32_BYTES * g + 2 * FP32_BYTES * pairs,
        bytes_written=2 * (INDEX_BYTES + FP32_BYTES) * g + (2 * FP32_BYTES + INDEX_BYTES) * pairs,
    )
    rows = pairs * (D * element_bytes)
    taken = moved(rows + INDEX_BYTES * pairs, rows)
    return combined((linear_resize(table, 2 * g - 1, D, element_bytes), coordinates, taken))


def grid_attention(
    N: Count, g: Count, d: int, heads: int, table: int, element_bytes: int
) -> ModuleWork:
    """`softmax(q k^T / sqrt(D) + q R_h + q R_w) v` over N grids of g x g tokens.

    With T = g^2 tokens and S = N H T^2 scores: the two terms of the bias are N H T g D MACs each,
    their broadcast sum is S additions, attention is 2 S D MACs and 7 S FLOPs (scale, bias and a
    softmax of five), fused.

    Args:
        N: Grids: views, or all of their windows.
        g: Tokens a side.
        d: Width.
        heads: H; D = d / H.
        table: Rows of each of the two learned tables.
        element_bytes: Bytes of a feature.

    Returns:
        Own work, `qkv` and `proj`.
    """
    D = d // heads
    T = g * g
    tokens = N * T
    features = tokens * d
    term = tokens * (heads * g)
    scores = tokens * (heads * T)
    # Elements that reshaping copies: heads behind the batch, where both are more than one; the
    # first term's rows, where there is more than one matrix. Attention puts its output out with the
    # heads behind the tokens, so that merging them copies nothing.
    split_heads = 3 * features * (N != 1) if heads > 1 else 0
    by_row = term if heads > 1 else term * (N != 1)
    copies = copy(split_heads + by_row + term, element_bytes)
    terms = Work(
        macs=2 * term * D,
        activations=2 * term,
        bytes_read=2 * element_bytes * (features + T * D),
        bytes_written=2 * element_bytes * term,
    )
    bias = Work(
        vector_flops=scores,
        bytes_read=2 * element_bytes * term,
        bytes_written=element_bytes * scores,
    )
    attention = Work(
        macs=2 * scores * D,
        vector_flops=7 * scores,
        activations=features,
        bytes_read=element_bytes * (3 * features + scores),
        bytes_written=element_bytes * features,
    )
    positions = scaled(relative_positions(table, g, D, element_bytes), 2)
    return {
        "qkv": linear(tokens, d, 3 * d, element_bytes, bias=True),
        "": combined((copies, positions, terms, bias, attention)),
        "proj": linear(tokens, d, d, element_bytes, bias=True),
    }


def grid_attention_params(d: int, heads: int, table: int) -> int:
    """Parameters: q, k, v and output projections with bias, two tables `[table, d / H]`."""
    D = d // heads
    return linear_params(d, 3 * d, bias=True) + linear_params(d, d, bias=True) + 2 * table * D
