"""What is fitted: a typed record of coefficients per kernel kind. No numpy.

Shares are parts of a datasheet peak; `_us` are microseconds. `share` of matrix products is for
full tiles of a busy chip, memory shares are for long streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

__all__ = [
    "COEFFICIENTS",
    "OPTIONAL",
    "Coefficients",
    "ExpertsCoefficients",
    "GemmCoefficients",
    "GenerationCoefficients",
    "MaskedCoefficients",
    "MovementCoefficients",
    "PrefillCoefficients",
    "ScaledGemmCoefficients",
    "coefficients_of",
]


@dataclass(frozen=True)
class GemmCoefficients:
    """Of a matrix product (20): the best of six tiles and four split-k factors."""

    share_256x128: float
    share_128x256: float
    share_128x128: float
    share_128x64: float
    share_64x64: float
    share_64x32: float
    wave_us: float
    """Of every wave of tiles, whatever its work."""
    split_us: float
    """Of every further part that a product over k is split into."""
    whole_waves: float
    """Weight of whole waves against fractional ones (1: half and half)."""
    prologue_blocks: float
    """Blocks of 64 along k that a tile costs before its first product."""
    partial_bytes: float
    """Part of the bytes of partial sums that reach memory."""
    memory_share: float
    l2_share: float
    """Bandwidth from L2 in device bandwidths, where everything fits."""
    ramp_mb: float
    """Bytes that could have moved while a stream was starting, MB."""
    norm: float
    """Compute and memory overlap as the (1 + norm)-norm of the two."""
    launch_us: float
    crowding: float
    """Slowdown of a tile where every SM is busy (clock and power), as a part of its time."""
    slow_columns: int
    """Most columns for which the library takes a slow kernel where rows are few; 0 for none."""
    slow_depth: int
    """Greatest k for which it does."""
    slow: float
    """Slowdown there, as a part of the time."""


@dataclass(frozen=True)
class ScaledGemmCoefficients:
    """Of a float8 product whose rows are quantized first (19): one tile for each range of m."""

    tiles: int
    """Which list of tiles the library has, in the order of `scaled_gemm.TILES`."""
    share_16: float
    share_64: float
    share_128: float
    share_256: float
    share_more: float
    wave_us: float
    whole_waves: float
    prologue_blocks: float
    memory_share: float
    l2_share: float
    ramp_mb: float
    norm: float
    launch_us: float
    crowding: float
    ragged: float
    """Weights read once more, in part, where m ends within a tile of many."""
    quantize_us: float
    quantize_share: float
    """Bandwidth share of the kernel that quantizes the rows."""
    row_ns: float
    """Of each row in it, nanoseconds."""


@dataclass(frozen=True)
class PrefillCoefficients:
    """Of fused attention with many queries, encoder or causal (19)."""

    tile_queries: int
    tile_keys: int
    slots: int
    """Tiles an SM holds at a time; later waves come in that many."""
    head_step: int
    """Head sizes are computed as the next multiple of it."""
    splits: int
    """1 where keys are split over SMs that would be idle."""
    share: float
    softmax: float
    """Of one score, in head elements: what its exponential costs."""
    block_us: float
    """Of one block of keys, whatever its work."""
    tile_us: float
    whole_waves: float
    combine_us: float
    memory_share: float
    l2_share: float
    norm: float
    longest: float
    """Causal: the longest tile and the balanced sum meet as the (1 + longest)-norm."""
    launch_us: float
    late_us: float
    """On top of it for long sequences: 1 - exp(-keys / late_keys) of it."""
    late_keys: float
    crowding: float


@dataclass(frozen=True)
class GenerationCoefficients:
    """Of fused attention with one query, over a cache (19)."""

    tile_heads: int
    tile_keys: int
    slots: int
    split_needs_groups: int
    """1 where only grouped queries (heads > kv_heads) are split over keys."""
    tile_us: float
    block_us: float
    row_us: float
    """Of a block of 64 keys and 128 head elements."""
    whole_waves: float
    combine_us: float
    combine_share: float
    memory_share: float
    l2_share: float
    l2_part: float
    """Part of L2 that a cache may fill before it is half evicted."""
    l2_sharpness: float
    norm: float
    launch_us: float
    late_us: float
    group: float
    """More work a tile for every query head that shares a key head."""
    grouped_us: float
    """Of the copies that bring grouped queries of several sequences together."""


@dataclass(frozen=True)
class MaskedCoefficients:
    """Of fused attention to whose scores a bias tensor is added (11)."""

    tile_queries: int
    tile_keys: int
    share: float
    softmax: float
    """Of one score, in head elements: what its bias and its exponential cost."""
    tile_us: float
    whole_waves: float
    memory_share: float
    l2_share: float
    unaligned: float
    """How often more the bias is moved where its rows are no multiple of 8: it is copied first."""
    norm: float
    launch_us: float


@dataclass(frozen=True)
class ExpertsCoefficients:
    """Of grouped experts (20): routing, two grouped products, activation, weighted sum."""

    tiles: int
    """How the library chooses a tile: a constant of `experts`."""
    inter_step: int
    """Inner sizes are padded to a multiple of it. Above 1 for kernels that lack some activations,
    for which a second kernel runs."""
    rate_16: float
    """TFLOP/s of one SM with tiles of 16 rows, at most those with 128: what it loads sets it, so
    that it does not follow the peak to another GPU."""
    rate_32: float
    rate_64: float
    share_128: float
    """Of the peak, with tiles of 128 rows."""
    tile_us: float
    whole_waves: float
    unaligned_ns: float
    """Of each element of a tile that is loaded by itself, nanoseconds."""
    memory_share: float
    wide_memory: float
    """Slowdown of the stream of weights for tiles of more rows, as a part of its time."""
    l2_share: float
    l2_part: float
    """Part of L2 that weights may fill before they no longer stay in it."""
    ramp_mb: float
    norm: float
    movement_share: float
    launch_us: float
    """Routing included."""
    fallback_movement: float
    """Bandwidth share of what the second kernel moves between its products."""
    fallback_us: float
    fallback_tile_us: float


@dataclass(frozen=True)
class MovementCoefficients:
    """Of elementwise kernels, normalizations and copies (4)."""

    memory_share: float
    l2_share: float
    ramp_mb: float
    launch_us: float


Coefficients: TypeAlias = (
    GemmCoefficients
    | ScaledGemmCoefficients
    | PrefillCoefficients
    | GenerationCoefficients
    | MaskedCoefficients
    | ExpertsCoefficients
    | MovementCoefficients
)

COEFFICIENTS: Final[dict[str, type[Coefficients]]] = {
    "gemm": GemmCoefficients,
    "encoder_attention": PrefillCoefficients,
    "context_attention": PrefillCoefficients,
    "generation_attention": GenerationCoefficients,
    "masked_attention": MaskedCoefficients,
    "experts": ExpertsCoefficients,
    "movement": MovementCoefficients,
}
"""Record of each kernel kind, in the order of a profile."""

OPTIONAL: Final = ("masked_attention",)
"""Kinds that no shipped profile has; where they are missing, their times are assumed."""


def coefficients_of(kind: str, dtype: str) -> type[Coefficients]:
    """Record of a kernel kind in an element type; products in float32 have that of 16 bits."""
    if (kind, dtype) == ("gemm", "float8"):
        return ScaledGemmCoefficients
    return COEFFICIENTS[kind]
