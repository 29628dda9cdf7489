"""Kernel times: the chip as formulas see it, and the formula of every kernel kind.

The record of its coefficients chooses a kind's formula. Sizes are arrays that broadcast, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware.devices import Gpu

__all__ = [
    "BEST_64",
    "BEST_128",
    "BY_EXPERTS",
    "BY_TOKENS",
    "TILES",
    "Floats",
    "Machine",
    "formula_seconds",
    "masked_bytes",
]

Floats: TypeAlias = NDArray[np.float64]
Sizes: TypeAlias = Mapping[str, Floats]

_L2_USABLE: Final = 0.8
"""Fraction of L2 that bytes may fill to be there the next time."""


class Machine(NamedTuple):
    """A chip in one data type."""

    flops_per_second: float
    """Dense matrix peak."""
    bytes_per_second: float
    """Of device memory."""
    sms: int
    l2_bytes: float
    """0 to read everything from device memory."""

    @classmethod
    def of(cls, gpu: Gpu, dtype: str, *, cold: bool = False) -> Self:
        """A GPU; if `cold`, without its L2."""
        l2_bytes = 0.0 if cold else gpu.l2_mb * 1e6
        return cls(gpu.tflops(dtype) * 1e12, gpu.bandwidth_gb_s * 1e9, gpu.sms, l2_bytes)

    def in_l2(self, nbytes: Floats | NDArray[np.int64] | float) -> NDArray[np.bool_]:
        """Whether this many bytes may still be in L2."""
        return np.asarray(nbytes) < _L2_USABLE * self.l2_bytes

    def bandwidth(self, moved: Floats, c: records.Coefficients) -> Floats:
        """Bytes per second of a kernel that moves so many."""
        share = np.where(self.in_l2(moved), c.l2_share, c.memory_share)
        return share * self.bytes_per_second


def _waves(units: Floats, sms: int, whole: float, slots: int = 1) -> Floats:
    """Waves in which the SMs process `units` of work, at least one.

    The mean of whole waves, weighted by `whole`, and fractional ones. With several `slots` per SM,
    later waves come in multiples of them: an SM that is done refills them all.
    """
    share = units / sms
    rounded = np.ceil(share)
    if slots > 1:
        rounded = np.where(share <= slots, rounded, slots * np.ceil(share / slots))
    mixed: Floats = np.maximum(1.0, (whole * rounded + share) / (1 + whole))
    return mixed


def _overlapped(first: Floats, second: Floats, norm: float) -> Floats:
    """The (1 + norm)-norm of two times: a little above their maximum if they are alike."""
    power = 1 + norm
    longer: Floats = np.maximum(first, second)
    return longer * (1 + (np.minimum(first, second) / longer) ** power) ** (1 / power)


def _relative_seconds(
    moved: Floats,
    machine: Machine,
    c: records.ExpertsCoefficients | records.GenerationCoefficients,
    sharpness: float,
) -> Floats:
    """Seconds per byte, relative to the bandwidth, if the last run moved the same bytes.

    The more L2 they fill, the fewer of them are still there; `sharpness` is how fast that drops.
    """
    hit: Floats = np.zeros_like(moved)
    if machine.l2_bytes:
        filled = np.log(moved / (machine.l2_bytes * c.l2_part)) * sharpness
        hit = 1 / (1 + np.exp(np.clip(filled, -50, 50)))
    return hit / c.l2_share + (1 - hit) / c.memory_share


# --- formulas ---------------------------------------------------------------------------------


def formula_seconds(
    c: records.Coefficients, size: Sizes, machine: Machine, element_bytes: float, *, causal: bool
) -> Floats:
    """Seconds of kernels with these sizes, and bytes per weight or cached element.

    `batch` is 1 by default, and `moved` by masked attention is in 16 bits; experts are gated, and
    need no second kernel.
    """
    match c:
        case records.GemmCoefficients():
            return _gemm(size, machine, c, element_bytes)
        case records.ScaledGemmCoefficients():
            return _scaled_gemm(size, machine, c)
        case records.ExpertsCoefficients():
            return _experts(size, machine, c, element_bytes)
        case records.MaskedCoefficients():
            return _masked_attention(size, machine, c)
        case records.PrefillCoefficients():
            return _prefill_attention(size, machine, c, element_bytes, causal=causal)
        case records.GenerationCoefficients():
            return _generation_attention(size, machine, c, element_bytes)
        case records.MovementCoefficients():
            return _streamed(size["moved"], machine, c) + c.launch_us * 1e-6


def _streamed(
    moved: Floats, machine: Machine,
    c: records.GemmCoefficients | records.ScaledGemmCoefficients | records.MovementCoefficients,
) -> Floats:  # fmt: skip
    """Seconds of so many bytes, after a ramp."""
    return (moved + c.ramp_mb * 1e6) / machine.bandwidth(moved, c)


# --- products --------------------------------------------------------------------------------

_TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 64), (64, 32))
_SPLITS: Final = (1, 2, 4, 8)
_FEW_ROWS: Final = 8
_NARROW: Final = 512
_PARTIAL_BYTES: Final = 8
"""Of a partial sum, written and read."""


def _gemm(
    size: Sizes, machine: Machine, c: records.GemmCoefficients, weight_bytes: float
) -> Floats:
    """One kernel with `batch` products.

    The library picks the fastest of its tiles and split-k factors; a tile runs at its share of an
    SM's peak, while memory streams. For few rows and medium-sized matrices libraries pick a slow
    kernel.
    """
    m, n, k, batch = size["m"], size["n"], size["k"], size.get("batch", 1.0)
    shares = (
        c.share_256x128, c.share_128x256, c.share_128x128,
        c.share_128x64, c.share_64x64, c.share_64x32,
    )  # fmt: skip
    partial = c.partial_bytes * _PARTIAL_BYTES * batch * m * n / machine.bytes_per_second
    compute = np.full(np.broadcast_shapes(m.shape, n.shape, k.shape, np.shape(batch)), np.inf)
    for (rows, columns), share in zip(_TILES, shares, strict=True):
        count = batch * np.ceil(m / rows) * np.ceil(n / columns)
        rate = 2.0 * rows * columns * machine.sms / (share * machine.flops_per_second)
        for split in _SPLITS:
            units = count * split
            crowded = 1 + c.crowding * np.minimum(1.0, units / machine.sms)
            tile = rate * crowded * (k / split + 64 * c.prologue_blocks) + c.wave_us * 1e-6
            seconds = _waves(units, machine.sms, c.whole_waves) * tile
            if split > 1:
                seconds = seconds + split * (c.split_us * 1e-6 + partial)
            compute = np.minimum(compute, seconds)
    moved = batch * (n * k * weight_bytes + (m * k + m * n) * max(2, weight_bytes))
    memory = _streamed(moved, machine, c)
    seconds = _overlapped(compute, memory, c.norm) + c.launch_us * 1e-6
    is_slow = (m <= _FEW_ROWS) & (np.minimum(n, k) > _NARROW)
    is_slow = is_slow & (n <= c.slow_columns) & (k <= c.slow_depth)
    return np.where(is_slow, (1 + c.slow) * seconds, seconds)


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


def _scaled_gemm(size: Sizes, machine: Machine, c: records.ScaledGemmCoefficients) -> Floats:
    """The kernel that quantizes the rows, and one product in float8.

    Libraries choose its tile by m alone and do not split k. Outputs have two bytes per element.
    """
    m, n, k = size["m"], size["n"], size["k"]
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
    compute = _waves(units, machine.sms, c.whole_waves) * (
        flops * crowded / rate + c.wave_us * 1e-6
    )
    moved = m * k + n * k + 2 * m * n
    memory = _streamed(moved, machine, c)
    seconds = _overlapped(compute, memory, c.norm) + (c.launch_us + c.quantize_us) * 1e-6
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


def _experts(
    size: Sizes, machine: Machine, c: records.ExpertsCoefficients, weight_bytes: float
) -> Floats:
    """One layer's routed experts, from the scores to the weighted sum.

    Each of `tokens` goes to `top_k` of the `experts`, of which `touched` have a token. Both
    products (the gate fused with the first) run for all experts together, in waves of tiles, of
    which an expert's rows take whole ones; weights of touched experts are streamed once. If
    `fallback`, the activation needs a second kernel.
    """
    tokens, hidden, touched, inter = (
        size[name] for name in ("tokens", "hidden", "touched", "inter")
    )
    second = np.asarray(size.get("fallback", 0) > 0) & (c.inter_step > 1)
    inter = np.where(second, inter, c.inter_step * np.ceil(inter / c.inter_step))
    rows = tokens * size["top_k"]
    up_width = np.where(size.get("gated", 1) > 0, 2, 1) * inter
    weights = touched * (up_width + inter) * hidden * weight_bytes
    activations = rows * (2 * hidden + 3 * inter) * _ACTIVATION_BYTES
    byte_seconds = 1 / machine.bytes_per_second
    of_weights = byte_seconds * _relative_seconds(weights, machine, c, _WEIGHTS_SHARPNESS)
    of_activations = byte_seconds * _relative_seconds(
        activations, machine, c, _ACTIVATIONS_SHARPNESS
    )
    tiling = _tiling(tokens, size["experts"], rows / touched, c)
    slower = np.where(tiling[3] | second, 1.0, 1 + c.wide_memory)
    both: Floats | float = 0.0
    for n, k in ((up_width, hidden), (hidden, inter)):
        compute = _products(touched, rows, tiling, (n, k), machine, c)
        if np.any(second):
            compute = np.where(second, _second_kernel(touched, rows, (n, k), machine, c), compute)
        streamed = touched * n * k * weight_bytes + c.ramp_mb * 1e6
        moved = rows * (k + n) * _ACTIVATION_BYTES
        memory = slower * (streamed * of_weights + moved * of_activations)
        both = both + _overlapped(compute, memory, c.norm)
    moved = 2 * rows * (3 * inter + 2 * hidden) + 4 * tokens * hidden
    share = np.where(second, c.fallback_movement, c.movement_share)
    launch = c.launch_us + np.where(second, c.fallback_us, 0.0)
    return both + moved * byte_seconds / share + launch * 1e-6


_Tiling: TypeAlias = tuple[Floats | None, Floats, Floats, NDArray[np.bool_]]
"""The chosen tile: its rows (None for the fastest), its columns, the inner elements that it
processes at a time, and whether weights stream at full speed, as for tiles of few rows."""


def _tiling(
    tokens: Floats, experts: Floats, rows_each: Floats, c: records.ExpertsCoefficients
) -> _Tiling:
    """The library's choice."""
    if c.tiles == BY_TOKENS:
        bounds = [tokens <= 32, tokens <= 96, tokens <= 512]
        narrow = tokens <= 64
        rows: Floats = np.select(bounds, [16.0, 32.0, 64.0], 128.0)
        return rows, np.where(narrow, 64.0, 128.0), np.where(narrow, 128.0, 64.0), narrow
    if c.tiles == BY_EXPERTS:
        narrow = tokens <= experts
        rows = np.where(narrow, 16.0, 64.0)
        return rows, np.where(narrow, 32.0, 64.0), np.where(narrow, 64.0, 32.0), narrow
    columns = np.asarray(64.0 if c.tiles == BEST_64 else 128.0)
    return None, columns, np.asarray(64.0), rows_each <= 8


def _products(
    touched: Floats, rows: Floats, tiling: _Tiling, nk: tuple[Floats, Floats],
    machine: Machine, c: records.ExpertsCoefficients,
) -> Floats:  # fmt: skip
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
        every.append(_waves(units, machine.sms, c.whole_waves) * tile)
    found: Floats = np.minimum.reduce(every) if chosen is None else np.select(is_chosen, every)
    return found


def _second_kernel(
    touched: Floats, rows: Floats, nk: tuple[Floats, Floats], machine: Machine,
    c: records.ExpertsCoefficients,
) -> Floats:  # fmt: skip
    """Like `_products`, for the kernel that has every activation."""
    (n, k), units = nk, touched * _row_tiles(rows / touched, _SECOND_TILE)
    rate = c.share_128 * machine.flops_per_second / machine.sms
    tile = 2.0 * _SECOND_TILE**2 * 64 * np.ceil(k / 64) / rate + c.fallback_tile_us * 1e-6
    return _waves(units * np.ceil(n / _SECOND_TILE), machine.sms, c.whole_waves) * tile


def _row_tiles(rows_each: Floats, tile_rows: int) -> Floats:
    """The mean over experts with and without one more row."""
    low = np.floor(rows_each + 1e-9)
    more = rows_each - low
    mixed: Floats = (1 - more) * np.ceil(low / tile_rows) + more * np.ceil((low + 1) / tile_rows)
    return mixed


# --- attention -------------------------------------------------------------------------------


_KEY_SPLITS: Final = (2, 4, 8, 16, 32)


def _of_attention(size: Sizes) -> map[Floats]:
    """Batch, queries, keys, heads, elements per head and key heads."""
    return map(size.__getitem__, ("batch", "queries", "keys", "heads", "head_dim", "kv_heads"))


def _prefill_attention(
    size: Sizes, machine: Machine, c: records.PrefillCoefficients, element_bytes: float,
    *, causal: bool,
) -> Floats:  # fmt: skip
    """One call, with `element_bytes` per element of keys and values.

    A tile of queries of one head processes the keys block by block, both products and the
    exponentials at a share of an SM's peak. Under a causal mask tiles stop at the diagonal.
    """
    B, Q, K, H, D, G = _of_attention(size)
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
    for parts in (1.0, *_KEY_SPLITS) if c.splits else (1.0,):
        crowded = block * (1 + c.crowding * np.minimum(1.0, units * parts / machine.sms))
        passes = _waves(units * parts, machine.sms, c.whole_waves, c.slots)
        longest = np.ceil(key_blocks / parts) * crowded + c.tile_us * 1e-6
        split = passes * longest
        if causal:
            total = passes * (mean / parts * crowded + c.tile_us * 1e-6)
            split = _overlapped(total, longest, c.longest)
        if parts > 1:
            combined = 4 * B * H * Q * D * (parts + 0.5) / machine.bytes_per_second
            split = split + combined + c.combine_us * 1e-6
        seconds = np.where(key_blocks >= parts, np.minimum(seconds, split), seconds)
    moved = D * B * (4 * H * Q + 2 * G * K * element_bytes)
    late = c.late_us * (1 - np.exp(-K / c.late_keys))
    streamed = moved / machine.bandwidth(moved, c)
    return _overlapped(seconds, streamed, c.norm) + (c.launch_us + late) * 1e-6


_BIAS_ALIGNED: Final = 8
"""Rows of the bias are padded to multiples of it (torch, attention.cpp: `pad_bias`)."""


def masked_bytes(sizes: Iterable[Floats]) -> Floats:
    """Bytes of queries, keys, values, bias and output in 16 bits."""
    B, Q, K, H, D, G = sizes
    return _ACTIVATION_BYTES * B * (D * (2 * H * Q + 2 * G * K) + H * Q * K)


def _masked_attention(size: Sizes, machine: Machine, c: records.MaskedCoefficients) -> Floats:
    """One call with a bias of one value per score.

    A tile of queries of one head processes whole blocks of keys, at a share of an SM's peak.
    """
    B, Q, K, H, D, _ = _of_attention(size)
    moved = size["moved"] if "moved" in size else masked_bytes(_of_attention(size))
    rate = c.share * machine.flops_per_second / machine.sms
    block = 4 * c.tile_queries * c.tile_keys * (D + c.softmax) / rate
    tile = np.ceil(K / c.tile_keys) * block + c.tile_us * 1e-6
    units = B * H * np.ceil(Q / c.tile_queries)
    compute = _waves(units, machine.sms, c.whole_waves) * tile
    copied = np.where(K % _BIAS_ALIGNED, c.unaligned * _ACTIVATION_BYTES * B * H * Q * K, 0.0)
    memory = (moved + copied) / machine.bandwidth(moved, c)
    return _overlapped(compute, memory, c.norm) + c.launch_us * 1e-6


_CACHE_SPLITS: Final = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_LATE_KEYS: Final = 200.0


def _generation_attention(
    size: Sizes, machine: Machine, c: records.GenerationCoefficients, element_bytes: float
) -> Floats:
    """One step over a cache, with `element_bytes` per cached element.

    A tile has the query heads of a key head, and reads its keys block by block. Keys may be split
    over SMs; a second kernel combines the parts. Memory, or L2, bounds all tiles together.
    """
    B, _, K, H, D, G = _of_attention(size)
    key_blocks = np.ceil(K / c.tile_keys)
    queries_a_key = H / G
    units = B * G * np.ceil(queries_a_key / c.tile_heads)
    moved = 2 * D * B * (G * K * element_bytes + 2 * H)
    slowness = _relative_seconds(moved, machine, c, c.l2_sharpness)
    memory = moved * slowness / machine.bytes_per_second
    block = (c.block_us + c.row_us * D / 128) * c.tile_keys / 64 * 1e-6
    start = c.tile_us * (1 + c.group * queries_a_key) * 1e-6
    seconds: Floats = np.asarray(np.inf)
    for parts in (1.0, *_CACHE_SPLITS):
        passes = _waves(units * parts, machine.sms, c.whole_waves, c.slots)
        reading = np.maximum(1.0, passes / c.slots) * np.ceil(key_blocks / parts) * block
        split = _overlapped(passes * start + reading, memory, c.norm)
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
