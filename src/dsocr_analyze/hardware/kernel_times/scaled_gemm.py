"""Matrix products in float8 with 16-bit inputs that are quantized first."""

from __future__ import annotations

from typing import Final

import numpy as np

from dsocr_analyze.hardware.kernel_times.coefficients import ScaledGemmCoefficients
from dsocr_analyze.hardware.kernel_times.machine import Floats, Machine, blocks, overlapped, waves

__all__ = ["TILES", "scaled_gemm_seconds"]

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
