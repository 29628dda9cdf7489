"""Rotary positions: the tables of cosines and sines, and turning queries and keys by them.

Source: RoFormer (Su et al. 2021), eq. 34; `LlamaRotaryEmbedding` (plain attention) and the four
classes `DeepseekV2*RotaryEmbedding` (latent attention, `modeling_deepseekv2.py`).
"""

from __future__ import annotations

from typing import Final, Literal

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.movement import FP32_BYTES, INDEX_BYTES, cast, elementwise, moved
from dsocr_analyze.costs.sums import combined
from dsocr_analyze.work import Work

__all__ = ["RopeVariant", "dynamic_update", "llama_tables", "rotation", "table_rows", "tables"]

RopeVariant = Literal["default", "linear", "dynamic", "yarn"]

_FREQUENCY_OPERATORS: Final = 4
"""Of `1 / base^(2 i / D)`: quotient, power, reciprocal, product."""

_YARN_OPERATORS: Final = 17
"""Of the blend: four for the kept frequencies, five for the interpolated ones, eight to mix them.

Three of them read two tensors; three ranges come before.
"""


def llama_tables(T: Count, D: int, element_bytes: int) -> Work:
    """Cosines and sines of T positions, computed anew by each layer (`LlamaRotaryEmbedding`).

    Positions cast to fp32; frequencies times positions as a matrix product `[D/2, 1] x [1, T]`
    (D T / 2 MACs); both halves; cosine, sine and a scale of each (4 D T FLOPs); casts.

    Args:
        T: Positions.
        D: Features of a head.
        element_bytes: Bytes of a feature.
    """
    angles = T * (D // 2)
    table = FP32_BYTES * D * T
    turning = Work(
        macs=angles,
        vector_flops=4 * D * T,
        activations=angles,
        bytes_read=(INDEX_BYTES + FP32_BYTES) * T + FP32_BYTES * (D // 2) + 5 * table,
        bytes_written=FP32_BYTES * (T + angles) + 5 * table,
    )
    return combined((turning, cast(2 * D * T, FP32_BYTES, element_bytes)))


def tables(variant: RopeVariant, K: Count, D: int, element_bytes: int) -> Work:
    """Cosines and sines of positions 0 .. K - 1, tabled anew whenever K has grown.

    A range of K, for "linear" divided by the factor; the outer product with the frequencies;
    both halves; cosine and sine, for "yarn" scaled; casts. "yarn" blends its frequencies first.

    Args:
        variant: How positions are stretched.
        K: Positions, the cached ones included.
        D: Rotary features of a head.
        element_bytes: Bytes of a feature.
    """
    half = D // 2
    table = FP32_BYTES * D * K
    scales = 2 if variant == "yarn" else 0
    turning = Work(
        vector_flops=half * K + (2 + scales) * D * K,
        bytes_read=FP32_BYTES * (K + half) + (3 + scales) * table,
        bytes_written=FP32_BYTES * (K + half * K) + (3 + scales) * table,
    )
    parts = [turning, cast(2 * D * K, FP32_BYTES, element_bytes)]
    if variant == "linear":
        parts.append(elementwise(K, FP32_BYTES))
    if variant == "yarn":
        parts.append(_yarn_frequencies(half))
    return combined(parts)


def _frequencies(half: int) -> Work:
    """`1 / base^(2 i / D)` for i = 0 .. D/2 - 1: a range, a cast, then operators of D/2 each."""
    return Work(
        vector_flops=_FREQUENCY_OPERATORS * half,
        bytes_read=(INDEX_BYTES + _FREQUENCY_OPERATORS * FP32_BYTES) * half,
        bytes_written=(INDEX_BYTES + FP32_BYTES + _FREQUENCY_OPERATORS * FP32_BYTES) * half,
    )


def _yarn_frequencies(half: int) -> Work:
    """YaRN's blend of kept and interpolated frequencies (Peng et al. 2023, eq. 17 to 23)."""
    return Work(
        vector_flops=_YARN_OPERATORS * half,
        bytes_read=(_YARN_OPERATORS + 3) * FP32_BYTES * half,
        bytes_written=(_YARN_OPERATORS + 3) * FP32_BYTES * half,
    )


def dynamic_update(D: int) -> Work:
    """New frequencies for a length beyond the trained one ("dynamic" only, NTK-aware scaling).

    Args:
        D: Rotary features of a head.
    """
    return _frequencies(D // 2)


def table_rows(T: Count, D: int, element_bytes: int) -> Work:
    """Taking T rows of the cosines and of the sines (latent attention).

    Args:
        T: Positions.
        D: Rotary features of a head.
        element_bytes: Bytes of a feature.
    """
    rows = T * (D * element_bytes)
    return moved(2 * rows + 2 * INDEX_BYTES * T, 2 * rows)


def rotation(B: Count, T: Count, heads: int, D: int, element_bytes: int, *, pairs: bool) -> Work:
    """`x cos + rotate_half(x) sin`: 3.5 FLOPs an element of n = B T H D.

    A product, the negation of a half, both halves joined, a product, a sum.

    Args:
        B: Batch.
        T: Tokens.
        heads: H.
        D: Features of a head that turn.
        element_bytes: Bytes of a feature.
        pairs: Whether features lie in pairs and are copied into halves first (latent attention);
            a single pair lies as two halves already.
    """
    half = B * T * (heads * (D // 2))
    n = 2 * half
    tables_read = 2 * T * D
    pairing = n if pairs and D > 2 else 0
    return Work(
        vector_flops=3 * n + half,
        bytes_read=element_bytes * (5 * n + half + tables_read + pairing),
        bytes_written=element_bytes * (4 * n + half + pairing),
    )
