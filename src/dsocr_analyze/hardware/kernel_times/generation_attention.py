"""Fused attention with one query per sequence, over its cache of keys and values."""

from __future__ import annotations

from typing import Final

import numpy as np

from dsocr_analyze.hardware.kernel_times.coefficients import GenerationCoefficients
from dsocr_analyze.hardware.kernel_times.machine import Floats, Machine, blocks, overlapped, waves
from dsocr_analyze.hardware.kernel_times.prefill_attention import AttentionSizes

__all__ = ["generation_attention_seconds"]

_SPLITS: Final = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_LATE_KEYS: Final = 200.0


def generation_attention_seconds(
    sizes: AttentionSizes, machine: Machine, c: GenerationCoefficients, *, element_bytes: float
) -> Floats:
    """Seconds of one step.

    A tile has the query heads that share one key head of one sequence. After its start-up it reads
    its keys block by block. Keys may be split over SMs; a second kernel then combines the parts.
    All tiles together are bound by memory, or by L2 for the part of the cache that stays in it.
    """
    B, _, K, H, D, G = sizes
    key_blocks = blocks(K, c.tile_keys)
    queries_a_key = H / G
    units = B * G * blocks(queries_a_key, c.tile_heads)
    moved = 2 * D * B * (G * K * element_bytes + 2 * H)
    if machine.l2_bytes:
        filled = np.log(moved / (machine.l2_bytes * c.l2_part)) * c.l2_sharpness
        hit = 1 / (1 + np.exp(np.clip(filled, -50, 50)))
    else:
        hit = np.zeros_like(moved)
    memory = moved * (hit / c.l2_share + (1 - hit) / c.memory_share) / machine.bytes_per_second
    block = (c.block_us + c.row_us * D / 128) * c.tile_keys / 64 * 1e-6
    start = c.tile_us * (1 + c.group * queries_a_key) * 1e-6

    def split_over(parts: float) -> Floats:
        passes = waves(units * parts, machine.sms, c.whole_waves, c.slots)
        reading = np.maximum(1.0, passes / c.slots) * np.ceil(key_blocks / parts) * block
        return overlapped(passes * start + reading, memory, c.norm)

    seconds = split_over(1.0)
    for parts in _SPLITS:
        possible = key_blocks >= parts
        if c.split_needs_groups:
            possible = possible & (H > G)
        partial = 4 * B * H * D * (parts + 0.5) / (c.combine_share * machine.bytes_per_second)
        split = split_over(float(parts)) + c.combine_us * 1e-6 + partial
        seconds = np.where(possible, np.minimum(seconds, split), seconds)
    late = c.late_us * (1 - np.exp(-K / _LATE_KEYS))
    gathered = np.where((H > G) & (G > 1) & (B > 1), c.grouped_us, 0.0)
    total: Floats = seconds + (c.launch_us + late + gathered) * 1e-6
    return total
