"""The projector from the encoders' features to the decoder's width.

Source: `MlpProjector` (`deepencoder.py`), in whose order operators and names stand. Variants that
join feature maps or merge tokens fit no model of the family, so `check_projector` refuses them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dsocr_analyze.architectures.ocr_family.dimensions import ProjectorDimensions
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.tape.modules import ACTIVATIONS, layer_norm, linear

__all__ = ["projector"]


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
            "layers", _mlp, x, n, [d, *inner, c.n_embed], is_apart=is_apart, norm_first=norm_first
        )
    if isinstance(c.input_dim, tuple):
        (high_in, low_in), high_out = c.input_dim, int(c.n_embed * c.channel_div)
        high, low, low_out = t.view(x, n * high_in), t.view(x, n * low_in), c.n_embed - high_out
        high_x = t.call("high_up_proj", _linear, high, n, high_in, high_out, are_apart)
        low_x = t.call("low_up_proj", _linear, low, n, low_in, low_out, are_apart)
        output = t.call("layers", _mlp, t.cat(high_x, low_x), n, widths, gelu_first=True)
        t.hold(high_x, low_x)
    elif kind == "mlp_gelu":
        output = t.call("layers", _mlp, x, n, [d, *widths], is_apart=are_apart)
    elif kind == "linear":
        output = t.call("layers", _linear, x, n, d, c.n_embed, are_apart)
    else:
        output = t.call("layers", ACTIVATIONS["linear"], x)
    return output


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
