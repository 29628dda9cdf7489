"""The projector from the encoders' features to the decoder's width, in all its variants.

Source: `MlpProjector` (`deepencoder.py`), in whose order operators and names stand.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from dsocr_analyze.architectures.ocr_family.dimensions import ProjectorDimensions
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.tape.modules import ACTIVATIONS, layer_norm, linear

__all__ = ["projector"]


def projector(
    t: Tape,
    x: Any,
    N: Size,
    q: int,
    c: ProjectorDimensions,
    *,
    are_apart: bool = False,
) -> Operand:
    """`[N, q q, d_in] -> [N, q' q', n_embed]` (`MlpProjector`).

    With `conv_fusion`, from `[N, 2, q q, d_in]`; for the `low_high_*` variants, from a pair of
    maps. If views `are_apart` in memory, a linear layer first copies those of several.
    """
    kind, d, widths = c.projector_type, c.input_channels, [c.n_embed] * c.depth
    if c.token_pooling:
        q = q // 2
        patches = _patches(t, x, N * q * q * 4 * d, q)  # alive to the end, as in the vendor's code
        x = t.call("token_pooling_layer", linear, patches, N * q * q, 4 * d, d, bias=True)
    n, is_many = N * q * q, q > 1 and N > 1
    if c.conv_fusion:
        high, low = t.view(x, n * d), t.view(x, n * d)
        x = t.map("add", t.call("fusion_layer", _linear, high, n, d, d, is_many), low)
    are_apart = are_apart and is_many and not (c.token_pooling or c.conv_fusion)
    if kind == "low_high_split_mlp_gelu":
        halves = [c.n_embed // 2] * c.depth
        high_x = t.call("high_layers", _mlp, x[0], n, halves, gelu_first=True)
        low_x = t.call("low_layers", _mlp, x[1], n, halves, gelu_first=True)
        return t.cat(high_x, low_x)
    if kind.endswith("downsample_mlp_gelu"):
        x = _grid(t, x, N, q, c)
        x = t.move("im2col", x)
        return _downsampled(t, x, N, q, c)
    if "split" in kind:
        high_x, low_x = _up_projections(t, x, n, c, are_apart)
        x = t.cat(high_x, low_x)
        output = t.call("layers", _mlp, x, n, widths, gelu_first=True)
        t.hold(high_x, low_x)
    elif kind == "mlp_gelu":
        output = t.call("layers", _mlp, x, n, [d, *widths], is_apart=are_apart)
    elif kind == "linear":
        output = t.call("layers", _linear, x, n, d, c.n_embed, are_apart)
    else:
        output = t.call("layers", _identity, x)
    return output


def _patches(t: Tape, x: Operand, n: Size, side: int) -> Operand:
    """2 x 2 neighbours concatenated, n elements: channels first, then cells first."""
    patches = t.move("clone", t.view(x, n))
    return t.move("clone", patches) if side > 1 else patches


def _up_projections(
    t: Tape, x: Any, n: Size, c: ProjectorDimensions, are_apart: bool
) -> tuple[Operand, Operand]:
    """Both feature maps at their share of `n_embed`."""
    if isinstance(c.input_dim, tuple):
        high_in, low_in = c.input_dim
        high_out = int(c.n_embed * c.channel_div)
        x = t.view(x, n * high_in), t.view(x, n * low_in)
    else:
        high_in = low_in = c.input_dim
        high_out = c.n_embed // 2
    low_out = c.n_embed - high_out
    high_x = t.call("high_up_proj", _linear, x[0], n, high_in, high_out, are_apart)
    low_x = t.call("low_up_proj", _linear, x[1], n, low_in, low_out, are_apart)
    return high_x, low_x


def _grid(t: Tape, x: Operand, N: Size, q: int, c: ProjectorDimensions) -> Operand:
    """`[N, q q, d]` padded with zeros to whole cells."""
    side = q + -q % c.downsample_ratio
    if side > q:
        x = t.move("constant_pad_nd", x, n=N * side * side * c.input_channels)
    return x


def _downsampled(t: Tape, x: Operand, N: Size, q: int, c: ProjectorDimensions) -> Operand:
    """The layers on cells of ratio x ratio tokens, stored channel by channel.

    A norm copies them; a linear layer those of several views.
    """
    cells, inner = -(-q // c.downsample_ratio), c.n_embed * c.mlp_ratio
    gathered = c.input_channels * c.downsample_ratio**2
    widths = [gathered, *[inner] * max(c.depth - 1, 1), c.n_embed]
    norm_first = c.projector_type.startswith("normlayer")
    return t.call(
        "layers",
        _mlp,
        x,
        N * cells * cells,
        widths,
        is_apart=cells > 1 and (norm_first or N > 1),
        norm_first=norm_first,
    )


def _mlp(
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
        x = t.call(next(names), _linear, x, n, d_in, d_out, is_apart and not index)
    return x


def _linear(t: Tape, x: Operand, n: Size, d_in: int, d_out: int, is_apart: bool) -> Operand:
    """A linear layer, which first copies rows that are not evenly spaced in memory."""
    return linear(t, t.move("clone", x) if is_apart else x, n, d_in, d_out, bias=True)


def _identity(t: Tape, x: Operand) -> Operand:
    return x
