"""Kernel times: the formula of every kernel kind.

The record of its coefficients chooses a kind's formula. Sizes are arrays that broadcast, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware.machine import WEIGHTS_SHARPNESS, Floats, Machine

Sizes: TypeAlias = Mapping[str, Floats]

_RAMP: Final = 0.25
"""Fraction beyond a library's limit within which its next kernel takes over."""
_BEGUN: Final = 0.5
"""Fraction of a second tile in which it is begun; of the n + 1st, an n-th of it."""
_WAVE_BEGUN: Final = 0.15
_BLOCKS_NORM: Final = 2.0


def _whole(share: Floats, within: float | None = None) -> Floats:
    """Whole tiles or waves, at least one; a further one is begun `within` a fraction of it.

    Of tiles, the fewer there are, the more gradually: one unit adds as much to one as to many. So
    times are continuous in sizes of which multiples were measured, or some well beyond them.
    """
    low = np.floor(share)
    begun = (share - low) / (within or _BEGUN / np.maximum(1.0, low))
    rounded: Floats = np.maximum(1.0, low + np.minimum(1.0, begun))
    return rounded


def _waves(units: Floats, sms: int, whole: float, slots: int = 1) -> Floats:
    """Waves in which the SMs process `units` of work, at least one.

    The mean of whole waves, weighted by `whole`, and fractional ones. With several `slots` per SM,
    later waves come in multiples of them: an SM that is done refills them all.
    """
    share, early = units / sms, _WAVE_BEGUN / 2
    waves = _whole(share + early, _WAVE_BEGUN)
    if slots > 1:
        later = slots * _whole(share / slots + early, _WAVE_BEGUN)
        waves = np.where(later > slots, later, np.minimum(waves, slots))
    mixed: Floats = np.maximum(1.0, (whole * waves + share) / (1 + whole))
    return mixed


def _overlapped(first: Floats, second: Floats, norm: float) -> Floats:
    """The (1 + norm)-norm of two times: a little above their maximum if they are alike."""
    power = 1 + norm
    longer: Floats = np.maximum(first, second)
    return longer * (1 + (np.minimum(first, second) / longer) ** power) ** (1 / power)


def _by_range(
    size: Floats, bounds: Sequence[Floats | float], seconds: Callable[[int, Floats], Floats],
    *, ramp: float = 0.0, may_fall: NDArray[np.bool_] | bool = False,
    at_bounds: Callable[[int, Floats], Floats] | None = None,
) -> Floats:  # fmt: skip
    """Seconds of a kernel that a library chooses by the range of a size, up to each of `bounds`.

    `seconds` are those of a size with the kernel of a range. Beyond a bound the next one takes
    over, within a fraction `ramp` of it. Where it takes less time than the last one did, both take
    their geometric mean around the bound, as more takes no less time, unless it `may_fall`:
    `at_bounds` are the seconds there, whatever else depends on a size.
    """
    uppers, least = (*bounds, np.inf), np.where(may_fall, 0.0, 1.0)
    taken, reached = seconds(0, np.minimum(size, uppers[0])), np.zeros(())
    for number, bound in enumerate(bounds, 1):
        there = at_bounds or seconds
        last, first = (there(each, np.asarray(bound)) for each in (number - 1, number))
        reached = np.maximum(reached * least, last)
        falls = (first < reached) & (least > 0)
        level = np.where(falls, np.sqrt(first * reached), np.inf)
        taken, reached = np.minimum(taken, level), np.minimum(reached, level)
        longer = seconds(number, np.clip(size, bound, uppers[number]))
        begun = np.clip((size / bound - 1) / ramp, 0.0, 1.0) if ramp else 1.0 * (size > bound)
        taken = taken * np.maximum(least, longer / taken) ** begun
    return taken


# --- formulas ---------------------------------------------------------------------------------


Needs: TypeAlias = tuple[Floats, Floats, Floats]
"""A formula's seconds, the necessary FLOPs and the bytes that have to be moved."""


def formula_seconds(
    c: records.Coefficients, size: Sizes, machine: Machine, element_bytes: float
) -> Floats:
    """Seconds of kernels with these sizes, and bytes per weight or cached element.

    No less than `Machine.least_seconds` of the sizes' `flops` and `moved`, by default of what the
    formula knows of. `batch` is 1 by default; experts are gated, and need no second kernel.
    """
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
        seconds = _overlapped(seconds, blocks, _BLOCKS_NORM)
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
    left: Floats = np.clip(1 - (size / max(1.0, limit) - 1) / _RAMP, 0.0, 1.0)
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
    split = np.reshape(_SPLITS, (-1, *[1] * max(map(np.ndim, (m, n, k, batch)))))
    compute: Floats = np.asarray(np.inf)
    for (rows, columns), share in zip(_TILES, shares, strict=True):
        units = batch * np.ceil(m / rows) * _whole(n / columns) * split
        rate = 2.0 * rows * columns * machine.sms / (share * machine.flops_per_second)
        crowded = 1 + c.crowding * np.minimum(1.0, units / machine.sms)
        tile = rate * crowded * (k / split + 64 * c.prologue_blocks) + c.wave_us * 1e-6
        seconds = _waves(units, machine.sms, c.whole_waves) * tile
        seconds = seconds + np.where(split > 1, c.split_us * 1e-6 + split * partial, 0.0)
        compute = np.minimum(compute, seconds.min(axis=0))
    weights = batch * n * k * weight_bytes
    moved = weights + batch * (m * k + m * n) * max(2, weight_bytes)
    streamed = _streamed(moved, machine, c, weights * size.get("others", 0.0))
    seconds = _overlapped(compute, streamed, c.norm) + c.launch_us * 1e-6
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
    n, k = size["n"], size["k"]
    shares = (c.share_16, c.share_64, c.share_128, c.share_256, c.share_more)

    def of_tile(number: int, m: Floats) -> Floats:
        rows, columns = TILES[c.tiles][number]
        units = np.ceil(m / rows) * _whole(n / columns)
        crowded = 1 + c.crowding * np.minimum(1.0, units / machine.sms)
        rate = shares[number] * machine.flops_per_second / machine.sms
        tile = 2.0 * rows * columns * (k + 64 * c.prologue_blocks) * crowded / rate
        compute = _waves(units, machine.sms, c.whole_waves) * (tile + c.wave_us * 1e-6)
        moved = m * k + n * k + 2 * m * n
        streamed = _streamed(moved, machine, c, n * k * size.get("others", 0.0))
        return _overlapped(compute, streamed, c.norm)

    m = size["m"]
    seconds = _by_range(m, _ROWS, of_tile) + (c.launch_us + c.quantize_us) * 1e-6
    seconds = seconds + m * c.row_ns * 1e-9
    again = np.where((m > _ROWS[-1]) & (m % 64 > 0), c.ragged * n * k, 0.0)
    read = c.read_at_once * np.ceil(k / c.read_at_once)
    quantized = _QUANTIZED_BYTES * m * read / c.quantize_share
    seconds = seconds + (again + quantized) / machine.bytes_per_second
    return seconds, 2.0 * m * n * k, m * k + n * k + 2 * m * n


# --- experts ---------------------------------------------------------------------------------


BEST_64: Final = 0
BEST_128: Final = 1
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


class _Tile(NamedTuple):
    """A tile of the experts' products, which takes so many inner elements at a time."""

    rows: Sequence[int]
    """To choose from: the fastest is taken."""
    columns: int
    step: int
    has_few_rows: bool | None
    """Whether weights stream at full speed; None to tell by an expert's rows."""
    warps: int = 4
    """Of Triton's kernels; 0 for others."""

    def spilled(self, rows: int) -> float:
        """Factor on single loads, if sums and addresses are more than a thread's registers hold."""
        values = rows * self.columns + (rows + self.columns) * self.step
        each = values / max(1, 32 * self.warps)
        if each > _ALL_SPILLED:
            return values / _AT_ONCE if self.warps else 1.0
        return max(1.0, each / _HELD)


_HELD: Final = 100
_ALL_SPILLED: Final = 160
"""A thread's values beyond which all go through memory, as they do in float8 (L40S)."""
_AT_ONCE: Final = 600
_BETWEEN: Final = 192
"""Rows of a tile that runs at the rate of 128."""
_EVERY_TILE: Final = (16, 32, 64, 128, _BETWEEN)
_CHOICES: Final[Mapping[int, Sequence[_Tile]]] = {
    BEST_64: [_Tile(_EVERY_TILE, 64, 64, None)],
    BEST_128: [_Tile(_EVERY_TILE, 128, 64, None)],
    BY_TOKENS: [_Tile([16], 64, 128, True), _Tile([32], 64, 128, True), _Tile([32], 128, 64, False),
                _Tile([64], 128, 64, False), _Tile([64], 128, 64, False, 8),
                _Tile([128], 128, 64, False, 8)],
    BY_TOKENS_8: [_Tile([16], 64, 128, True), _Tile([32], 64, 128, True),
                  _Tile([32], 128, 128, False), _Tile([64], 128, 128, False),
                  _Tile([64], 128, 128, False, 8), _Tile([128], 128, 128, False, 8)],
    AS_BY_TOKENS: [_Tile([16], 64, 128, True, 0), _Tile([32], 64, 128, True, 0),
                   _Tile([32], 128, 64, False, 0), _Tile([64], 128, 64, False, 0),
                   _Tile([64], 128, 64, False, 0), _Tile([128], 128, 64, False, 0)],
    BY_EXPERTS: [_Tile([16], 32, 64, True), _Tile([64], 64, 32, False)],
    BY_ROWS: [_Tile([rows], 128, 64, None) for rows in (8, 16, 32, 64)],
}  # fmt: skip
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
    again = 1 - fitting if c.tiles in (BEST_64, BEST_128, BY_ROWS) else 1.0

    def at_bounds(number: int, some: Floats) -> Floats:
        return both(number, some, np.minimum(size["experts"], some * size["top_k"]))

    def both(number: int, some: Floats, touched: Floats = touched) -> Floats:
        tile, rows = _CHOICES[c.tiles][number], some * size["top_k"]
        few = _fading(rows / touched, _FEW_EACH) if tile.has_few_rows is None else tile.has_few_rows
        slower = 1 + np.where(second, 0.0, c.wide_memory * (1 - few) * again)
        seconds: Floats = np.zeros(())
        # A token's experts read it from memory once.
        for n, k, read in ((up_width, hidden, some), (hidden, width, rows)):
            compute = _products(touched, rows, tile, (n, k), machine, c)
            if np.any(second):
                other = _second_kernel(touched, rows, (n, k), machine, c)
                compute = np.where(second, other, compute)
            streamed = touched * n * k * weight_bytes + c.ramp_mb * 1e6
            moved = (read * k + rows * n) * _ACTIVATION_BYTES
            memory = streamed * of_weights + moved * of_activations
            seconds = seconds + slower * _overlapped(compute, memory, c.norm)
        return seconds

    bounds = {
        BEST_64: [], BEST_128: [], BY_EXPERTS: [size["experts"]],
        BY_ROWS: [rows * size["experts"] / size["top_k"] for rows in _MEAN_ROWS],
    }.get(c.tiles, _TOKENS)  # fmt: skip
    routing = _ROUTING_US * size["top_k"] ** 2 if c.tiles == BY_ROWS else 0.0
    launch = c.launch_us + routing + np.where(second, c.fallback_us, 0.0)
    may_fall = (inter < _NARROW_INTER) | (inter % _ALIGNED > 0)
    seconds = _by_range(
        tokens, bounds, both, ramp=_RAMP, may_fall=may_fall, at_bounds=at_bounds
    ) + launch * 1e-6  # fmt: skip
    needed = (gates + 1) * inter * hidden
    return (
        seconds + _handed_on(size, width, second, weights, machine, c),
        2.0 * all_rows * needed,
        touched * needed * weight_bytes,
    )


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
    touched: Floats, rows: Floats, tile: _Tile, nk: tuple[Floats, Floats],
    machine: Machine, c: records.ExpertsCoefficients,
) -> Floats:  # fmt: skip
    n, k = nk
    # A tile of 8 rows takes as long as one of 16.
    limits = {8: c.rate_16 / 2, 16: c.rate_16, 32: c.rate_32, 64: c.rate_64}
    full = c.share_128 * machine.flops_per_second / machine.sms
    padded = tile.step * np.ceil(k / tile.step)
    fastest: Floats = np.asarray(np.inf)
    for tile_rows in tile.rows:
        rate = min(full, 1e12 * limits.get(tile_rows, np.inf))
        units = (
            touched * _whole(rows / touched / tile_rows, _ROWS_BEGUN) * np.ceil(n / tile.columns)
        )
        each = 2.0 * tile_rows * tile.columns * padded / rate + c.tile_us * 1e-6
        if len(tile.rows) == 1:
            # Most of the loads of further blocks hide behind the first one's.
            loaded = (tile_rows + tile.columns) * np.sqrt(tile.step * padded)
            loaded = loaded * tile.spilled(tile_rows)
            each = each + np.where(k % _ALIGNED, c.unaligned_ns * 1e-9 * loaded, 0.0)
        fastest = np.minimum(fastest, _waves(units, machine.sms, c.whole_waves) * each)
    return fastest


def _second_kernel(
    touched: Floats, rows: Floats, nk: tuple[Floats, Floats], machine: Machine,
    c: records.ExpertsCoefficients,
) -> Floats:  # fmt: skip
    """Like `_products`, for the kernel that has every activation."""
    (n, k), units = nk, touched * _whole(rows / touched / _SECOND_TILE, _ROWS_BEGUN)
    rate = c.share_128 * machine.flops_per_second / machine.sms
    tile = 2.0 * _SECOND_TILE**2 * 64 * np.ceil(k / 64) / rate + c.fallback_tile_us * 1e-6
    return _waves(units * np.ceil(n / _SECOND_TILE), machine.sms, c.whole_waves) * tile


# --- attention -------------------------------------------------------------------------------


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
        tile_queries * _whole(Q / tile_queries),
    )
    units = B * H * last / c.tile_queries
    rate = c.share * machine.flops_per_second / machine.sms
    block = 4 * c.tile_queries * tile_keys * (padded + c.softmax) / rate + c.block_us * 1e-6

    # The mean share of the keys that a tile reads, of whole tiles: more queries are more work.
    longer = 2 * np.maximum(tile_keys * _whole(K / tile_keys), last)
    mean = np.minimum(1.0, (longer - last + np.maximum(tile_queries, tile_keys)) / longer)
    start = c.tile_us * 1e-6 * (1.0 if causal else (padded / 64) ** 2)
    seconds: Floats = np.asarray(np.inf)
    for parts in (1.0, *_KEY_SPLITS) if c.splits else (1.0,):
        crowded = block * (1 + c.crowding * np.minimum(1.0, units * parts / machine.sms))
        part_blocks = _whole(K / tile_keys / parts)
        longest = part_blocks * crowded + start
        passes = _waves(units * parts, machine.sms, c.whole_waves, c.slots)
        split = passes * longest
        if causal:
            total = units * parts * mean / machine.sms * part_blocks * crowded + passes * start
            split = _overlapped(total, longest, causal.longest)
        if parts > 1:
            combined = 4 * B * H * Q * D * (parts + 0.5) / machine.bytes_per_second
            split = split + combined + c.combine_us * 1e-6
        seconds = np.minimum(seconds, split)
    moved = D * B * (4 * H * Q + 2 * G * K * element_bytes)
    late = c.late_us * (1 - np.exp(-K / c.late_keys))
    if isinstance(c, records.EncoderCoefficients):
        seconds = seconds * np.where(D % _EVEN_HEAD, 1 + c.uneven_head, 1.0)
        seconds = seconds * (1 + c.heat * seconds / (seconds + _HOT_SECONDS))
    seconds = _overlapped(seconds, moved * machine.memory_seconds(moved, c), c.norm)
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
    B, _, K, H, D, G = map(size.__getitem__, ATTENTION_SIZES)
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
    seconds: Floats = np.asarray(np.inf)
    for parts in (1.0, *_CACHE_SPLITS):
        passes = _waves(units * parts, machine.sms, c.whole_waves, c.slots)
        # Parts are offered whatever the number of keys, or more keys could take less time.
        fewest = _PART_KEYS / c.tile_keys if parts > 1 else 1.0
        blocks = np.maximum(fewest, _whole(K / c.tile_keys / parts))
        reading = np.maximum(1.0, passes / c.slots) * blocks * block
        split = _overlapped(scheduled + passes * start + reading, memory, c.norm)
        if parts > 1:
            partial = 4 * B * H * D * (parts + 0.5) / machine.bytes_per_second
            split = split + (c.merge_us + parts * c.combine_us) * 1e-6 + partial
            split = np.where(parts <= most, split, np.inf)
        seconds = np.minimum(seconds, split)
    late = c.late_us * (1 - np.exp(-K / _LATE_KEYS))
    gathered = np.where((H > G) & (G > 1) & (B > 1), c.grouped_us, 0.0)
    return seconds + (c.launch_us + late + gathered) * 1e-6, 4 * B * H * K * D, moved
