"""Fused attention with a bias tensor added to the scores, which no flash kernel supports."""

from __future__ import annotations

from typing import Final

import numpy as np

from dsocr_analyze.hardware.kernel_times.coefficients import MaskedCoefficients
from dsocr_analyze.hardware.kernel_times.machine import Floats, Machine, blocks, overlapped, waves
from dsocr_analyze.hardware.kernel_times.prefill_attention import AttentionSizes

__all__ = ["masked_attention_seconds", "masked_bytes"]

_ALIGNED: Final = 8
"""A row of the bias must be a multiple of this many elements (torch, attention.cpp: `pad_bias`)."""
_ELEMENT_BYTES: Final = 2


def masked_bytes(sizes: AttentionSizes) -> Floats:
    """Bytes of queries, keys, values, bias and output in 16 bits."""
    B, Q, K, H, D, G = sizes
    elements: Floats = B * (D * (2 * H * Q + 2 * G * K) + H * Q * K)
    return _ELEMENT_BYTES * elements


def masked_attention_seconds(
    sizes: AttentionSizes, moved: Floats, machine: Machine, c: MaskedCoefficients
) -> Floats:
    """Seconds of one call.

    A tile of queries of one head processes whole blocks of keys, at a share of an SM's peak; the
    bias, one value per score, is read from memory.

    Args:
        sizes: Arrays that broadcast.
        moved: Bytes read and written, including the bias.
        machine: The chip.
        c: Its coefficients.
    """
    B, Q, K, H, D, _ = sizes
    rate = c.share * machine.flops_per_second / machine.sms
    block = 4 * c.tile_queries * c.tile_keys * (D + c.softmax) / rate
    tile = blocks(K, c.tile_keys) * block + c.tile_us * 1e-6
    units = B * H * blocks(Q, c.tile_queries)
    compute = waves(units, machine.sms, c.whole_waves) * tile
    copied = np.where(K % _ALIGNED, c.unaligned * _ELEMENT_BYTES * B * H * Q * K, 0.0)
    in_l2 = machine.in_l2(moved)
    bandwidth = np.where(in_l2, c.l2_share, c.memory_share) * machine.bytes_per_second
    memory = (moved + copied) / bandwidth
    total: Floats = overlapped(compute, memory, c.norm) + c.launch_us * 1e-6
    return total
