"""SAM's encoder, which all relatives share, and the projector to the decoder's width.

The projector has no variants that join feature maps or merge tokens: `check_projector` refuses
them.

Source: `ImageEncoderViT`, `MlpProjector` and their parts (`deepencoder.py`), in whose order
operators and names stand; ViTDet (Li et al. 2022) for the windows; MViTv2 (Li et al. 2022), eq. 4.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from dsocr_analyze.architectures.ocr_family.dimensions import ProjectorDimensions, SamDimensions
from dsocr_analyze.kernels import FLOAT32, INT64, Attention, Gemm
from dsocr_analyze.tape import Operand, Size, Tape, ceil_div
from dsocr_analyze.tape.modules import (
    ACTIVATIONS,
    bicubic,
    conv2d,
    fused_attention,
    interpolated,
    layer_norm,
    linear,
    mlp,
)


def sam(t: Tape, pixels: Operand, N: Size, R: int, c: SamDimensions) -> Operand:
    """N views of R pixels per side, `[N, 3, R, R] -> [N, C, q, q]` (`ImageEncoderViT`)."""
    g = R // c.patch
    x = t.call("patch_embed", patch_embed, pixels, N, R, c.width, c.patch)
    x = t.map("add", x, absolute_positions(t, g, c))
    for index in range(c.layers):
        x = t.again(
            f"blocks.{index}", sam_layer, x, N, g, c, _attention, c.mlp_ratio * c.width,
            is_global=index in c.global_attn_indexes,
        )  # fmt: skip
    x = t.call("neck", neck, x, N, g, c.width, c.neck, tuple("0123"), (_layer_norm_2d,) * 2)
    middle, out = c.downsample_channels
    halved = (g - 1) // 2 + 1
    x2 = t.call("net_2", conv2d, x, N, g, c.neck, middle, 3, stride=2, padding=1)
    x3 = t.call(
        "net_3", conv2d, t.move("clone", x2), N, halved, middle, out, 3, stride=2, padding=1
    )
    return t.hold(x3, x, x2)


def patch_embed(t: Tape, pixels: Operand, N: Size, R: int, d: Size, patch: int) -> Operand:
    """`[N, 3, R, R] -> [N, g, g, d]` (`PatchEmbed`), stored channel by channel."""
    return t.call("proj", conv2d, pixels, N, R, 3, d, patch, stride=patch, bias=True)


def absolute_positions(t: Tape, g: int, c: SamDimensions) -> Operand:
    """`[g, g, d]` (`get_abs_pos_sam`)."""
    side, d = c.image_size // c.patch, c.width
    abs_pos = t.weight(side * side * d, "pos_embed")
    if side == g:
        return abs_pos
    grid = t.cast(abs_pos, FLOAT32)
    return bicubic(t, grid, side, g, d)


# --- a block ---------------------------------------------------------------------------------


def sam_layer(
    t: Tape,
    x: Operand,
    N: Size,
    g: int,
    c: Any,
    attend: Callable[..., tuple[Operand, ...]],
    mlp_width: Size,
    act: str = "gelu",
    *,
    is_global: bool,
    norms: tuple[str, str] = ("norm1", "norm2"),
    copies: bool = False,
) -> Operand:
    """`y = x + attention(norm(x))`, `y + mlp(norm(y))` (`Block`).

    Args:
        t: The tape.
        x: `[N, g, g, d]`.
        N: Views.
        g: Patches per side.
        c: The encoder's dimensions.
        attend: Attention over N views or windows of g x g tokens; also returns what outlives it.
        mlp_width: Features of the MLP.
        act: Its activation.
        is_global: Whether views are not cut into windows.
        norms: Names of both norms.
        copies: Whether views are padded even by nothing.
    """
    n, d, W = N * g * g, c.width, c.window
    shortcut = x
    x = t.call(norms[0], layer_norm, x, n, d, channels_first=True)
    if is_global:
        x, *kept = t.call("attn", attend, x, N, g, c, True)
    else:
        windows = t.derived("ceil({} / {})", ceil_div, g, W)
        x = _window_partition(t, x, N, g, windows, W, d, copies=copies)
        x, *kept = t.call("attn", attend, x, N * windows**2, W, c, False)
        x = _window_unpartition(t, x, N, g, windows, W, d)
    x = t.map("add", shortcut, x)
    normed = t.call(norms[1], layer_norm, x, n, d, channels_first=True)
    output = t.call("mlp", mlp, normed, ("lin1", "act", "lin2"), (d, mlp_width, d), act)
    if kept:  # in transformers, which also has a name for what is normed
        kept.append(normed)
    del normed
    return t.hold(t.map("add", x, output), shortcut, *kept)


def _window_partition(
    t: Tape, x: Operand, N: Size, g: int, windows: int, window: int, d: int, *, copies: bool = False
) -> Operand:
    """`[N, g, g, d]`, padded with zeros, to `windows^2` windows of each view.

    Padding by nothing is left out unless it `copies`.
    """
    side = windows * window
    if side > g or copies:
        x = t.move("constant_pad_nd", x, n=N * side * side * d)
    return t.move("clone", x) if windows > 1 else x


def _window_unpartition(
    t: Tape, x: Operand, N: Size, g: int, windows: int, window: int, d: int
) -> Operand:
    """Windows to `[N, g, g, d]`, without the padding."""
    if windows > 1:
        x = t.move("clone", x)
    if windows * window > g:
        x = t.move("clone", t.view(x, N * g * g * d))
    return x


# --- attention with relative positions -------------------------------------------------------


def _attention(
    t: Tape, x: Operand, N: Size, g: int, c: SamDimensions, is_global: bool
) -> tuple[Operand, ...]:
    """`softmax(q k^T / sqrt(D) + q R_h + q R_w) v` over N views or windows (`Attention`).

    They have g x g tokens; tables of relative positions are made for the side of the table of
    positions, or of a window.
    """
    table_side = c.image_size // c.patch if is_global else c.window
    d, H, D, T = c.width, c.heads, c.width // c.heads, g * g
    fused = t.call("qkv", linear, x, N * T, d, 3 * d, bias=True)
    # Heads go next to the batch: a copy if there are several of both.
    qkv = t.move("clone", fused) if H > 1 and N > 1 else fused
    rows, columns = position_terms(t, t.view(qkv, N * T * d), N, g, c, 2 * table_side - 1)
    bias = t.map("add", rows, columns, n=N * H * T * T)
    shape = Attention(N, H, H, T, T, D, D, masked=True)
    attended = fused_attention(t, "scaled_dot_product_attention", shape, qkv, bias)
    output = t.call("proj", linear, attended, N * T, d, d, bias=True)
    return t.hold((output,), fused, qkv, rows, columns, bias)


def position_terms(
    t: Tape, q: Operand, N: Size, g: int, c: Any, length: int, *, of_transformers: bool = False
) -> tuple[Operand, ...]:
    """`q R_h` and `q R_w`, `[N, H, g g, g]` each (`add_decomposed_rel_pos`).

    A product copies the queries, for columns only if the heads are not next to the batch. Both are
    copied to the layout of the scores, or added (`get_decomposed_rel_pos` of transformers).
    """
    H, D = c.heads, c.width // c.heads
    is_many, is_strided = H > 1 or N > 1, H > 1 and not N > 1
    Rh, Rw = (
        _relative_positions(t, f"rel_pos_{side}", length, g, D, of_transformers=of_transformers)
        for side in "hw"
    )
    product = Gemm(g, N * g * H, g, D)
    rows = t.product("einsum", product, t.move("clone", q) if is_many else q, Rh)
    columns = t.product("einsum", product, t.move("clone", q) if is_strided else q, Rw)
    if of_transformers:
        return t.hold((t.map("add", rows, columns, n=N * H * g**4),), Rh, Rw)
    if is_many:
        rows = t.move("clone", rows)
    columns = t.move("clone", columns)
    return t.hold((rows, columns), Rh, Rw)


def _relative_positions(
    t: Tape, name: str, length: int, g: int, D: int, *, of_transformers: bool = False
) -> Operand:
    """`R[i, j] = table[i - j + g - 1]`, `[g, g, D]`, of a table of `length` rows (`get_rel_pos`).

    It is resampled in fp32 if need be, or in transformers always in its own type.
    """
    table: Operand = t.weight(length * D, name)
    if of_transformers or length != 2 * g - 1:
        columns = table if of_transformers else t.cast(table, FLOAT32)
        n = (2 * g - 1) * D
        table = interpolated(t, "upsample_linear1d", columns, n, 4 * n)  # 2 taps of 2 FLOPs
        t.hold(columns)
    queries = t.map("mul", t.move("arange", n=g, dtype=INT64), output=FLOAT32)
    keys = t.map("mul", t.move("arange", n=g, dtype=INT64), output=FLOAT32)
    distance = t.map("add", t.map("sub", queries, keys, n=g * g))
    return t.hold(
        t.gather("index", t.cast(distance, INT64), g * g * D, t.dtype),
        table,
        queries,
        keys,
        distance,
    )


# --- neck ------------------------------------------------------------------------------------


def neck(
    t: Tape,
    x: Operand,
    N: Size,
    g: int,
    d: Size,
    channels: Size,
    names: Sequence[str],
    norms: Sequence[Callable[[Tape, Operand, Size, Any], Operand]],
) -> Operand:
    """`[N, d, g, g] -> [N, channels, g, g]` by convolutions; `names` of each, and of its norm."""
    x = t.call(names[0], conv2d, x, N, g, d, channels, 1)
    x = t.call(names[1], norms[0], x, N * g * g, channels)
    x = t.call(names[2], conv2d, x, N, g, channels, channels, 3, padding=1)
    return t.call(names[3], norms[1], x, N * g * g, channels)


def _layer_norm_2d(t: Tape, x: Operand, pixels: Size, channels: int) -> Operand:
    """`(x - mean) / sqrt(var + eps) w + b` over channels, operator by operator (`LayerNorm2d`)."""
    u = t.reduce("mean", x, pixels, channels)
    s = t.reduce("mean", t.map("pow", t.map("sub", x, u)), pixels, channels)
    x = t.map("div", t.map("sub", x, u), t.map("sqrt", t.map("add", s)))
    return t.hold(
        t.map("add", t.map("mul", x, t.weight(channels)), t.weight(channels, "bias")), u, s, x
    )


# --- the projector ---------------------------------------------------------------------------


def projector(
    t: Tape,
    x: Operand,
    N: Size,
    q: int,
    c: ProjectorDimensions,
    *,
    are_apart: bool = False,
) -> Operand:
    """`[N, q q, d_in] -> [N, q q, n_embed]` (`MlpProjector`).

    If views `are_apart` in memory, a linear layer first copies those of several.
    """
    kind, n, d, widths = c.projector_type, N * q * q, c.input_channels, [c.n_embed] * c.depth
    is_many = q > 1 and N > 1
    are_apart = are_apart and is_many
    if kind.endswith("downsample_mlp_gelu"):  # cells of one token, stored channel by channel
        norm_first = kind.startswith("normlayer")
        inner = [c.n_embed * c.mlp_ratio] * max(c.depth - 1, 1)
        is_apart = is_many or (norm_first and q > 1)
        x = t.move("im2col", x)
        return t.call(
            "layers",
            _sequential,
            x,
            n,
            [d, *inner, c.n_embed],
            is_apart=is_apart,
            norm_first=norm_first,
        )
    if isinstance(c.input_dim, tuple):
        (high_in, low_in), high_out = c.input_dim, int(c.n_embed * c.channel_div)
        high, low, low_out = t.view(x, n * high_in), t.view(x, n * low_in), c.n_embed - high_out
        high_x = t.call("high_up_proj", _linear_of_parts, high, n, high_in, high_out, are_apart)
        low_x = t.call("low_up_proj", _linear_of_parts, low, n, low_in, low_out, are_apart)
        output = t.call("layers", _sequential, t.cat(high_x, low_x), n, widths, gelu_first=True)
        t.hold(high_x, low_x)
    elif kind == "mlp_gelu":
        output = t.call("layers", _sequential, x, n, [d, *widths], is_apart=are_apart)
    elif kind == "linear":
        output = t.call("layers", _linear_of_parts, x, n, d, c.n_embed, are_apart)
    else:
        output = t.call("layers", ACTIVATIONS["linear"], x)
    return output


def _sequential(
    t: Tape,
    x: Operand,
    n: Size,
    widths: Sequence[int],
    *,
    is_apart: bool = False,
    norm_first: bool = False,
    gelu_first: bool = False,
) -> Operand:
    """A `Sequential` of linear layers through `widths` with GELUs in between, on `[n, d]`.

    The first layer copies its input if that `is_apart`.
    """
    names = map(str, itertools.count())
    if norm_first:
        x = t.call(next(names), layer_norm, x, n, widths[0], channels_first=is_apart)
        is_apart = False
    for index, (d_in, d_out) in enumerate(itertools.pairwise(widths)):
        if index or gelu_first:
            x = t.call(next(names), ACTIVATIONS["gelu"], x)
        x = t.call(next(names), _linear_of_parts, x, n, d_in, d_out, is_apart and not index)
    return x


def _linear_of_parts(
    t: Tape, x: Operand, n: Size, d_in: int, d_out: int, is_apart: bool
) -> Operand:
    """A linear layer, which first copies rows that are not evenly spaced in memory."""
    return linear(t, t.move("clone", x) if is_apart else x, n, d_in, d_out, bias=True)
