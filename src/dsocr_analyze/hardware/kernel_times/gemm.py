"""Matrix products: `[m, k] x [k, n]`; in float8, the 16-bit inputs are quantized first."""

from __future__ import annotations

from typing import Final

import numpy as np

from dsocr_analyze.hardware.kernel_times.coefficients import (
    GemmCoefficients,
    ScaledGemmCoefficients,
)
from dsocr_analyze.hardware.kernel_times.machine import Floats, Machine, blocks, overlapped, waves

__all__ = ["TILES", "gemm_seconds", "scaled_gemm_seconds"]


_TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 64), (64, 32))
_SPLITS: Final = (1, 2, 4, 8)
_FEW_ROWS: Final = 8
_NARROW: Final = 512
_PARTIAL_BYTES: Final = 8
"""A partial sum in fp32, written and read."""


def gemm_seconds(
    m: Floats,
    n: Floats,
    k: Floats,
    weight_bytes: float,
    machine: Machine,
    c: GemmCoefficients,
    *,
    batch: Floats | float = 1.0,
    activation_bytes: float = 2.0,
) -> Floats:
    """Seconds of one kernel with `batch` products.

    The library picks the fastest of its tiles and split-k factors. Tiles of one wave run in
    parallel, each at its share of an SM's peak; waves run one after the other. Memory streams at
    its share of the bandwidth after a ramp. The two overlap, and the launch is added. For few rows
    and medium-sized matrices the library is known to pick a slow kernel.

    Args:
        m: Rows.
        n: Columns.
        k: Inner size; all three broadcast.
        weight_bytes: Bytes per element of the `[k, n]` weights.
        machine: The chip.
        c: Its coefficients.
        batch: Number of products, each with its own inputs.
        activation_bytes: Bytes per element of inputs and outputs.
    """
    tiles = dict(zip(_TILES, (
        c.share_256x128, c.share_128x256, c.share_128x128,
        c.share_128x64, c.share_64x64, c.share_64x32,
    ), strict=True))  # fmt: skip
    partial = c.partial_bytes * _PARTIAL_BYTES * batch * m * n / machine.bytes_per_second
    compute = np.full(np.broadcast_shapes(m.shape, n.shape, k.shape, np.shape(batch)), np.inf)
    for (rows, columns), share in tiles.items():
        count = batch * blocks(m, rows) * blocks(n, columns)
        rate = 2.0 * rows * columns * machine.sms / (share * machine.flops_per_second)
        for split in _SPLITS:
            units = count * split
            crowded = 1 + c.crowding * np.minimum(1.0, units / machine.sms)
            tile = rate * crowded * (k / split + 64 * c.prologue_blocks) + c.wave_us * 1e-6
            seconds = waves(units, machine.sms, c.whole_waves) * tile
            if split > 1:
                seconds = seconds + split * (c.split_us * 1e-6 + partial)
            compute = np.minimum(compute, seconds)
    moved = batch * (n * k * weight_bytes + (m * k + m * n) * activation_bytes)
    in_l2 = machine.in_l2(moved)
    bandwidth = np.where(in_l2, c.l2_share, c.memory_share) * machine.bytes_per_second
    memory = (moved + c.ramp_mb * 1e6) / bandwidth
    seconds = overlapped(compute, memory, c.norm) + c.launch_us * 1e-6
    is_slow = (m <= _FEW_ROWS) & (np.minimum(n, k) > _NARROW)
    is_slow = is_slow & (n <= c.slow_columns) & (k <= c.slow_depth)
    slowed: Floats = np.where(is_slow, (1 + c.slow) * seconds, seconds)
    return slowed


# --- float8 ----------------------------------------------------------------------------------


TILES: Final = (
    ((64, 64), (64, 64), (64, 128), (128, 128), (128, 128)),
    ((16, 64), (64, 64), (64, 128), (128, 128), (256, 128)),
    ((128, 32), (128, 64), (128, 128), (128, 128), (256, 128)),
    ((64, 64), (64, 64), (64, 128), (128, 128), (256, 128)),
    ((64, 128), (64, 128), (64, 128), (128, 128), (128, 128)),
    ((16, 64), (64, 64), (64, 128), (64, 128), (128, 128)),
    ((16, 64), (32, 64), (64, 128), (128, 64), (128, 128)),
    ((16, 128), (32, 64), (64, 64), (128, 64), (128, 128)),
)
"""Tiles of each library for m up to 16, 64, 128, 256 and above."""

_QUANTIZED_BYTES: Final = 3
"""Bytes per element: read in 16 bits, written in 8."""


def scaled_gemm_seconds(
    m: Floats, n: Floats, k: Floats, machine: Machine, c: ScaledGemmCoefficients
) -> Floats:
    """Seconds of the kernel that quantizes the rows and of one product.

    Libraries choose the tile of these kernels by m alone and do not split k. Arguments as for
    `gemm_seconds`; weights have one byte per element, outputs two.
    """
    tiles = TILES[c.tiles]
    shares = (c.share_16, c.share_64, c.share_128, c.share_256, c.share_more)
    at_most = [m <= 16, m <= 64, m <= 128, m <= 256]

    def by_rows(values: list[float]) -> Floats:
        return np.select(at_most, values[:4], values[4])

    rows = by_rows([float(tile[0]) for tile in tiles])
    columns = by_rows([float(tile[1]) for tile in tiles])
    units = np.ceil(m / rows) * np.ceil(n / columns)
    crowded = 1 + c.crowding * np.minimum(1.0, units / machine.sms)
    rate = by_rows([*shares]) * machine.flops_per_second / machine.sms
    flops = 2.0 * rows * columns * (k + 64 * c.prologue_blocks)
    compute = waves(units, machine.sms, c.whole_waves) * (flops * crowded / rate + c.wave_us * 1e-6)
    moved = m * k + n * k + 2 * m * n
    in_l2 = machine.in_l2(moved)
    bandwidth = np.where(in_l2, c.l2_share, c.memory_share) * machine.bytes_per_second
    memory = (moved + c.ramp_mb * 1e6) / bandwidth
    seconds = overlapped(compute, memory, c.norm) + (c.launch_us + c.quantize_us) * 1e-6
    seconds = seconds + m * c.row_ns * 1e-9
    again = np.where((m > 256) & (blocks(m, 64) * 64 > m), c.ragged * n * k, 0.0)
    quantized = _QUANTIZED_BYTES * m * k / c.quantize_share
    return seconds + (again + quantized) / machine.bytes_per_second
