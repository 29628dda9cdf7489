"""Kernel times: the formula of every kernel kind.

The record of its coefficients chooses a kind's formula. Sizes are arrays that broadcast, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware.machine import (
    RAMP,
    WEIGHTS_SHARPNESS,
    Floats,
    Machine,
    Needs,
    Sizes,
    beside,
    by_range,
    overlapped,
    waves,
    whole,
)

_BLOCKS_NORM: Final = 2.0
_AT_A_TIME: Final = 4096
"""Kernels of which all tiles and splits are tried at once; of more, the arrays leave the caches."""


# --- formulas ---------------------------------------------------------------------------------


def formula_seconds(
    c: records.Coefficients, size: Sizes, machine: Machine, element_bytes: float
) -> Floats:
    """Seconds of kernels with these sizes, and bytes per weight or cached element.

    No less than `Machine.least_seconds` of the sizes' `flops` and `moved`, by default of what the
    formula knows of. `batch` is 1 by default; experts are gated, and need no second kernel.
    """
    largest = max(map(np.asarray, size.values()), key=np.size)
    if largest.size > _AT_A_TIME:
        length = max(largest.shape)
        axis = largest.shape.index(length) - largest.ndim
        halves = (
            np.array_split(each, 2, axis)
            if np.ndim(each) >= -axis and np.shape(each)[axis] == length
            else (each, each)
            for each in size.values()
        )
        return np.concatenate([
            formula_seconds(c, dict(zip(size, half, strict=True)), machine, element_bytes)
            for half in zip(*halves, strict=True)
        ], axis)  # fmt: skip
    match c:
        case records.GemmCoefficients():
            seconds, flops, moved = _gemm(size, machine, c, element_bytes)
        case records.ScaledGemmCoefficients():
            seconds, flops, moved = _scaled_gemm(size, machine, c)
        case records.ExpertsCoefficients():
            seconds, flops, moved = _experts(size, machine, c, element_bytes)
        case records.EncoderCoefficients() | records.PrefillCoefficients():
            seconds, flops, moved = _prefill_attention(size, machine, c, element_bytes)
        case records.GenerationCoefficients():
            seconds, flops, moved = _generation_attention(size, machine, c, element_bytes)
        case _:
            seconds, flops, moved = _movement(size, machine, c)
    least = machine.least_seconds(size.get("flops", flops), size.get("moved", moved))
    longest: Floats = np.maximum(seconds, np.maximum(*least))
    return longest


def _movement(size: Sizes, machine: Machine, c: records.MovementCoefficients) -> Needs:
    """One kernel. In the tables, a block of threads reads each of the `rows` of some `width`.

    Each block takes its time to start, and a long row that of its few threads, while memory
    streams. A page's kernels have blocks as they need them.
    """
    moved, rows, width = (np.asarray(size.get(name, 0.0)) for name in ("moved", "rows", "width"))
    seconds = (moved + c.ramp_mb * 1e6) * machine.memory_seconds(moved, c, c.l2_part)
    for blocks in (rows * c.row_ns * 1e-9, width * c.element_ns * 1e-9):
        seconds = overlapped(seconds, blocks, _BLOCKS_NORM)
    return seconds + c.launch_us * 1e-6, np.zeros(()), moved


def _streamed(
    moved: Floats, machine: Machine, c: records.GemmCoefficients | records.ScaledGemmCoefficients,
    others: Floats,
) -> Floats:  # fmt: skip
    """Seconds of so many bytes, after a ramp, with `others` moved since the last run as well."""
    return (moved + c.ramp_mb * 1e6) * machine.memory_seconds(moved + others, c)


# --- products --------------------------------------------------------------------------------

_TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 64), (64, 32))
_SPLITS: Final = (1, 2, 4, 8, 16, 32)
_FEW_ROWS: Final = 8
_NARROW: Final = 512
_PARTIAL_BYTES: Final = 8
"""Of a partial sum, written and read."""


def _fading(size: Floats, limit: float) -> Floats:
    """1 up to a limit, and gradually 0 beyond it."""
    left: Floats = np.clip(1 - (size / max(1.0, limit) - 1) / RAMP, 0.0, 1.0)
    return left


def _gemm(size: Sizes, machine: Machine, c: records.GemmCoefficients, weight_bytes: float) -> Needs:
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
    axes = max(map(np.ndim, size.values()))
    split = beside(_SPLITS, axes)
    tiles = dict(zip(_TILES, shares, strict=True))
    if machine.has_192:
        tiles[192, 128] = c.share_128x128
    rows, columns = (beside(each, 1 + axes) for each in zip(*tiles, strict=True))
    share = beside([*tiles.values()], 1 + axes)
    units = batch * np.ceil(m / rows) * whole(n / columns) * split
    rate = 2.0 * rows * columns * machine.sms / (share * machine.flops_per_second)
    crowded = 1 + c.crowding * np.minimum(1.0, units / machine.sms)
    tile = rate * crowded * (k / split + 64 * c.prologue_blocks) + c.wave_us * 1e-6
    added = np.where(split > 1, c.split_us * 1e-6 + split * partial, 0.0)
    compute = (waves(units, machine.sms, c.whole_waves) * tile + added).min(axis=(0, 1))
    weights = batch * n * k * weight_bytes
    moved = weights + batch * (m * k + m * n) * max(2, weight_bytes)
    streamed = _streamed(moved, machine, c, weights * size.get("others", 0.0))
    seconds = overlapped(compute, streamed, c.norm) + c.launch_us * 1e-6
    slow = _fading(m, _FEW_ROWS) * _fading(n, c.slow_columns) * _fading(k, c.slow_depth)
    slow = slow * c.slow * (1 - _fading(np.minimum(n, k), _NARROW))
    return (1 + slow) * seconds, 2.0 * batch * m * n * k, moved


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
"""Each library's tiles for m up to each of `_ROWS`, and above."""
_ROWS: Final = (16, 64, 128, 256)

_QUANTIZED_BYTES: Final = 3
"""Per element: read in 16 bits, written in 8."""


def _scaled_gemm(size: Sizes, machine: Machine, c: records.ScaledGemmCoefficients) -> Needs:
    """The kernel that quantizes the rows, and one product in float8.

    Libraries choose its tile by m alone and do not split k. Outputs have two bytes per element.
    """
    m, n, k = size["m"], size["n"], size["k"]
    shares = (c.share_16, c.share_64, c.share_128, c.share_256, c.share_more)
    axes = max(map(np.ndim, size.values()))
    rows, columns, share = (
        beside(each, axes) for each in (*zip(*TILES[c.tiles], strict=True), shares)
    )

    def of_tiles(m: Floats) -> Floats:
        units = np.ceil(m / rows) * whole(n / columns)
        crowded = 1 + c.crowding * np.minimum(1.0, units / machine.sms)
        rate = share * machine.flops_per_second / machine.sms
        tile = 2.0 * rows * columns * (k + 64 * c.prologue_blocks) * crowded / rate
        compute = waves(units, machine.sms, c.whole_waves) * (tile + c.wave_us * 1e-6)
        moved = m * k + n * k + 2 * m * n
        streamed = _streamed(moved, machine, c, n * k * size.get("others", 0.0))
        return overlapped(compute, streamed, c.norm)

    seconds = by_range(m, beside(_ROWS, axes), of_tiles) + (c.launch_us + c.quantize_us) * 1e-6
    seconds = seconds + m * c.row_ns * 1e-9
    again = np.where((m > _ROWS[-1]) & (m % 64 > 0), c.ragged * n * k, 0.0)
    read = c.read_at_once * np.ceil(k / c.read_at_once)
    quantized = _QUANTIZED_BYTES * m * read / c.quantize_share
    seconds = seconds + (again + quantized) / machine.bytes_per_second
    return seconds, 2.0 * m * n * k, m * k + n * k + 2 * m * n


# --- experts ---------------------------------------------------------------------------------


BEST_64: Final = 0
BEST_128: Final = 1
_BEST: Final = (BEST_64, BEST_128)
BY_TOKENS: Final = 2
BY_EXPERTS: Final = 3
BY_ROWS: Final = 4
BY_TOKENS_8: Final = 5
AS_BY_TOKENS: Final = 6
"""How a library chooses its tile (`tiles`): the fastest with 64 or with 128 columns; by the tokens
(vLLM's Triton kernels, `get_default_config`); by whether there are more tokens than experts
(SGLang's, and vLLM's before 0.17); by an expert's mean rows, of which a tile has half of the next
power of two (TensorRT-LLM's kernels in FlashInfer without tuning, `selectDefaultTileN`). vLLM's
Triton kernels take longer blocks in float8; CUTLASS's on Hopper are as if they chose by tokens."""


class _Tiles(NamedTuple):
    """A library's tiles of the experts' products, `[tiles]` or, where alike, `[1]`."""

    rows: Sequence[int]
    columns: Sequence[int]
    step: Sequence[int]
    """Inner elements at a time."""
    has_few_rows: Sequence[bool] | None
    """Whether weights stream at full speed; None to tell by an expert's rows."""
    warps: Sequence[int] = (4,)
    """Of Triton's kernels; 0 for others."""

    def spilled(self) -> Floats:
        """Factors on single loads, where a thread's registers hold no sums and addresses."""
        rows, columns, step, _, warps = map(np.asarray, self)
        values = rows * columns + (rows + columns) * step
        each = values / np.maximum(1, 32 * warps)
        through_memory = np.where(warps, values / _AT_ONCE, 1.0)
        return np.where(each > _ALL_SPILLED, through_memory, np.maximum(1.0, each / _HELD))


_HELD: Final = 100
_ALL_SPILLED: Final = 160
"""A thread's values beyond which all go through memory, as they do in float8 (L40S)."""
_AT_ONCE: Final = 600
_BETWEEN: Final = 192
"""Rows of a tile that runs at the rate of 128."""
_EVERY_TILE: Final = (16, 32, 64, 128, _BETWEEN)
_BY_TOKENS: Final = _Tiles(
    (16, 32, 32, 64, 64, 128), (64, 64, 128, 128, 128, 128), (128, 128, 64, 64, 64, 64),
    (True, True, False, False, False, False), (4, 4, 4, 4, 8, 8),
)  # fmt: skip
_CHOICES: Final[Mapping[int, _Tiles]] = {
    BEST_64: _Tiles(_EVERY_TILE, (64,), (64,), None),
    BEST_128: _Tiles(_EVERY_TILE, (128,), (64,), None),
    BY_TOKENS: _BY_TOKENS,
    BY_TOKENS_8: _BY_TOKENS._replace(step=(128,)),
    AS_BY_TOKENS: _BY_TOKENS._replace(warps=(0,)),
    BY_EXPERTS: _Tiles((16, 64), (32, 64), (64, 32), (True, False)),
    BY_ROWS: _Tiles((8, 16, 32, 64), (128,), (64,), None),
}
_TOKENS: Final = (32, 64, 96, 128, 512)
_MEAN_ROWS: Final = (16, 32, 64)
_ROUTING_US: Final = 0.015
"""TensorRT-LLM's time to choose an expert beside each that is chosen."""
_ROWS_BEGUN: Final = 1 / 8
"""Fraction of a further tile of an expert's rows in which it is begun."""
_FEW_EACH: Final = 8
"""Rows of an expert up to which the tile is one of few."""
_ACTIVATIONS_SHARPNESS: Final = 4.0
"""How sharply activations' L2 hits drop off."""
_AGAIN_SHARPNESS: Final = 2.0
_ALIGNED: Final = 16
"""Triton reads rows of other lengths element by element."""
_NARROW_INTER: Final = 128
"""Inner sizes below which Triton's next tile may be the faster one at its first number of tokens,
as in the tables, and not only at the last."""
_SECOND_TILE: Final = 128
_ACTIVATION_BYTES: Final = 2


def _experts(
    size: Sizes, machine: Machine, c: records.ExpertsCoefficients, weight_bytes: float
) -> Needs:
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
    width = np.where(second, inter, c.inter_step * np.ceil(inter / c.inter_step))
    gates = np.where(size.get("gated", 1) > 0, 2, 1)
    # The first product's columns are those of both matrices together.
    up_width = np.where(second, gates * inter, c.inter_step * np.ceil(gates * inter / c.inter_step))
    all_rows = tokens * size["top_k"]
    weights = touched * (up_width + width) * hidden * weight_bytes
    activations = (tokens * hidden + all_rows * (hidden + 3 * width)) * _ACTIVATION_BYTES
    of_weights = machine.memory_seconds(weights, c, c.l2_part, WEIGHTS_SHARPNESS)
    of_activations = machine.memory_seconds(activations, c, c.l2_part, _ACTIVATIONS_SHARPNESS)

    # What other tiles of rows read again is in L2 unless an expert's weights are larger.
    fitting = machine._replace(cold=False).hits(
        up_width * hidden * weight_bytes, sharpness=_AGAIN_SHARPNESS
    )
    again = 1 - fitting if c.tiles in (*_BEST, BY_ROWS) else 1.0
    axes, few_rows = max(map(np.ndim, size.values())), _CHOICES[c.tiles].has_few_rows

    def at_bounds(some: Floats) -> Floats:
        return both(some, np.minimum(size["experts"], some * size["top_k"]))

    def both(some: Floats, touched: Floats = touched) -> Floats:
        rows = some * size["top_k"]
        few = _fading(rows / touched, _FEW_EACH) if few_rows is None else beside(few_rows, axes)
        slower = 1 + np.where(second, 0.0, c.wide_memory * (1 - few) * again)
        seconds: Floats = np.zeros(())
        # A token's experts read it from memory once.
        for n, k, read in ((up_width, hidden, some), (hidden, width, rows)):
            compute = _products(touched, rows, (n, k), axes, machine, c)
            if np.any(second):
                other = _second_kernel(touched, rows, (n, k), machine, c)
                compute = np.where(second, other, compute)
            streamed = touched * n * k * weight_bytes + c.ramp_mb * 1e6
            moved = (read * k + rows * n) * _ACTIVATION_BYTES
            memory = streamed * of_weights + moved * of_activations
            seconds = seconds + slower * overlapped(compute, memory, c.norm)
        return seconds

    seconds = both(tokens) if c.tiles in _BEST else by_range(
        tokens, _bounds(size, c.tiles, axes), both, ramp=RAMP,
        may_fall=(inter < _NARROW_INTER) | (inter % _ALIGNED > 0), at_bounds=at_bounds,
    )  # fmt: skip
    routing = _ROUTING_US * size["top_k"] ** 2 if c.tiles == BY_ROWS else 0.0
    launch = c.launch_us + routing + np.where(second, c.fallback_us, 0.0)
    needed = (gates + 1) * inter * hidden
    return (
        seconds + launch * 1e-6 + _handed_on(size, width, second, weights, machine, c),
        2.0 * all_rows * needed,
        touched * needed * weight_bytes,
    )


def _bounds(size: Sizes, tiles: int, axes: int) -> Floats:
    """Tokens up to which a library takes each of its tiles but the last, `[bounds, *sizes]`."""
    if tiles == BY_EXPERTS:
        return beside((1,), axes) * size["experts"]
    if tiles == BY_ROWS:
        return beside(_MEAN_ROWS, axes) * size["experts"] / size["top_k"]
    return beside(_TOKENS, axes)


def _handed_on(
    size: Sizes, width: Floats, second: NDArray[np.bool_], weights: Floats, machine: Machine,
    c: records.ExpertsCoefficients,
) -> Floats:  # fmt: skip
    """Seconds of what one kernel writes and the next reads, from L2 if the weights leave room."""
    tokens, hidden = size["tokens"], size["hidden"]
    all_rows = tokens * size["top_k"]
    moved = 2 * all_rows * (3 * width + 2 * hidden) + 4 * tokens * hidden
    share = np.where(second, c.fallback_movement, c.movement_share)
    warm = machine._replace(cold=False)
    there = warm.hits(moved + weights, c.l2_part, _ACTIVATIONS_SHARPNESS)
    from_memory = (1 - there) / share + there / np.maximum(share, c.l2_share)
    seconds: Floats = moved * from_memory / machine.bytes_per_second
    return seconds


def _products(
    touched: Floats, rows: Floats, nk: tuple[Floats, Floats], axes: int,
    machine: Machine, c: records.ExpertsCoefficients,
) -> Floats:  # fmt: skip
    """With the tile of each range of tokens, `[ranges, *sizes]` of so many axes."""
    (n, k), tiles = nk, _CHOICES[c.tiles]
    tile_rows, columns, step = (beside(each, axes) for each in tiles[:3])
    # A tile of 8 rows takes as long as one of 16.
    limits = {8: c.rate_16 / 2, 16: c.rate_16, 32: c.rate_32, 64: c.rate_64}
    limit = beside([1e12 * limits.get(each, np.inf) for each in tiles.rows], axes)
    rate = np.minimum(limit, c.share_128 * machine.flops_per_second / machine.sms)
    padded = step * np.ceil(k / step)
    units = touched * whole(rows / touched / tile_rows, _ROWS_BEGUN) * np.ceil(n / columns)
    each = 2.0 * tile_rows * columns * padded / rate + c.tile_us * 1e-6
    if c.tiles not in _BEST:
        # Most of the loads of further blocks hide behind the first one's.
        loaded = (tile_rows + columns) * np.sqrt(step * padded) * beside(tiles.spilled(), axes)
        each = each + np.where(k % _ALIGNED, c.unaligned_ns * 1e-9 * loaded, 0.0)
    seconds = waves(units, machine.sms, c.whole_waves) * each
    return seconds.min(axis=0) if c.tiles in _BEST else seconds


def _second_kernel(
    touched: Floats, rows: Floats, nk: tuple[Floats, Floats], machine: Machine,
    c: records.ExpertsCoefficients,
) -> Floats:  # fmt: skip
    """Like `_products`, for the kernel that has every activation."""
    (n, k), units = nk, touched * whole(rows / touched / _SECOND_TILE, _ROWS_BEGUN)
    rate = c.share_128 * machine.flops_per_second / machine.sms
    tile = 2.0 * _SECOND_TILE**2 * 64 * np.ceil(k / 64) / rate + c.fallback_tile_us * 1e-6
    return waves(units * np.ceil(n / _SECOND_TILE), machine.sms, c.whole_waves) * tile


# --- attention --------------------------------------------------------------------------------

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


def _prefill_attention(
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


def _generation_attention(
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
