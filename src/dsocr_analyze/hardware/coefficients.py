"""The fitted coefficients: one typed record per kernel kind. No numpy.

Shares are fractions of a datasheet peak; `_us` are microseconds. `share` of matrix products is for
full tiles on a busy chip, memory shares are for long streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

__all__ = [
    "COEFFICIENTS",
    "OPTIONAL",
    "Coefficients",
    "ExpertsCoefficients",
    "Fitted",
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
    """Coefficients of a matrix product (20): the best of six tiles and four split-k factors."""

    share_256x128: float
    share_128x256: float
    share_128x128: float
    share_128x64: float
    share_64x64: float
    share_64x32: float
    wave_us: float
    """Fixed cost per wave of tiles."""
    split_us: float
    """Cost per part that k is split into."""
    whole_waves: float
    """Weight of whole waves against fractional ones (1: half and half)."""
    prologue_blocks: float
    """Start-up cost of a tile, in blocks of 64 along k."""
    partial_bytes: float
    """Fraction of the bytes of partial sums that reach memory."""
    memory_share: float
    l2_share: float
    """Bandwidth of L2 relative to device memory, if everything fits in L2."""
    ramp_mb: float
    """Start-up cost of a stream, in MB that could have moved meanwhile."""
    norm: float
    """Compute and memory overlap as the (1 + norm)-norm of the two."""
    launch_us: float
    crowding: float
    """Slowdown of a tile if every SM is busy (clock and power), as a fraction of its time."""
    slow_columns: int
    """Most columns for which the library picks a slow kernel at few rows; 0 for none."""
    slow_depth: int
    """Largest k for which it does."""
    slow: float
    """Slowdown of that kernel, as a fraction of the time."""


@dataclass(frozen=True)
class ScaledGemmCoefficients:
    """Coefficients of a float8 product that quantizes its rows (19): one tile per range of m."""

    tiles: int
    """Index of the library's list of tiles in `products.TILES`."""
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
    """Fraction of the weights read again if a large m is not a multiple of 64."""
    quantize_us: float
    quantize_share: float
    """Bandwidth share of the kernel that quantizes the rows."""
    row_ns: float
    """Its cost per row, nanoseconds."""


@dataclass(frozen=True)
class PrefillCoefficients:
    """Coefficients of fused attention with many queries, encoder or causal (19)."""

    tile_queries: int
    tile_keys: int
    slots: int
    """Tiles per SM at a time; later waves come in multiples of it."""
    head_step: int
    """Head sizes are rounded up to a multiple of it."""
    splits: int
    """1 if keys are split over otherwise idle SMs."""
    share: float
    softmax: float
    """Cost of a score's exponential, in head elements."""
    block_us: float
    """Fixed cost per block of keys."""
    tile_us: float
    whole_waves: float
    combine_us: float
    memory_share: float
    l2_share: float
    norm: float
    longest: float
    """Causal: the longest tile and the balanced sum combine as the (1 + longest)-norm."""
    launch_us: float
    late_us: float
    """Extra launch time for long sequences, times 1 - exp(-keys / late_keys)."""
    late_keys: float
    crowding: float


@dataclass(frozen=True)
class GenerationCoefficients:
    """Coefficients of fused attention with one query, over a cache (19)."""

    tile_heads: int
    tile_keys: int
    slots: int
    split_needs_groups: int
    """1 if only grouped queries (heads > kv_heads) are split over keys."""
    tile_us: float
    block_us: float
    row_us: float
    """Cost of a block of 64 keys and 128 head elements."""
    whole_waves: float
    combine_us: float
    combine_share: float
    memory_share: float
    l2_share: float
    l2_part: float
    """Fraction of L2 that a cache fills when it is half evicted."""
    l2_sharpness: float
    norm: float
    launch_us: float
    late_us: float
    group: float
    """Extra work per tile for every query head that shares a key head."""
    grouped_us: float
    """Cost of the copies that gather grouped queries of several sequences."""


@dataclass(frozen=True)
class MaskedCoefficients:
    """Coefficients of fused attention with a bias tensor added to the scores (11)."""

    tile_queries: int
    tile_keys: int
    share: float
    softmax: float
    """Cost of a score's bias and exponential, in head elements."""
    tile_us: float
    whole_waves: float
    memory_share: float
    l2_share: float
    unaligned: float
    """Extra moves of the bias if its rows are not a multiple of 8, since it is copied first."""
    norm: float
    launch_us: float


@dataclass(frozen=True)
class ExpertsCoefficients:
    """Coefficients of grouped experts (20): routing, two products, activation, weighted sum."""

    tiles: int
    """How the library chooses a tile: a constant of `products`."""
    inter_step: int
    """Inner sizes are padded to a multiple of it. Above 1 for kernels that lack some activations,
    for which a second kernel runs."""
    rate_16: float
    """TFLOP/s of one SM with tiles of 16 rows, capped at the rate with 128. Set by what the tile
    loads, so it does not scale with the peak of another GPU."""
    rate_32: float
    rate_64: float
    share_128: float
    """Share of the peak with tiles of 128 rows."""
    tile_us: float
    whole_waves: float
    unaligned_ns: float
    """Cost per tile element that is loaded separately, nanoseconds."""
    memory_share: float
    wide_memory: float
    """Slowdown of the stream of weights for tiles of more rows, as a fraction of its time."""
    l2_share: float
    l2_part: float
    """Fraction of L2 that weights fill when half of them are evicted."""
    ramp_mb: float
    norm: float
    movement_share: float
    launch_us: float
    """Includes routing."""
    fallback_movement: float
    """Bandwidth share of the second kernel's traffic between its products."""
    fallback_us: float
    fallback_tile_us: float


@dataclass(frozen=True)
class MovementCoefficients:
    """Coefficients of elementwise kernels, normalizations and copies (4)."""

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


@dataclass(frozen=True)
class Fitted:
    """Coefficients of a kernel kind in a data type.

    Attributes:
        coefficients: Of the kind's formula; for a CPU, of each contribution.
        median: Median relative error on the held-out groups.
        p90: 90th percentile of that error.
        held_out_rows: Rows behind these two errors; 0 if they are assumed.
        gpu: The GPU whose kernels were measured.
        framework: What launched them, with its version.
        extrapolated: Whether they are from another GPU, with a wider error.
        derived: What they were derived from if they were not fitted.
        assumed: Whether the two errors are assumed, not measured.
    """

    coefficients: Coefficients | Mapping[str, float]
    median: float
    p90: float
    held_out_rows: int
    training_rows: int
    gpu: str = ""
    framework: str = ""
    held_out_groups: int = 0
    extrapolated: bool = False
    derived: str = ""
    assumed: bool = False


COEFFICIENTS: Final[dict[str, type[Coefficients]]] = {
    "gemm": GemmCoefficients,
    "encoder_attention": PrefillCoefficients,
    "context_attention": PrefillCoefficients,
    "generation_attention": GenerationCoefficients,
    "masked_attention": MaskedCoefficients,
    "experts": ExpertsCoefficients,
    "movement": MovementCoefficients,
}
"""Record type per kernel kind, in the order of a profile."""

OPTIONAL: Final = ("masked_attention",)
"""Kinds that no shipped profile has; if they are missing, their times are assumed."""


def coefficients_of(kind: str, dtype: str) -> type[Coefficients]:
    """Record type of a kernel kind in a data type; float32 products use the 16-bit one."""
    if (kind, dtype) == ("gemm", "float8"):
        return ScaledGemmCoefficients
    return COEFFICIENTS[kind]
