"""The projector from the encoders' features to the decoder's width, in all of its variants.

Source: `MlpProjector` (`deepencoder.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from dsocr_analyze.costs.activations import gelu
from dsocr_analyze.costs.integers import Count, ceil_div
from dsocr_analyze.costs.linear import linear, linear_params
from dsocr_analyze.costs.movement import addition, copy, moved
from dsocr_analyze.costs.normalization import layer_norm, layer_norm_params
from dsocr_analyze.costs.sums import ModuleWork, combined, joined, scaled, under

if TYPE_CHECKING:
    from dsocr_analyze.model.dimensions import ProjectorDimensions

__all__ = ["projector", "projector_params", "projector_side"]


def projector_side(g: Count, dimensions: ProjectorDimensions) -> Count:
    """Tokens a side that come out for g coming in: fewer after pooling or downsampling."""
    if dimensions.token_pooling:
        g = g // 2
    return ceil_div(g, dimensions.downsample_ratio)


def projector(
    N: Count, g: Count, dimensions: ProjectorDimensions, element_bytes: int
) -> ModuleWork:
    """`[N, g g, d_in] -> [N, g' g', n_embed]`; a pair of maps for the `low_high_*` variants.

    Args:
        N: Views.
        g: Tokens a side of a view.
        dimensions: Variant and widths.
        element_bytes: Bytes of a feature.

    Returns:
        Own work and that of the children, under the vendor's names.
    """
    pooled: ModuleWork = {}
    if dimensions.token_pooling:
        pooled = _token_pooling(N, g, dimensions.input_channels, element_bytes)
        g = g // 2
    fused: ModuleWork = {}
    if dimensions.conv_fusion:
        d = dimensions.input_channels
        fused = {
            "fusion_layer": linear(N * g * g, d, d, element_bytes, bias=True),
            "": addition(N * g * g * d, element_bytes),
        }
    return joined(pooled, fused, _variant(N, g, dimensions, element_bytes))


def _variant(N: Count, g: Count, dimensions: ProjectorDimensions, element_bytes: int) -> ModuleWork:
    """The variant itself, behind pooling and fusion."""
    kind, width = dimensions.projector_type, dimensions.n_embed
    n = N * g * g
    if kind == "identity":
        return {}
    if kind == "linear":
        d_in = dimensions.input_channels
        return {"layers": linear(n, d_in, width, element_bytes, bias=True)}
    if kind == "mlp_gelu":
        widths = [dimensions.input_channels, *[width] * dimensions.depth]
        return under("layers", _mlp(n, widths, 0, element_bytes))
    if kind == "low_high_split_mlp_gelu":
        halves = _mlp(n, [width // 2] * dimensions.depth, 0, element_bytes, gelu_first=True)
        return (
            under("high_layers", halves)
            | under("low_layers", halves)
            | {"": copy(n * width, element_bytes)}
        )
    if kind.endswith("downsample_mlp_gelu"):
        return _downsampled(N, g, dimensions, element_bytes)
    modules: ModuleWork = {
        f"{name}_up_proj": linear(n, d_in, d_out, element_bytes, bias=True)
        for name, d_in, d_out in _up_projections(dimensions)
    }
    modules[""] = copy(n * width, element_bytes)
    behind = _mlp(n, [width] * dimensions.depth, 0, element_bytes, gelu_first=True)
    return modules | under("layers", behind)


def _up_projections(dimensions: ProjectorDimensions) -> list[tuple[str, int, int]]:
    """Name, width in and width out of the two maps' projections."""
    width = dimensions.n_embed
    if isinstance(dimensions.input_dim, tuple):
        high_in, low_in = dimensions.input_dim
        high_out = int(width * dimensions.channel_div)
        return [("high", high_in, high_out), ("low", low_in, width - high_out)]
    return [(name, dimensions.input_dim, width // 2) for name in ("high", "low")]


def _mlp(
    n: Count,
    widths: Sequence[int],
    first: int,
    element_bytes: int,
    *,
    gelu_first: bool = False,
) -> ModuleWork:
    """Linears through `widths` with a GELU between (or before) them, numbered from `first`."""
    modules: ModuleWork = {}
    for index, (d_in, d_out) in enumerate(pairwise(widths)):
        if index or gelu_first:
            modules[str(first)] = gelu(n * d_in, element_bytes)
            first += 1
        modules[str(first)] = linear(n, d_in, d_out, element_bytes, bias=True)
        first += 1
    return modules


def _token_pooling(N: Count, g: Count, d: int, element_bytes: int) -> ModuleWork:
    """2 x 2 neighbours into one token: two copies, then a linear 4 d -> d."""
    side = g // 2
    cells = N * side * side
    return {
        "": scaled(copy(4 * cells * d, element_bytes), 1 + (side > 1)),
        "token_pooling_layer": linear(cells, 4 * d, d, element_bytes, bias=True),
    }


def _gathered(dimensions: ProjectorDimensions) -> int:
    """Features of ratio x ratio tokens together."""
    return dimensions.input_channels * dimensions.downsample_ratio**2


def _downsampled_widths(dimensions: ProjectorDimensions) -> list[int]:
    inner = dimensions.n_embed * dimensions.mlp_ratio
    hidden = [inner] * max(dimensions.depth - 1, 1)
    return [_gathered(dimensions), *hidden, dimensions.n_embed]


def _downsampled(
    N: Count, g: Count, dimensions: ProjectorDimensions, element_bytes: int
) -> ModuleWork:
    """ratio x ratio tokens side by side (zero-padded to whole cells), then an MLP."""
    d = dimensions.input_channels
    cells = ceil_div(g, dimensions.downsample_ratio)
    side = cells * dimensions.downsample_ratio
    inner, padded = N * g * g * d, N * side * side * d
    padding = scaled(moved(element_bytes * inner, element_bytes * padded), 1 * (side != g))
    n = N * cells * cells
    modules: ModuleWork = {"": combined((padding, copy(padded, element_bytes)))}
    first = 0
    if dimensions.projector_type.startswith("normlayer"):
        modules["layers.0"] = layer_norm(n, _gathered(dimensions), element_bytes)
        first = 1
    mlp = _mlp(n, _downsampled_widths(dimensions), first, element_bytes)
    return modules | under("layers", mlp)


def projector_params(dimensions: ProjectorDimensions) -> int:
    """Parameters of the variant, each once, and of pooling and fusion."""
    kind, width, depth = dimensions.projector_type, dimensions.n_embed, dimensions.depth
    d_in = dimensions.input_channels
    params = linear_params(4 * d_in, d_in, bias=True) if dimensions.token_pooling else 0
    if dimensions.conv_fusion:
        params += linear_params(d_in, d_in, bias=True)
    if kind == "identity":
        return params
    if kind == "linear":
        widths = [d_in, width]
    elif kind == "mlp_gelu":
        widths = [d_in, *[width] * depth]
    elif kind == "low_high_split_mlp_gelu":
        return params + 2 * (depth - 1) * linear_params(width // 2, width // 2, bias=True)
    elif kind.endswith("downsample_mlp_gelu"):
        widths = _downsampled_widths(dimensions)
        if kind.startswith("normlayer"):
            params += layer_norm_params(widths[0])
    else:
        widths = [width] * depth
        params += sum(
            linear_params(wide_in, wide_out, bias=True)
            for _, wide_in, wide_out in _up_projections(dimensions)
        )
    return params + sum(
        linear_params(wide_in, wide_out, bias=True) for wide_in, wide_out in pairwise(widths)
    )
