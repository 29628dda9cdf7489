"""Fused attention: of encoders and prompts (causal), of decode steps, and with a bias tensor.

A decode step has one query per sequence, over its cache of keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dsocr_analyze.hardware.coefficients import (
    GenerationCoefficients,
    MaskedCoefficients,
    PrefillCoefficients,
)
from dsocr_analyze.hardware.kernel_times import (
    Floats,
    Machine,
    overlapped,
    relative_seconds,
    waves,
)

__all__ = [
    "SIZES",
    "generation_attention_seconds",
    "masked_attention_seconds",
    "masked_bytes",
    "prefill_attention_seconds",
]


SIZES: Final = ("batch", "queries", "keys", "heads", "head_dim", "kv_heads")
"""The sizes of every formula, arrays that broadcast."""

_SPLITS: Final = (2, 4, 8, 16, 32)


def prefill_attention_seconds(
    sizes: Sequence[Floats],
    machine: Machine,
    c: PrefillCoefficients,
    *,
    causal: bool,
    element_bytes: float,
) -> Floats:
    """Seconds of one call, with `element_bytes` per element of keys and values.

    A tile of queries of one head processes the keys block by block, both products and the
    exponentials at a share of an SM's peak. Under a causal mask tiles stop at the diagonal.
    """
    B, Q, K, H, D, G = sizes
    padded = c.head_step * np.ceil(D / c.head_step)
    units = B * H * np.ceil(Q / c.tile_queries)
    key_blocks = np.ceil(K / c.tile_keys)
    scores = c.tile_queries * c.tile_keys
    rate = c.share * machine.flops_per_second / machine.sms
    block = 4 * scores * (padded + c.softmax) / rate + c.block_us * 1e-6

    before = np.maximum(0.0, K - Q) / c.tile_keys
    triangle = (key_blocks - before + max(1.0, c.tile_queries / c.tile_keys)) / 2
    mean = np.minimum(key_blocks, before + triangle)
    seconds: Floats = np.asarray(np.inf)
    for parts in (1.0, *_SPLITS) if c.splits else (1.0,):
        crowded = block * (1 + c.crowding * np.minimum(1.0, units * parts / machine.sms))
        passes = waves(units * parts, machine.sms, c.whole_waves, c.slots)
        longest = np.ceil(key_blocks / parts) * crowded + c.tile_us * 1e-6
        split = passes * longest
        if causal:
            total = passes * (mean / parts * crowded + c.tile_us * 1e-6)
            split = overlapped(total, longest, c.longest)
        if parts > 1:
            combined = 4 * B * H * Q * D * (parts + 0.5) / machine.bytes_per_second
            split = split + combined + c.combine_us * 1e-6
        seconds = np.where(key_blocks >= parts, np.minimum(seconds, split), seconds)
    moved = D * B * (4 * H * Q + 2 * G * K * element_bytes)
    late = c.late_us * (1 - np.exp(-K / c.late_keys))
    streamed = moved / machine.bandwidth(moved, c)
    return overlapped(seconds, streamed, c.norm) + (c.launch_us + late) * 1e-6


# --- with a mask -----------------------------------------------------------------------------


_ALIGNED: Final = 8
"""Rows of the bias are padded to multiples of it (torch, attention.cpp: `pad_bias`)."""
_ELEMENT_BYTES: Final = 2


def masked_bytes(sizes: Sequence[Floats]) -> Floats:
    """Bytes of queries, keys, values, bias and output in 16 bits."""
    B, Q, K, H, D, G = sizes
    return _ELEMENT_BYTES * B * (D * (2 * H * Q + 2 * G * K) + H * Q * K)


def masked_attention_seconds(
    sizes: Sequence[Floats], moved: Floats, machine: Machine, c: MaskedCoefficients
) -> Floats:
    """Seconds of one call that moves so many bytes, with the bias of one value per score.

    A tile of queries of one head processes whole blocks of keys, at a share of an SM's peak.
    """
    B, Q, K, H, D, _ = sizes
    rate = c.share * machine.flops_per_second / machine.sms
    block = 4 * c.tile_queries * c.tile_keys * (D + c.softmax) / rate
    tile = np.ceil(K / c.tile_keys) * block + c.tile_us * 1e-6
    units = B * H * np.ceil(Q / c.tile_queries)
    compute = waves(units, machine.sms, c.whole_waves) * tile
    copied = np.where(K % _ALIGNED, c.unaligned * _ELEMENT_BYTES * B * H * Q * K, 0.0)
    memory = (moved + copied) / machine.bandwidth(moved, c)
    return overlapped(compute, memory, c.norm) + c.launch_us * 1e-6


# --- one query per sequence ------------------------------------------------------------------


_CACHE_SPLITS: Final = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_LATE_KEYS: Final = 200.0


def generation_attention_seconds(
    sizes: Sequence[Floats], machine: Machine, c: GenerationCoefficients, *, element_bytes: float
) -> Floats:
    """Seconds of one step, with `element_bytes` per cached element.

    A tile has the query heads of a key head, and reads its keys block by block. Keys may be split
    over SMs; a second kernel combines the parts. Memory, or L2, bounds all tiles together.
    """
    B, _, K, H, D, G = sizes
    key_blocks = np.ceil(K / c.tile_keys)
    queries_a_key = H / G
    units = B * G * np.ceil(queries_a_key / c.tile_heads)
    moved = 2 * D * B * (G * K * element_bytes + 2 * H)
    slowness = relative_seconds(moved, machine, c, c.l2_sharpness)
    memory = moved * slowness / machine.bytes_per_second
    block = (c.block_us + c.row_us * D / 128) * c.tile_keys / 64 * 1e-6
    start = c.tile_us * (1 + c.group * queries_a_key) * 1e-6
    seconds: Floats = np.asarray(np.inf)
    for parts in (1.0, *_CACHE_SPLITS):
        passes = waves(units * parts, machine.sms, c.whole_waves, c.slots)
        reading = np.maximum(1.0, passes / c.slots) * np.ceil(key_blocks / parts) * block
        split = overlapped(passes * start + reading, memory, c.norm)
        possible = key_blocks >= parts
        if parts > 1:
            partial = 4 * B * H * D * (parts + 0.5) / (c.combine_share * machine.bytes_per_second)
            split = split + c.combine_us * 1e-6 + partial
            if c.split_needs_groups:
                possible = possible & (H > G)
        seconds = np.where(possible, np.minimum(seconds, split), seconds)
    late = c.late_us * (1 - np.exp(-K / _LATE_KEYS))
    gathered = np.where((H > G) & (G > 1) & (B > 1), c.grouped_us, 0.0)
    return seconds + (c.launch_us + late + gathered) * 1e-6
