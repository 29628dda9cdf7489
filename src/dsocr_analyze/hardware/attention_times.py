"""Kernel times of fused attention: over a prompt or an image, and over a cache."""

from __future__ import annotations

from typing import Final

import numpy as np

from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware.machine import Machine, Needs, Sizes, beside, overlapped, waves, whole

_FLASH2_STEP: Final = 32
_NARROW_HEAD: Final = 64
"""FlashAttention-2 rounds head sizes up to multiples of 32 (`head_step`), and reads twice as many
keys at a time of heads of up to 64."""
_EVEN_HEAD: Final = 16
_HOT_SECONDS: Final = 0.02
"""Of a kernel that has half of the slowdown by heat."""
_KEY_SPLITS: Final = (2, 4, 8, 16, 32)


ATTENTION_SIZES: Final = ("batch", "queries", "keys", "heads", "head_dim", "kv_heads")
"""What the formulas of attention read, in this order."""


def prefill_attention(
    size: Sizes, machine: Machine, c: records.EncoderCoefficients | records.PrefillCoefficients,
    element_bytes: float,
) -> Needs:  # fmt: skip
    """One call, with `element_bytes` per element of keys and values.

    A tile of queries, of one head or a key head's, processes the keys block by block, products and
    exponentials at a share of an SM's peak. Under a causal mask tiles stop at the diagonal.
    """
    B, Q, K, H, D, G = map(size.__getitem__, ATTENTION_SIZES)
    padded = c.head_step * np.ceil(D / c.head_step)
    causal = c if isinstance(c, records.PrefillCoefficients) else None
    packed = causal.packed_queries if causal else 0
    tile_queries = c.tile_queries / np.where(packed >= Q, H / G, 1.0)
    tile_keys = np.where((c.head_step == _FLASH2_STEP) & (D <= _NARROW_HEAD), 2, 1) * c.tile_keys
    # Where the last tile ends. Those of packed heads have few queries: their number is gradual.
    last = np.where(
        tile_queries < c.tile_queries,
        np.maximum(tile_queries, Q),
        tile_queries * whole(Q / tile_queries),
    )
    units = B * H * last / c.tile_queries
    rate = c.share * machine.flops_per_second / machine.sms
    block = 4 * c.tile_queries * tile_keys * (padded + c.softmax) / rate + c.block_us * 1e-6

    # The mean share of the keys that a tile reads, of whole tiles: more queries are more work.
    longer = 2 * np.maximum(tile_keys * whole(K / tile_keys), last)
    mean = np.minimum(1.0, (longer - last + np.maximum(tile_queries, tile_keys)) / longer)
    start = c.tile_us * 1e-6 * (1.0 if causal else (padded / 64) ** 2)
    parts = beside((1, *_KEY_SPLITS) if c.splits else (1,), max(map(np.ndim, size.values())))
    crowded = block * (1 + c.crowding * np.minimum(1.0, units * parts / machine.sms))
    part_blocks = whole(K / tile_keys / parts)
    longest = part_blocks * crowded + start
    passes = waves(units * parts, machine.sms, c.whole_waves, c.slots)
    seconds = passes * longest
    if causal:
        total = units * parts * mean / machine.sms * part_blocks * crowded + passes * start
        seconds = overlapped(total, longest, causal.longest)
    combined = 4 * B * H * Q * D * (parts + 0.5) / machine.bytes_per_second
    seconds = np.where(parts > 1, seconds + combined + c.combine_us * 1e-6, seconds).min(axis=0)
    moved = D * B * (4 * H * Q + 2 * G * K * element_bytes)
    late = c.late_us * (1 - np.exp(-K / c.late_keys))
    if isinstance(c, records.EncoderCoefficients):
        seconds = seconds * np.where(D % _EVEN_HEAD, 1 + c.uneven_head, 1.0)
        seconds = seconds * (1 + c.heat * seconds / (seconds + _HOT_SECONDS))
    seconds = overlapped(seconds, moved * machine.memory_seconds(moved, c), c.norm)
    pairs = Q * K - Q * (Q - 1) / 2 if causal else Q * K
    return seconds + (c.launch_us + late) * 1e-6, 4 * B * H * D * pairs, moved


GROUPS: Final = 1
IDLE: Final = 2
"""When a library splits the keys of a cache (`splits`), if not whenever it is faster: only for
groups of heads, as FlashAttention-2; only over SMs that are idle, as FlashAttention-3 on Ampere."""
_CACHE_SPLITS: Final = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_PART_KEYS: Final = 128
"""Fewest keys of a part."""
_SHORT_TILE: Final = 16
_TALL_TILE: Final = 64
"""Most heads of a key head in libraries' tiles of two heights. FlashAttention-2 has only the taller
one, and takes longer for each head."""
_FEW_START: Final = 0.4
_FEW_ROW: Final = 0.8
"""Start and keys of FlashInfer's decode kernel for one head per key head, by those of its prefill
kernel. The more heads share keys, the more tiles an SM holds, and the fewer keys each reads at a
time: 128 threads load 8 elements each, for every head."""
_LATE_KEYS: Final = 200.0


def generation_attention(
    size: Sizes, machine: Machine, c: records.GenerationCoefficients, element_bytes: float
) -> Needs:
    """One step over a cache, with `element_bytes` per cached element.

    A tile has the query heads of a key head, and reads its keys block by block. Keys may be split
    over SMs; a second kernel reads their parts one after another. Each sequence costs the scheduler
    its time. Memory, or L2, bounds all tiles together.
    """
    B, Q, K, H, D, G = map(size.__getitem__, ATTENTION_SIZES)
    shared, wide = H / G, D / 128
    is_few = shared <= c.few_heads
    units = B * G * np.ceil(shared / _TALL_TILE)
    moved = 2 * D * B * (G * K * element_bytes + 2 * H)
    memory = moved * machine.memory_seconds(moved, c, c.l2_part)
    row = c.row_us * wide * np.where(is_few, _FEW_ROW * shared, 1.0)
    block = (c.block_us + row) * c.tile_keys / 64 * 1e-6
    tall = shared / _SHORT_TILE if c.splits == GROUPS else shared > _SHORT_TILE
    whole_start = wide**c.tile_width * (1 + c.tall_tile * tall)
    start = c.tile_us * np.where(is_few, _FEW_START / shared**2, whole_start) * 1e-6
    scheduled = B / machine.sms * c.sequence_us * 1e-6
    most = {GROUPS: np.where(H > G, np.inf, 1.0), IDLE: machine.sms / units}.get(c.splits, np.inf)
    parts = beside((1, *_CACHE_SPLITS), max(map(np.ndim, size.values())))
    passes = waves(units * parts, machine.sms, c.whole_waves, c.slots)
    # Parts are offered whatever the number of keys, or more keys could take less time.
    fewest = np.where(parts > 1, _PART_KEYS / c.tile_keys, 1.0)
    blocks = np.maximum(fewest, whole(K / c.tile_keys / parts))
    reading = np.maximum(1.0, passes / c.slots) * blocks * block
    seconds = overlapped(scheduled + passes * start + reading, memory, c.norm)
    partial = 4 * B * H * D * (parts + 0.5) / machine.bytes_per_second
    split = seconds + (c.merge_us + parts * c.combine_us) * 1e-6 + partial
    seconds = np.where(parts > 1, np.where(parts <= most, split, np.inf), seconds).min(axis=0)
    late = c.late_us * (1 - np.exp(-K / _LATE_KEYS))
    gathered = np.where((H > G) & (G > 1) & (B > 1), c.grouped_us, 0.0)
    return seconds + (c.launch_us + late + gathered) * 1e-6, 4 * B * H * Q * K * D, moved
