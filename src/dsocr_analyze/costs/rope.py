"""Rotary positions: tables of cosines and sines, and the rotation of queries and keys.

Source: RoFormer (Su et al. 2021), eq. 34; `LlamaRotaryEmbedding` (plain attention) and the four
classes `DeepseekV2*RotaryEmbedding` (latent attention, `modeling_deepseekv2.py`).
"""

from __future__ import annotations

from typing import Literal

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import (
    Kernels,
    addition,
    cast,
    copy,
    elementwise,
    filled,
    moved,
    product,
    transferred,
)
from dsocr_analyze.dtypes import FLOAT32, INT64, Dtype

__all__ = ["RopeVariant", "dynamic_update", "llama_tables", "rotation", "table_rows", "tables"]

RopeVariant = Literal["default", "linear", "dynamic", "yarn"]


def llama_tables(B: Count, T: Count, D: int, dtype: Dtype) -> Kernels:
    """Cosines and sines of T positions, recomputed by each layer (`LlamaRotaryEmbedding`).

    For each sequence: positions cast to fp32; frequencies times positions as a matrix product
    `[D/2, 1] x [1, T]` (D T / 2 MACs); both halves; cosine, sine and a scaling of each (4 D T
    FLOPs); casts.

    Args:
        B: Sequences, each with its own positions.
        T: Positions.
        D: Features per head.
        dtype: Type of the features.
    """
    return (
        *cast(B * T, INT64, FLOAT32),
        *product("matmul", B, D // 2, T, 1, FLOAT32, left=D // 2),
        *_cosines_and_sines(B * T * D, dtype, are_scaled=True),
    )


def tables(variant: RopeVariant, K: Count, D: int, dtype: Dtype) -> Kernels:
    """Cosines and sines of positions 0 .. K - 1, recomputed whenever K has grown.

    A range of K, divided by the factor for "linear"; the outer product with the frequencies; both
    halves; cosine and sine, scaled for "yarn"; casts. "yarn" first blends its frequencies.

    Args:
        variant: How positions are stretched.
        K: Positions, including cached ones.
        D: Rotary features per head.
        dtype: Type of the features.
    """
    half = D // 2
    return (
        *(_yarn_frequencies(half) if variant == "yarn" else ()),
        *filled("arange", K, FLOAT32),
        *(elementwise("div", K, FLOAT32) if variant == "linear" else ()),
        *elementwise("mul", half * K, FLOAT32, read=FLOAT32.nbytes * (K + half)),
        *_cosines_and_sines(K * D, dtype, are_scaled=variant == "yarn"),
    )


def _cosines_and_sines(elements: Count, dtype: Dtype, *, are_scaled: bool) -> Kernels:
    """Joins both halves of the angles, then computes each table of `elements` elements."""
    scale = elementwise("mul", elements, FLOAT32) if are_scaled else ()
    to_features = cast(elements, FLOAT32, dtype)
    return (
        *copy("cat", elements, FLOAT32),
        *elementwise("cos", elements, FLOAT32),
        *scale,
        *elementwise("sin", elements, FLOAT32),
        *scale,
        *to_features,
        *to_features,
    )


def _each(operators: str, elements: int, *, inputs: int = 1) -> Kernels:
    """Elementwise fp32 operators in sequence, named in one string."""
    return tuple(
        kernel
        for operator in operators.split()
        for kernel in elementwise(operator, elements, FLOAT32, inputs=inputs)
    )


def _yarn_frequencies(half: int) -> Kernels:
    """YaRN's blend of kept and interpolated frequencies (Peng et al. 2023, eq. 17 to 23).

    Two sets of periods `base^(2 i / D)` and their reciprocals, one set stretched first; a weight
    for each, from a clamped ramp whose ends the host computes; the sum of the two products.
    """
    numbers = filled("arange", half, FLOAT32)
    periods = numbers + _each("div pow", half)
    return (
        *periods,
        *_each("reciprocal mul", half),
        *periods,
        *_each("mul reciprocal mul", half),
        *numbers,
        *_each("sub div clamp rsub rsub", half),
        *transferred(half, FLOAT32),
        *_each("mul mul add", half, inputs=2),
    )


def dynamic_update(D: int) -> Kernels:
    """New frequencies for a length beyond the trained one ("dynamic" only, NTK-aware scaling).

    `1 / base^(2 i / D)` for i = 0 .. D/2 - 1: a range and a cast on the host, their transfer, then
    four operators of D/2 each.

    Args:
        D: Rotary features per head.
    """
    half = D // 2
    return (
        *filled("arange", half, INT64),
        *cast(half, INT64, FLOAT32),
        *transferred(half, FLOAT32),
        *_each("div pow reciprocal mul", half),
    )


def table_rows(T: Count, D: int, dtype: Dtype) -> Kernels:
    """Takes T rows each of the cosines and the sines (latent attention).

    Args:
        T: Positions of all sequences.
        D: Rotary features per head.
        dtype: Type of the features.
    """
    rows = T * (D * dtype.nbytes)
    return 2 * moved("index", T * D, rows + INT64.nbytes * T, rows, dtype)


def rotation(
    B: Count,
    T: Count,
    heads: int,
    D: int,
    dtype: Dtype,
    *,
    pairs: bool,
    rows_of_tables: Count | None = None,
) -> Kernels:
    """`x cos + rotate_half(x) sin`: 3.5 FLOPs per element of n = B T H D.

    A product, the negation of one half, concatenation of the halves, a product, a sum.

    Args:
        B: Batch.
        T: Tokens.
        heads: H.
        D: Rotated features per head.
        dtype: Type of the features.
        pairs: Whether features are stored in pairs and copied into halves first (latent
            attention); a single pair is already stored as two halves.
        rows_of_tables: Rows of the tables of cosines and sines; default: one per token.
    """
    rows = B * T if rows_of_tables is None else rows_of_tables
    half = B * T * (heads * (D // 2))
    n = 2 * half
    turned = elementwise("mul", n, dtype, read=dtype.nbytes * (n + rows * D))
    return (
        *(copy("clone", n, dtype) if pairs and D > 2 else ()),
        *turned,
        *elementwise("neg", half, dtype),
        *copy("cat", n, dtype),
        *turned,
        *addition(n, dtype),
    )
