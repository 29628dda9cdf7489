"""Matrix products: single ones, those in float8 with quantized inputs, and grouped experts."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware.kernel_times import (
    Floats,
    Machine,
    overlapped,
    relative_seconds,
    waves,
)

__all__ = [
    "BEST_64",
    "BEST_128",
    "BY_EXPERTS",
    "BY_TOKENS",
    "TILES",
    "ExpertSizes",
    "experts_seconds",
    "gemm_seconds",
    "scaled_gemm_seconds",
]

_TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 64), (64, 32))
_SPLITS: Final = (1, 2, 4, 8)
_FEW_ROWS: Final = 8
_NARROW: Final = 512
_PARTIAL_BYTES: Final = 8
"""Of a partial sum, written and read."""


def gemm_seconds(
    m: Floats,
    n: Floats,
    k: Floats,
    weight_bytes: float,
    machine: Machine,
    c: records.GemmCoefficients,
    *,
    batch: Floats | float = 1.0,
    activation_bytes: float = 2.0,
) -> Floats:
    """Seconds of one kernel with `batch` products.

    The library picks the fastest of its tiles and split-k factors; a tile runs at its share of an
    SM's peak. Memory streams at its share of the bandwidth after a ramp. The two overlap. For few
    rows and medium-sized matrices libraries pick a slow kernel. A weight has `weight_bytes`, an
    input or output `activation_bytes`.
    """
    tiles = dict(zip(_TILES, (
        c.share_256x128, c.share_128x256, c.share_128x128,
        c.share_128x64, c.share_64x64, c.share_64x32,
    ), strict=True))  # fmt: skip
    partial = c.partial_bytes * _PARTIAL_BYTES * batch * m * n / machine.bytes_per_second
    compute = np.full(np.broadcast_shapes(m.shape, n.shape, k.shape, np.shape(batch)), np.inf)
    for (rows, columns), share in tiles.items():
        count = batch * np.ceil(m / rows) * np.ceil(n / columns)
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
    memory = (moved + c.ramp_mb * 1e6) / machine.bandwidth(moved, c)
    seconds = overlapped(compute, memory, c.norm) + c.launch_us * 1e-6
    is_slow = (m <= _FEW_ROWS) & (np.minimum(n, k) > _NARROW)
    is_slow = is_slow & (n <= c.slow_columns) & (k <= c.slow_depth)
    return np.where(is_slow, (1 + c.slow) * seconds, seconds)


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
"""Each library's tiles for m up to 16, 64, 128, 256 and above."""

_QUANTIZED_BYTES: Final = 3
"""Per element: read in 16 bits, written in 8."""


def scaled_gemm_seconds(
    m: Floats, n: Floats, k: Floats, machine: Machine, c: records.ScaledGemmCoefficients
) -> Floats:
    """Seconds of the kernel that quantizes the rows and of one product `[m, k] x [k, n]`.

    Libraries choose its tile by m alone and do not split k. Outputs have two bytes per element.
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
    memory = (moved + c.ramp_mb * 1e6) / machine.bandwidth(moved, c)
    seconds = overlapped(compute, memory, c.norm) + (c.launch_us + c.quantize_us) * 1e-6
    seconds = seconds + m * c.row_ns * 1e-9
    again = np.where((m > 256) & (np.ceil(m / 64) * 64 > m), c.ragged * n * k, 0.0)
    quantized = _QUANTIZED_BYTES * m * k / c.quantize_share
    return seconds + (again + quantized) / machine.bytes_per_second


# --- experts ---------------------------------------------------------------------------------


BEST_64: Final = 0
BEST_128: Final = 1
BY_TOKENS: Final = 2
BY_EXPERTS: Final = 3
"""How a library chooses its tile (`tiles`): the fastest with 64 or with 128 columns; by the tokens
(vLLM's Triton kernels); by whether there are more tokens than experts (SGLang's, and vLLM's before
0.17)."""

_BETWEEN: Final = 192
"""Rows of a tile that runs at the rate of 128."""
_WEIGHTS_SHARPNESS: Final = 16
_ACTIVATIONS_SHARPNESS: Final = 4
"""How sharply L2 hits drop off, for weights and for activations."""
_ALIGNED: Final = 16
"""Triton reads rows of other lengths element by element."""
_SECOND_TILE: Final = 128
_ACTIVATION_BYTES: Final = 2


class ExpertSizes(NamedTuple):
    """`tokens` tokens of width `hidden`, each to `top_k` of `experts`; arrays that broadcast."""

    tokens: Floats
    hidden: Floats
    inter: Floats
    experts: Floats
    top_k: Floats
    touched: Floats
    """Experts with at least one token."""
    gated: NDArray[np.bool_] | bool
    """Whether an expert has a gate (SwiGLU)."""
    fallback: NDArray[np.bool_] | bool
    """Whether the activation needs a second kernel."""


def experts_seconds(
    sizes: ExpertSizes, machine: Machine, c: records.ExpertsCoefficients, *, weight_bytes: float
) -> Floats:
    """Seconds of one layer's routed experts, from the scores to the weighted sum.

    Both products (the gate fused with the first) run for all experts together, in waves of tiles,
    of which an expert's rows take whole ones; weights of experts with a token are streamed once.
    """
    second = sizes.fallback & (c.inter_step > 1)
    inter = np.where(second, sizes.inter, c.inter_step * np.ceil(sizes.inter / c.inter_step))
    rows = sizes.tokens * sizes.top_k
    up_width = np.where(sizes.gated, 2, 1) * inter
    weights = sizes.touched * (up_width + inter) * sizes.hidden * weight_bytes
    activations = rows * (2 * sizes.hidden + 3 * inter) * _ACTIVATION_BYTES
    byte_seconds = 1 / machine.bytes_per_second
    of_weights = byte_seconds * relative_seconds(weights, machine, c, _WEIGHTS_SHARPNESS)
    of_activations = byte_seconds * relative_seconds(
        activations, machine, c, _ACTIVATIONS_SHARPNESS
    )
    tiling = _tiling(sizes, rows / sizes.touched, c)
    slower = np.where(tiling[3] | second, 1.0, 1 + c.wide_memory)
    both: Floats | float = 0.0
    for n, k in ((up_width, sizes.hidden), (sizes.hidden, inter)):
        compute = _products(sizes.touched, rows, tiling, (n, k), machine, c)
        if np.any(second):
            compute = np.where(second, _second_kernel(sizes, rows, n, k, machine, c), compute)
        streamed = sizes.touched * n * k * weight_bytes + c.ramp_mb * 1e6
        moved = rows * (k + n) * _ACTIVATION_BYTES
        memory = slower * (streamed * of_weights + moved * of_activations)
        both = both + overlapped(compute, memory, c.norm)
    moved = 2 * rows * (3 * inter + 2 * sizes.hidden) + 4 * sizes.tokens * sizes.hidden
    share = np.where(second, c.fallback_movement, c.movement_share)
    launch = c.launch_us + np.where(second, c.fallback_us, 0.0)
    return both + moved * byte_seconds / share + launch * 1e-6


_Tiling: TypeAlias = tuple[Floats | None, Floats, Floats, NDArray[np.bool_]]
"""The chosen tile: its rows (None for the fastest), its columns, the inner elements that it
processes at a time, and whether weights stream at full speed, as for tiles of few rows."""


def _tiling(sizes: ExpertSizes, rows_each: Floats, c: records.ExpertsCoefficients) -> _Tiling:
    """The library's choice."""
    if c.tiles == BY_TOKENS:
        bounds = [sizes.tokens <= 32, sizes.tokens <= 96, sizes.tokens <= 512]
        narrow = sizes.tokens <= 64
        rows: Floats = np.select(bounds, [16.0, 32.0, 64.0], 128.0)
        return rows, np.where(narrow, 64.0, 128.0), np.where(narrow, 128.0, 64.0), narrow
    if c.tiles == BY_EXPERTS:
        narrow = sizes.tokens <= sizes.experts
        rows = np.where(narrow, 16.0, 64.0)
        return rows, np.where(narrow, 32.0, 64.0), np.where(narrow, 64.0, 32.0), narrow
    columns = np.asarray(64.0 if c.tiles == BEST_64 else 128.0)
    return None, columns, np.asarray(64.0), rows_each <= 8


def _products(
    touched: Floats, rows: Floats, tiling: _Tiling, nk: tuple[Floats, Floats],
    machine: Machine, c: records.ExpertsCoefficients,
) -> Floats:  # fmt: skip
    """Compute seconds of a grouped product."""
    (n, k), (chosen, columns, step, _) = nk, tiling
    limits = {16: c.rate_16, 32: c.rate_32, 64: c.rate_64, 128: np.inf}
    if chosen is None:
        limits[_BETWEEN] = np.inf
    full = c.share_128 * machine.flops_per_second / machine.sms
    padded = step * np.ceil(k / step)
    is_chosen: list[NDArray[np.bool_]] = []
    every: list[Floats] = []
    for tile_rows, limit in limits.items():
        rate = min(full, 1e12 * limit)
        units = touched * _row_tiles(rows / touched, tile_rows) * np.ceil(n / columns)
        tile = 2.0 * tile_rows * columns * padded / rate + c.tile_us * 1e-6
        if chosen is not None:
            loaded = (tile_rows + columns) * padded
            tile = tile + np.where(k % _ALIGNED, c.unaligned_ns * 1e-9 * loaded, 0.0)
            is_chosen.append(chosen == tile_rows)
        every.append(waves(units, machine.sms, c.whole_waves) * tile)
    found: Floats = np.minimum.reduce(every) if chosen is None else np.select(is_chosen, every)
    return found


def _second_kernel(
    sizes: ExpertSizes, rows: Floats, n: Floats, k: Floats, machine: Machine,
    c: records.ExpertsCoefficients,
) -> Floats:  # fmt: skip
    """Like `_products`, for the kernel that has every activation."""
    units = sizes.touched * _row_tiles(rows / sizes.touched, _SECOND_TILE)
    rate = c.share_128 * machine.flops_per_second / machine.sms
    tile = 2.0 * _SECOND_TILE**2 * 64 * np.ceil(k / 64) / rate + c.fallback_tile_us * 1e-6
    return waves(units * np.ceil(n / _SECOND_TILE), machine.sms, c.whole_waves) * tile


def _row_tiles(rows_each: Floats, tile_rows: int) -> Floats:
    """Tiles of rows per expert: the mean over those with and without one more row."""
    low = np.floor(rows_each + 1e-9)
    more = rows_each - low
    mixed: Floats = (1 - more) * np.ceil(low / tile_rows) + more * np.ceil((low + 1) / tile_rows)
    return mixed
