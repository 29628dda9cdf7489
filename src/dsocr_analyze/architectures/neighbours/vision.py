"""Parts of vision transformers of transformers 5 on a tape: positions, rotary attention, patches.

N images of h x w patches are packed into one sequence of n = N h w patches; attention runs image by
image. d is the width, D of a head, m the patches per side of a visual token.

Source: `vision_utils.py` and the vision models of Qwen2.5-VL, Qwen3-VL, GLM-OCR, PaddleOCR-VL and
Pixtral in transformers 5.23; Dehghani et al. 2023 (packing); Heo et al. 2024 (rotary positions in
two dimensions).
"""

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal

from msgspec import Struct

from dsocr_analyze.architectures.config_file import (
    LARGEST_WIDTH,
    MOST_LAYERS,
    ConfigKeys,
    KeyPath,
)
from dsocr_analyze.architectures.ocr_family.dimensions import CHANNELS, LARGEST_IMAGE
from dsocr_analyze.kernels import (
    FLOAT32,
    INT32,
    INT64,
    Attention,
    Convolution,
    Dtype,
    Gemm,
    Rows,
)
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import (
    ACTIVATIONS,
    convolution,
    embedding,
    fused_attention,
    layer_norm,
    linear,
    mlp,
    rms_norm,
    rotated,
    swiglu,
)

OTHER_NAMES: Final = {"depth": "num_hidden_layers", "num_heads": "num_attention_heads"}
"""Keys that transformers also takes by another name, which wins."""

_LARGEST_PATCH: Final = 1024
"""Most pixels per side of a patch, and most patches per side of a visual token."""


@dataclass(frozen=True, slots=True)
class ImageGrid:
    """N equal images, in patches."""

    count: int
    height: int
    width: int

    @property
    def patches(self) -> int:
        """Of one image."""
        return self.height * self.width

    @property
    def total(self) -> int:
        """Patches of all images."""
        return self.count * self.patches

    @property
    def lengths(self) -> tuple[int, ...]:
        """Patches of each sequence: of each image."""
        return (self.patches,) * self.count


@dataclass(frozen=True, slots=True)
class ImageFeatures:
    """What the vision stages leave, or what of it has its places in a prompt.

    Attributes:
        tokens: `[N h w / m^2, d]`; none without images.
        deepstack: The same of inner layers, which the decoder adds after its first ones.
        kept: What stays alive besides: the features before, masks of the places, or positions.
    """

    tokens: Operand
    deepstack: tuple[Operand, ...] = ()
    kept: tuple[Operand, ...] = ()


class LayerKind(Struct, frozen=True, forbid_unknown_fields=True):
    """What distinguishes the layers of a model's vision transformer.

    Attributes:
        norm: Before attention and MLP.
        names: Of norm, attention, norm and MLP.
        products: Names of attention's: a joint one or three, and the last.
        has_biases: Whether these products have, and a gated MLP's; others always do.
        head_norms: Whether queries and keys are normed per head.
        is_masked: Whether all images are one sequence under a mask.
        keeps_weights: Whether attention's outlive it.
        mlp: Names of its two products with an activation between; none for a gated one.
    """

    norm: Literal["rms_norm", "layer_norm"] = "rms_norm"
    names: tuple[str, str, str, str] = ("norm1", "attn", "norm2", "mlp")
    products: tuple[str, ...] = ("qkv", "proj")
    has_biases: bool = True
    head_norms: bool = False
    is_masked: bool = False
    keeps_weights: bool = False
    mlp: tuple[str, str, str] | None = None


@dataclass(frozen=True, slots=True)
class VisionTransformer:
    """Dimensions of a vision transformer, `vision_config`; those that it has not are empty.

    Attributes:
        patch_size: Pixels per side.
        frames: Of a patch; an image is repeated for them.
        merge: Patches per side of a visual token.
        out_width: Features of a visual token, the decoder's.
        side: Of its table of positions.
        window: Per side, in patches (GOT-OCR2) or visual tokens.
        global_layers: Layers that attend beyond windows.
        deepstack: Layers whose features are merged for the decoder's first layers.
        channels: Features after the encoder's neck.
        kind: Of its layers.
    """

    layers: int
    width: int
    heads: int
    mlp_width: int
    hidden_act: str
    patch_size: int
    frames: int
    merge: int
    out_width: int
    side: int
    window: int
    global_layers: tuple[int, ...]
    deepstack: tuple[int, ...]
    channels: int
    kind: LayerKind

    @property
    def head_dim(self) -> int:
        """Features per head."""
        return self.width // self.heads

    @property
    def taps(self) -> int:
        """Pixels of a patch in all frames."""
        return self.frames * self.patch_size**2

    @property
    def unit(self) -> int:
        """Patches of a visual token."""
        return self.merge**2


def read_vision(
    keys: ConfigKeys,
    used: Set[KeyPath],
    out_width: int,
    *,
    merge: int,
    has_fixed_view: bool,
    kind: LayerKind,
) -> VisionTransformer:
    """Reads what a vision transformer has of all that they have; raises ConfigError.

    Args:
        keys: A whole `config.json`.
        used: Keys that the model reads.
        out_width: The decoder's `hidden_size`, the features of a visual token.
        merge: Patches per side of a visual token where no key says so.
        has_fixed_view: Whether all pages become images of one size, whose windows are in patches.
        kind: Of its layers.
    """
    vision = keys.section("vision_config")
    known = {name for section, *names in used for name in names if section == "vision_config"}

    def size(*names: str, default: int = 0, **limits: int) -> int:
        return next((vision.integer(name, **limits) for name in names if name in known), default)

    def layers_in(name: str) -> tuple[int, ...]:
        return vision.integers(name, least=0, most=layers - 1) if name in known else ()

    width, heads = _width_and_heads(
        vision, "num_heads" if "num_heads" in known else "num_attention_heads"
    )
    _check_alike(vision, known, width // heads)
    vision.check(
        size("out_hidden_size", default=out_width) == out_width,
        "out_hidden_size",
        f"{out_width}, the decoder's 'hidden_size'",
    )
    patch = vision.integer("patch_size", most=_LARGEST_PATCH)
    if ("spatial_merge_size",) in used:
        merge = keys.integer("spatial_merge_size", merge, most=_LARGEST_PATCH)
    merge = size("spatial_merge_size", default=merge, most=_LARGEST_PATCH)
    token = patch * merge
    image = size("image_size", least=token if has_fixed_view else patch, most=LARGEST_IMAGE)
    is_whole = not has_fixed_view or image % token == 0
    vision.check(is_whole, "image_size", f"a multiple of {token}, a token's pixels")
    places = size("num_position_embeddings", default=(image // patch) ** 2)
    side = math.isqrt(places)
    vision.check(side * side == places, "num_position_embeddings", "a square, e.g. 2304")
    layers = size("depth", "num_hidden_layers", most=MOST_LAYERS)
    deepstack = layers_in("deepstack_visual_indexes")
    in_order = list(deepstack) == sorted(set(deepstack))
    vision.check(in_order, "deepstack_visual_indexes", "each layer once, in order")
    unit = 1 if has_fixed_view else token
    return VisionTransformer(
        layers=layers,
        width=width,
        heads=heads,
        mlp_width=size("mlp_dim", "intermediate_size", most=LARGEST_WIDTH),
        hidden_act=vision.choice("hidden_act", tuple(ACTIVATIONS)),
        patch_size=patch,
        frames=size("temporal_patch_size", default=1, most=_LARGEST_PATCH),
        merge=merge,
        out_width=out_width,
        side=side,
        window=size("window_size", least=unit, most=LARGEST_IMAGE) // unit,
        global_layers=layers_in("fullatt_block_indexes") + layers_in("global_attn_indexes"),
        deepstack=deepstack,
        channels=size("output_channels", most=LARGEST_WIDTH),
        kind=kind,
    )


def _check_alike(vision: ConfigKeys, known: Set[str], head_dim: int) -> None:
    """Raises ConfigError for keys that say otherwise what others say."""
    others = {
        OTHER_NAMES[name]: (vision.integer(name), f"'{name}'")
        for name in sorted(known & OTHER_NAMES.keys())
    }
    if "head_dim" in known:
        others["head_dim"] = head_dim, "'hidden_size' over the heads"
    for key, (number, origin) in others.items():
        vision.check(vision.value(key, None) in (None, number), key, f"{number}, {origin}")


def _width_and_heads(keys: ConfigKeys, name: str) -> tuple[int, int]:
    """`hidden_size`, and heads by the name of their key."""
    width, heads = keys.integer("hidden_size", most=LARGEST_WIDTH), keys.integer(name)
    keys.check(
        width % (4 * heads) == 0,
        name,
        f"a number of heads for {width} features ('hidden_size') of which each has a multiple of 4",
    )
    return width, heads


# --- patches and products --------------------------------------------------------------------


def patch_embed(
    t: Tape,
    images: ImageGrid,
    c: VisionTransformer,
    *,
    child: str = "proj",
    operator: str = "conv3d",
    bias: bool = True,
    together: int = 1,
) -> Operand:
    """`[n, 3 taps] -> [n, d]` by a convolution (`Qwen3VLVisionPatchEmbed` and its likes).

    It runs over each patch, or over so many `together`.
    """
    shape = Convolution(images.total // together, together, CHANNELS, c.width, c.taps)
    pixels = t.input(images.total * CHANNELS * c.taps, t.dtype)
    return t.call(child, convolution, pixels, shape, bias=bias, operator=operator)


def sides_of_images(t: Tape, *, divided: int, multiplied: int = 0) -> None:
    """Arithmetic on so many sides of images, each an integer."""
    side = t.input(1, INT64)
    for _ in t.turns(divided):
        t.map("floor_divide", side)
    for _ in t.turns(multiplied):
        t.map("mul", side, side)


# --- positions -------------------------------------------------------------------------------


def patch_positions(t: Tape, grid: ImageGrid, *, repeats: bool) -> tuple[Operand, ...]:
    """Row and column of each patch, `[2, n]`; the last image's rows and columns alone.

    Source: `get_vision_position_ids`, which `repeats` them for frames; `position_ids_in_meshgrid`
    of Pixtral.
    """
    n = grid.patches
    parts: list[Operand] = []
    sides: list[Operand] = []
    for skipped in t.turns(grid.count):
        if skipped:
            parts.append(t.empty(skipped * 2 * n, INT64))
        sides = [t.move("arange", n=side, dtype=INT64) for side in (grid.height, grid.width)]
        pair = t.move("stack", *(t.move("clone", each, n=n) for each in sides), n=2 * n)
        parts.append(t.move("repeat", pair) if repeats else pair)
    return t.cat(*parts), *sides


def _sequence_ends(t: Tape, grid: ImageGrid) -> Operand:
    """Where each image ends in the sequence, `[N + 1]` (`get_vision_cu_seqlens`)."""
    N, sides = grid.count, t.input(grid.count, INT64)
    lengths = _repeated(t, t.map("mul", sides, sides), N)
    ends, *_ = t.rows("reduction", "cumsum", lengths, Rows(N, 1), (N, INT32), flops=N)
    return t.move("constant_pad_nd", ends, n=N + 1)


def resampling(t: Tape, grid: ImageGrid, *, has_corners: bool) -> tuple[Operand, Operand]:
    """Four places of a learned table for each patch and their weights, `[n, 4]` each.

    Args:
        t: The tape.
        grid: The images.
        has_corners: Whether corner patches take the table's corners, or patches' centers count.

    Source: `get_vision_interpolation_indices_and_weights`.
    """
    N, n = grid.count, grid.total
    sides = t.input(N, INT64)
    counts = t.map("mul", t.map("mul", sides, sides), sides)
    heights, widths = (_repeated(t, sides, n) for _ in range(2))
    starts = t.reduce("cumsum", counts, N, 1)
    starts = _repeated(t, t.move("constant_pad_nd", t.view(starts, N - 1), n=N), n)
    t.reduce("sum", counts, 1, N)
    within = t.map("sub", t.move("arange", n=n, dtype=INT64), starts)
    within = t.map("remainder", within, t.map("mul", heights, widths))
    blocks = t.map("floor_divide", widths)
    in_column = t.map("remainder", within)
    in_row = t.map("remainder", t.map("floor_divide", within))
    block_column = t.map("remainder", t.map("floor_divide", within), blocks)
    block_row = t.map("floor_divide", within, t.map("mul", blocks))
    row = t.map("add", t.map("mul", block_row), in_row)
    column = t.map("add", t.map("mul", block_column), in_column)
    row_taps, row_weights = _taps(t, row, heights, n, has_corners=has_corners)
    column_taps, column_weights = _taps(t, column, widths, n, has_corners=has_corners)
    indices = t.map("add", t.map("mul", row_taps), column_taps, n=4 * n)
    weights = t.map("mul", row_weights, column_weights, n=4 * n)
    return t.hold(
        (indices, weights),
        counts,
        starts,
        in_column,
        in_row,
        block_column,
        block_row,
        within,
        blocks,
    )


def _repeated(t: Tape, x: Operand, n: int) -> Operand:
    """A value of each image, n times in all: for each of its frames or patches."""
    index = t.move("repeat_interleave", x, n=n)
    return t.move("index_select", index, t.view(index, n))


def _taps(
    t: Tape, index: Operand, length: Operand, n: int, *, has_corners: bool
) -> tuple[Operand, Operand]:
    """Two places of the table on either side of each patch, and their weights."""
    index = t.cast(index, FLOAT32)
    if has_corners:
        place = t.map("div", t.map("mul", index), t.map("clamp", t.map("sub", length)))
    else:
        place = t.map("sub", t.map("div", t.map("mul", t.map("add", index)), length))
    floor = t.map("floor", place)
    offsets = t.move("arange", n=2, dtype=INT64)
    taps = t.map("add", t.cast(floor, INT64), offsets, n=2 * n)
    clamped = t.map("clamp", taps)
    distance = t.map("abs", t.map("sub", t.map("sub", place, floor), offsets, n=2 * n))
    weights = t.map("clamp", t.map("rsub", distance))
    return t.hold((clamped, weights), index, taps, distance, offsets, floor, place)


def resampled(
    t: Tape, name: str, indices: Operand, weights: Operand, c: VisionTransformer
) -> Operand:
    """The weighted sum of four rows of a table `[side, side, d]` for each patch, in fp32."""
    rows = t.call(name, embedding, indices, c.side**2, c.width)
    rows = t.map("mul", rows, weights, output=FLOAT32)
    return t.reduce("sum", rows, rows.n // 4, 4)


def rotary_positions(t: Tape, grid: ImageGrid, c: VisionTransformer) -> tuple[Operand, ...]:
    """Cosines and sines `[n, D]` of patches; their positions and sequences, which stay as long."""
    positions = patch_positions(t, grid, repeats=True)[0]
    ends = _sequence_ends(t, grid)
    tables = t.call("rotary_pos_emb", axial_tables, positions, c.head_dim, c.head_dim // 4, FLOAT32)
    return *tables, positions, ends


def axial_tables(
    t: Tape, positions: Operand, D: int, frequencies: int, dtype: Dtype
) -> tuple[Operand, Operand]:
    """Cosines and sines `[n, D]` in a type: half of a head's angles by row, half by column.

    Rows and columns share D / 4 frequencies (`GlmOcrVisionRotaryEmbedding` and its likes), or each
    have their own (`PixtralVisionRotaryEmbedding`).
    """
    angles = t.map(
        "mul",
        t.move("_to_copy", positions, dtype=FLOAT32),
        t.input(frequencies, FLOAT32),
        n=positions.n * frequencies,
    )
    cos, sin = (t.map("mul", t.map(operator, angles)) for operator in ("cos", "sin"))
    cos = _both_halves(t, cos, positions.n * D // 8)
    sin = _both_halves(t, sin, positions.n * D // 8)
    return t.hold((t.cast(cos, dtype), t.cast(sin, dtype)), angles, cos, sin)


def _both_halves(t: Tape, table: Operand, n: int) -> Operand:
    """n angles by row and as many by column, side by side and twice."""
    part = t.view(table, n)
    joined = t.cat(part, part)
    return t.cat(joined, joined)


# --- attention -------------------------------------------------------------------------------


def _attention(
    t: Tape,
    x: Operand,
    c: VisionTransformer,
    lengths: Sequence[int],
    cos: Operand,
    sin: Operand,
    mask: Operand | None = None,
) -> tuple[Any, ...]:
    """`softmax(q k^T / sqrt(D)) v`, `[n, d]`, within sequences of some lengths, or under a mask.

    Also returns weights that outlive the call. Serving engines have a kernel for sequences of one
    length, and turn queries and keys in one, unless they are masked here.

    Source: `ApplyRotaryEmb`, `MMEncoderAttention`, and `PixtralHFAttention` with xformers of vLLM;
    `VisionAttention` of SGLang.
    """
    n, d, H, D = x.n // c.width, c.width, c.heads, c.head_dim
    q, k, v = _projected(t, x, n, d, c.kind)
    if c.kind.head_norms:
        q = t.call("q_norm", rms_norm, q, n * H, D)
        k = t.call("k_norm", rms_norm, k, n * H, D)
    if t.is_served and not c.kind.is_masked:
        both = t.cat(q, k)
        t.map("rotary_embedding", both, t.input(n * D, FLOAT32), flops=3, into=both)
    else:
        q, k = _turned(t, q, k, cos, sin)
    made: list[tuple[Operand, ...]] = []
    if t.is_served:
        for length, count in Counter(lengths).items():
            own = [t.view(each, count * length * d) for each in (q, k, v)]
            shape = Attention(count, H, H, length, length, D, D)
            fused_attention(t, "flash_attention", shape, *own)
        made.append((t.empty(n * d, t.dtype),))  # in which each kernel wrote its own
    elif mask:
        made.append(_attended(t, (q, k, v), mask, n, c))
    else:
        ends = t.input(len(lengths), INT32)
        differences = t.map("sub", ends, ends)
        for length, equal in groupby(lengths):
            for skipped in t.turns(len([*equal])):
                if skipped:
                    made.append(tuple(t.empty(skipped * each.n, t.dtype) for each in made[-1]))
                own = [t.view(each, length * d) for each in (q, k, v)]
                made.append(_attended(t, own, None, length, c))
        t.hold(differences)
    heads, *weights = zip(*made, strict=True)
    joined = heads[0] if c.kind.is_masked or t.is_served else t.cat(*heads)
    out = t.call(c.kind.products[-1], linear, joined, n, d, d, bias=c.kind.has_biases)
    return t.hold((out, *weights), q, k, v, *heads)


def _projected(t: Tape, x: Operand, n: int, d: int, kind: LayerKind) -> list[Operand]:
    """Queries, keys and values, `[n, d]` each; served, from one product (`QKVParallelLinear`)."""
    names = ("qkv",) if t.is_served else kind.products[:-1]
    operator, width = "merged_linear" if t.is_served else "linear", 3 * d // len(names)
    parts = [
        t.call(name, linear, x, n, d, width, bias=kind.has_biases, operator=operator)
        for name in names
    ]
    return parts if len(parts) == 3 else [t.view(parts[0], n * d) for _ in range(3)]


def _turned(t: Tape, q: Operand, k: Operand, cos: Operand, sin: Operand) -> tuple[Operand, Operand]:
    """Queries and keys after rotation in the tables' type (`apply_rotary_pos_emb_vision`)."""
    wide_q, wide_k = t.cast(q, cos.dtype), t.cast(k, cos.dtype)
    q_embed = rotated(t, wide_q, cos, sin)
    k_embed = rotated(t, wide_k, cos, sin)
    q_embed = t.cast(q_embed, t.dtype)
    k_embed = t.cast(k_embed, t.dtype)
    return t.hold((q_embed, k_embed), wide_q, wide_k)


def _attended(
    t: Tape,
    qkv: Sequence[Operand],
    mask: Operand | None,
    T: int,
    c: VisionTransformer,
) -> tuple[Operand, ...]:
    """`softmax(q k^T / sqrt(D) + mask) v`, `[T, H, D]`, and its weights if they outlive it.

    Source: `eager_attention_forward`.
    """
    (q, k, v), H, D = qkv, c.heads, c.head_dim
    weights = t.map("mul", t.product("matmul", Gemm(H, T, T, D), q, k))
    if mask:
        weights = t.map("add", weights, mask)
    weights = t.cast(t.softmax(weights, H * T, T), t.dtype)
    heads = t.product("matmul", Gemm(H, T, D, T), weights, v)
    if H > 1 and T > 1:
        heads = t.move("clone", heads)
    return (heads, weights) if c.kind.keeps_weights else (heads,)


# --- a layer ---------------------------------------------------------------------------------


def vision_layer(t: Tape, x: Operand, c: VisionTransformer, *inputs: Any) -> Operand:
    """`y = x + attention(norm(x))`, `y + mlp(norm(y))`, `[n, d]`; `inputs` of attention."""
    n, d, f, (norm1, attention, norm2, feed) = x.n // c.width, c.width, c.mlp_width, c.kind.names
    norm = layer_norm if c.kind.norm == "layer_norm" else rms_norm
    residual = x
    x = t.call(norm1, norm, x, n, d)
    x, *kept = t.call(attention, _attention, x, c, *inputs)
    residual = x = t.map("add", residual, x)
    x = t.call(norm2, norm, x, n, d)
    if c.kind.mlp:
        x = t.call(feed, mlp, x, c.kind.mlp, (d, f, d), c.hidden_act)
    else:
        x = t.call(feed, swiglu, x, n, d, f, c.hidden_act, bias=c.kind.has_biases)
    return t.hold(t.map("add", residual, x), *kept)
