"""Fused attention with many queries: encoders (every key) and prompts (causal)."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dsocr_analyze.hardware.kernel_times.coefficients import PrefillCoefficients
from dsocr_analyze.hardware.kernel_times.machine import Floats, Machine, blocks, overlapped, waves

__all__ = ["AttentionSizes", "prefill_attention_seconds"]

_SPLITS: Final = (2, 4, 8, 16, 32)


class AttentionSizes(NamedTuple):
    """Arrays that broadcast: queries `[batch, heads, queries, head_dim]` over `keys` keys."""

    batch: Floats
    queries: Floats
    keys: Floats
    heads: Floats
    head_dim: Floats
    kv_heads: Floats


def prefill_attention_seconds(
    sizes: AttentionSizes,
    machine: Machine,
    c: PrefillCoefficients,
    *,
    causal: bool,
    element_bytes: float,
) -> Floats:
    """Seconds of one call.

    A tile of queries of one head processes the keys block by block, with both products and the
    exponentials at a share of an SM's peak. Under a causal mask tiles stop at the diagonal. Queries
    and outputs have two bytes per element, keys and values `element_bytes`.
    """
    B, Q, K, H, D, G = sizes
    padded = c.head_step * blocks(D, c.head_step)
    units = B * H * blocks(Q, c.tile_queries)
    key_blocks = blocks(K, c.tile_keys)
    scores = c.tile_queries * c.tile_keys
    rate = c.share * machine.flops_per_second / machine.sms
    block = 4 * scores * (padded + c.softmax) / rate + c.block_us * 1e-6

    def split_over(parts: Floats | float) -> Floats:
        crowded = block * (1 + c.crowding * np.minimum(1.0, units * parts / machine.sms))
        longest = blocks(key_blocks, 1) if np.isscalar(parts) and parts == 1 else None
        per_tile = longest if longest is not None else np.ceil(key_blocks / parts)
        passes = waves(units * parts, machine.sms, c.whole_waves, c.slots)
        if not causal:
            return passes * (per_tile * crowded + c.tile_us * 1e-6)
        before = np.maximum(0.0, K - Q) / c.tile_keys
        triangle = (key_blocks - before + max(1.0, c.tile_queries / c.tile_keys)) / 2
        mean = np.minimum(key_blocks, before + triangle)
        total = passes * (mean / parts * crowded + c.tile_us * 1e-6)
        return overlapped(total, per_tile * crowded + c.tile_us * 1e-6, c.longest)

    seconds = split_over(1.0)
    if c.splits:
        for parts in _SPLITS:
            combined = 4 * B * H * Q * D * (parts + 0.5) / machine.bytes_per_second
            split = split_over(float(parts)) + combined + c.combine_us * 1e-6
            seconds = np.where(key_blocks >= parts, np.minimum(seconds, split), seconds)
    moved = D * B * (4 * H * Q + 2 * G * K * element_bytes)
    in_l2 = machine.in_l2(moved)
    bandwidth = np.where(in_l2, c.l2_share, c.memory_share) * machine.bytes_per_second
    late = c.late_us * (1 - np.exp(-K / c.late_keys))
    total: Floats = overlapped(seconds, moved / bandwidth, c.norm) + (c.launch_us + late) * 1e-6
    return total
