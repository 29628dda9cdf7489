"""Grouped experts: routing, a grouped product up (gate fused), activation, and one down."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.hardware.kernel_times.coefficients import ExpertsCoefficients
from dsocr_analyze.hardware.kernel_times.machine import Floats, Machine, blocks, overlapped, waves

__all__ = ["ExpertSizes", "experts_seconds", "experts_touched"]

_L2_USABLE = 0.8
_ALIGNED_BYTES = 16


class ExpertSizes(NamedTuple):
    """Arrays that broadcast: `tokens` tokens of width `hidden`, `top_k` of `experts` each."""

    tokens: Floats
    hidden: Floats
    inter: Floats
    experts: Floats
    top_k: Floats
    touched: Floats
    """Experts with at least one token."""
    gated: NDArray[np.bool_]
    """Whether an expert has a gate beside its way up (SwiGLU)."""
    fallback: NDArray[np.bool_]
    """Whether the library's second kernel runs, for activations that its first does not have."""


def experts_touched(tokens: Floats, experts: Floats, top_k: Floats) -> Floats:
    """Expected number of experts with a token: E (1 - (1 - k/E)^tokens), choices independent."""
    touched: Floats = experts * -np.expm1(
        tokens * np.log1p(-np.minimum(top_k / experts, 1 - 1e-12))
    )
    return touched


def experts_seconds(
    sizes: ExpertSizes, machine: Machine, c: ExpertsCoefficients, *, element_bytes: int
) -> Floats:
    """Seconds of one layer's routed experts, from the scores to the weighted sum."""
    rows = sizes.tokens * sizes.top_k
    share = np.where(sizes.fallback, c.fallback_share, 1.0)
    bandwidth = np.where(sizes.fallback, c.fallback_memory, 1.0) * machine.bytes_per_second
    rows_each = rows / sizes.touched
    tiles = {16: c.share_16, 32: c.share_32, 64: c.share_64, 128: c.share_128}

    up_width = np.where(sizes.gated, 2, 1) * sizes.inter
    weights = sizes.touched * (up_width + sizes.inter) * sizes.hidden * element_bytes
    in_l2 = weights + 4 * rows * sizes.hidden < _L2_USABLE * machine.l2_bytes

    def product(n: Floats, k: Floats) -> Floats:
        unaligned = np.where(k * element_bytes % _ALIGNED_BYTES, 1 + c.unaligned, 1.0)
        compute: Floats | None = None
        for tile_rows, tile_share in tiles.items():
            units = sizes.touched * blocks(rows_each - 1e-9, tile_rows) * blocks(n, c.tile_columns)
            flops = 2.0 * tile_rows * c.tile_columns * 64 * (blocks(k, 64) + c.prologue_blocks)
            rate = tile_share * share * machine.flops_per_second / machine.sms
            tile = flops * unaligned / rate + c.tile_us * 1e-6
            seconds = waves(units, machine.sms, c.whole_waves) * tile
            compute = seconds if compute is None else np.minimum(compute, seconds)
        assert compute is not None
        moved = sizes.touched * n * k * element_bytes + rows * (k + n) * 2
        streamed = np.where(in_l2, c.l2_share, c.memory_share) * bandwidth
        return overlapped(compute, (moved * unaligned + c.ramp_mb * 1e6) / streamed, c.norm)

    up = product(up_width, sizes.hidden)
    down = product(sizes.hidden, sizes.inter)
    moved = 2 * rows * (3 * sizes.inter + 2 * sizes.hidden) + 4 * sizes.tokens * sizes.hidden
    routing = c.launch_us + c.expert_us * sizes.experts
    second = c.fallback_us + c.fallback_expert_us * sizes.touched
    fixed = (routing + np.where(sizes.fallback, second, 0.0)) * 1e-6
    total: Floats = up + down + moved / (c.movement_share * machine.bytes_per_second) + fixed
    return total
