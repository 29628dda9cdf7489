"""The fitted coefficients: one typed record per kernel kind. No numpy.

Shares are fractions of a datasheet peak: of products for full tiles on a busy chip, of memory for
long streams. `_us` are microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias


@dataclass(frozen=True)
class GemmCoefficients:
    """A matrix product (20): the best of a library's tiles and split-k factors."""

    share_256x128: float
    share_128x256: float
    share_128x128: float
    share_128x64: float
    share_64x64: float
    share_64x32: float
    wave_us: float
    """Per wave of tiles."""
    split_us: float
    """Per part of k."""
    whole_waves: float
    """Weight of whole waves against fractional ones."""
    prologue_blocks: float
    """Start-up of a tile, in blocks of 64 along k."""
    partial_bytes: float
    """Fraction of partial sums that reach memory."""
    memory_share: float
    l2_share: float
    """Bandwidth relative to device memory if everything fits in L2."""
    ramp_mb: float
    """Start-up of a stream, in MB that could have moved meanwhile."""
    norm: float
    """Compute and memory combine as a (1 + norm)-norm."""
    launch_us: float
    crowding: float
    """Relative slowdown of a tile if every SM is busy (clock and power)."""
    slow_columns: int
    """Most columns with a slow kernel at few rows; 0 for none."""
    slow_depth: int
    """Largest k with it."""
    slow: float
    """Its relative slowdown."""


@dataclass(frozen=True)
class ScaledGemmCoefficients:
    """A float8 product that quantizes its rows (20): one tile per range of m."""

    tiles: int
    """Index into `kernel_times.TILES`."""
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
    """Fraction of weights read again if a large m is no multiple of 64."""
    quantize_us: float
    quantize_share: float
    """Bandwidth of the kernel that quantizes the rows."""
    row_ns: float
    """Its nanoseconds per row."""
    read_at_once: int = 1
    """Elements of a row of which it reads whole multiples."""


@dataclass(frozen=True)
class _AttentionCoefficients:
    """What fused attention with many queries has in common."""

    tile_queries: int
    tile_keys: int
    slots: int
    """Tiles per SM at a time."""
    head_step: int
    """Head sizes are rounded up to multiples of it. With 32, tiles of heads of up to 64 have twice
    as many keys, as FlashAttention-2's do."""
    splits: int
    """1 if keys are split over idle SMs."""
    share: float
    softmax: float
    """An exponential, in head elements."""
    block_us: float
    """Per block of keys."""
    tile_us: float
    """Start-up of a tile; an encoder's with heads of 64, as it grows with the square of their
    size."""
    whole_waves: float
    combine_us: float
    memory_share: float
    l2_share: float
    norm: float


@dataclass(frozen=True)
class EncoderCoefficients(_AttentionCoefficients):
    """Fused attention of every query over every key, as in encoders (20)."""

    launch_us: float
    late_us: float
    """Launch time of long sequences, times 1 - exp(-keys / late_keys)."""
    late_keys: float
    crowding: float
    uneven_head: float
    """Relative slowdown of a head size that is no multiple of 16."""
    heat: float
    """Relative slowdown of a kernel that takes long (clock and power)."""


@dataclass(frozen=True)
class PrefillCoefficients(_AttentionCoefficients):
    """Fused causal attention with many queries (20). What has no word is as an encoder's."""

    longest: float
    """Longest tile and balanced sum combine as a (1 + longest)-norm."""
    launch_us: float
    late_us: float
    late_keys: float
    crowding: float
    packed_queries: int = 0
    """Most queries for which one tile takes all heads that share a key head."""


@dataclass(frozen=True)
class GenerationCoefficients:
    """Fused attention with one query, over a cache (20)."""

    tile_keys: int
    slots: int
    splits: int
    """When the library splits keys: a constant of `kernel_times`, or 0 for whenever it is
    faster."""
    few_heads: int
    """Most heads of a key head that run FlashInfer's kernel without matrix units."""
    tile_us: float
    """Start-up of a tile with heads of 128."""
    tile_width: float
    """Power of the size of a head by which it grows."""
    block_us: float
    row_us: float
    """Per block of 64 keys and 128 head elements."""
    whole_waves: float
    merge_us: float
    """The kernel that reads the parts of the keys."""
    combine_us: float
    """Per part of the keys."""
    memory_share: float
    l2_share: float
    l2_part: float
    """Fraction of L2 that a half evicted cache fills."""
    norm: float
    launch_us: float
    late_us: float
    tall_tile: float
    """Relative slowdown of the start of a tile with more than 16 heads, or for every 16."""
    grouped_us: float
    """Copies that gather grouped queries of several sequences."""
    sequence_us: float
    """Of a sequence on one of the SMs, which share them."""


@dataclass(frozen=True)
class ExpertsCoefficients:
    """Grouped experts (20): routing, two products, activation, weighted sum."""

    tiles: int
    """The library's choice: a constant of `kernel_times`."""
    inter_step: int
    """Inner sizes are padded to multiples of it. Above 1, a second kernel runs some activations."""
    rate_16: float
    """TFLOP/s of one SM with tiles of 16 rows, at most the rate with 128. What a tile loads sets
    it, so it does not scale with another GPU's peak."""
    rate_32: float
    rate_64: float
    share_128: float
    """Of the peak, with tiles of 128 rows."""
    tile_us: float
    whole_waves: float
    unaligned_ns: float
    """Nanoseconds per element of a tile's first block that is loaded separately."""
    memory_share: float
    wide_memory: float
    """Relative slowdown with tiles of more rows, of the fastest tile where L2 cannot hold an
    expert's first product."""
    l2_share: float
    l2_part: float
    """Fraction of L2 that half evicted weights fill."""
    ramp_mb: float
    norm: float
    movement_share: float
    launch_us: float
    """With routing."""
    fallback_movement: float
    """Bandwidth of the second kernel between its products."""
    fallback_us: float
    fallback_tile_us: float


@dataclass(frozen=True)
class MovementCoefficients:
    """Elementwise kernels, normalizations and copies (7)."""

    memory_share: float
    l2_share: float
    ramp_mb: float
    launch_us: float
    l2_part: float = 0.9
    """Fraction of L2 that half evicted bytes fill."""
    row_ns: float = 1e-4
    """Nanoseconds to start the block of a row."""
    element_ns: float = 1e-4
    """Nanoseconds per element of a row that one block reads."""


Coefficients: TypeAlias = (
    GemmCoefficients
    | ScaledGemmCoefficients
    | EncoderCoefficients
    | PrefillCoefficients
    | GenerationCoefficients
    | ExpertsCoefficients
    | MovementCoefficients
)


@dataclass(frozen=True)
class Fitted:
    """Coefficients of a kernel kind in a data type.

    Attributes:
        coefficients: Of the formula; for a CPU, of each contribution.
        median: Of the relative error on the held-out groups.
        p90: 90th percentile of that error.
        held_out_rows: Rows behind these errors; 0 if they are assumed.
        gpu: Whose kernels were measured.
        framework: What launched them, with its version.
        extrapolated: Whether they are from another GPU, with a wider error.
        derived: Their origin if they were not fitted.
        assumed: Whether the errors are assumed.
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
    "encoder_attention": EncoderCoefficients,
    "context_attention": PrefillCoefficients,
    "generation_attention": GenerationCoefficients,
    "experts": ExpertsCoefficients,
    "movement": MovementCoefficients,
}
"""Record type by kernel kind, in a profile's order."""


def coefficients_of(kind: str, dtype: str) -> type[Coefficients]:
    """Record type of a kernel kind in a data type."""
    if (kind, dtype) == ("gemm", "float8"):
        return ScaledGemmCoefficients
    return COEFFICIENTS[kind]
