"""All variants of the projector from the encoders' features to the decoder's width.

Source: `MlpProjector` (`deepencoder.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from dsocr_analyze.costs.activations import gelu
from dsocr_analyze.costs.integers import Count, several
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.normalization import layer_norm
from dsocr_analyze.costs.operators import Kernels, addition, copy, moved
from dsocr_analyze.costs.sums import ModuleKernels, joined, repeated, under
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.tape.integers import ceil_div

if TYPE_CHECKING:
    from dsocr_analyze.architectures.ocr_family.dimensions import ProjectorDimensions

__all__ = ["projector"]


def projector(
    N: Count,
    g: Count,
    dimensions: ProjectorDimensions,
    dtype: Dtype,
    *,
    are_apart: bool = False,
) -> ModuleKernels:
    """`[N, g g, d_in] -> [N, g' g', n_embed]`; a pair of maps for the `low_high_*` variants.

    Args:
        N: Views.
        g: Tokens per side of a view.
        dimensions: Variant and widths.
        dtype: Type of features and weights.
        are_apart: Whether views are slices of longer sequences in memory; a linear layer first
            copies those of several views.

    Returns:
        Own kernels and those of the children, under the vendor's names.
    """
    parts: list[ModuleKernels] = [{"": ()}]
    d = dimensions.input_channels
    if dimensions.token_pooling:
        parts.append(_token_pooling(N, g, d, dtype))
        g = g // 2
    n = N * g * g
    if dimensions.conv_fusion:
        # One map of each view's pair; with several views they are not contiguous.
        gathered = repeated(copy("clone", n * d, dtype), several(N) * several(g))
        fusion_layer = linear(n, d, d, dtype, bias=True)
        parts.append({"fusion_layer": gathered + fusion_layer, "": addition(n * d, dtype)})
    if dimensions.projector_type.endswith("downsample_mlp_gelu"):
        parts.append(_downsampled(N, g, dimensions, dtype))
    else:
        copies = several(N) * 1 if are_apart else 0
        parts.append(_per_token(n, dimensions, dtype, copies))
    return joined(*parts)


def _per_token(
    n: Count, dimensions: ProjectorDimensions, dtype: Dtype, copies: Count
) -> ModuleKernels:
    """The variants that process each of n tokens independently, after pooling and fusion.

    Args:
        n: Tokens.
        dimensions: Variant and widths.
        dtype: Type of features and weights.
        copies: 1 if a linear layer first copies the input, otherwise 0.
    """
    kind, width = dimensions.projector_type, dimensions.n_embed
    if kind == "identity":
        return {"layers": ()}
    if kind == "linear":
        d = dimensions.input_channels
        laid_out = repeated(copy("clone", n * d, dtype), copies)
        return {"layers": laid_out + linear(n, d, width, dtype, bias=True)}
    if kind == "mlp_gelu":
        widths = [dimensions.input_channels, *[width] * dimensions.depth]
        laid_out = repeated(copy("clone", n * widths[0], dtype), copies)
        return under("layers", _mlp(n, widths, dtype, laid_out=laid_out))
    concatenated = copy("cat", n * width, dtype)
    if kind == "low_high_split_mlp_gelu":
        halves = _mlp(n, [width // 2] * dimensions.depth, dtype, gelu_first=True)
        return {
            **under("high_layers", halves),
            **under("low_layers", halves),
            "": concatenated,
        }
    projections = {
        f"{name}_up_proj": repeated(copy("clone", n * d_in, dtype), copies)
        + linear(n, d_in, d_out, dtype, bias=True)
        for name, d_in, d_out in _up_projections(dimensions)
    }
    behind = _mlp(n, [width] * dimensions.depth, dtype, gelu_first=True)
    return {**projections, "": concatenated, **under("layers", behind)}


def _up_projections(dimensions: ProjectorDimensions) -> list[tuple[str, int, int]]:
    """Name, input width and output width of the two maps' projections."""
    width = dimensions.n_embed
    if isinstance(dimensions.input_dim, tuple):
        high_in, low_in = dimensions.input_dim
        high_out = int(width * dimensions.channel_div)
        return [("high", high_in, high_out), ("low", low_in, width - high_out)]
    return [(name, dimensions.input_dim, width // 2) for name in ("high", "low")]


def _mlp(
    n: Count,
    widths: Sequence[int],
    dtype: Dtype,
    *,
    laid_out: Kernels = (),
    norm_first: bool = False,
    gelu_first: bool = False,
) -> ModuleKernels:
    """A `Sequential` of linear layers through `widths` with GELUs in between.

    Args:
        n: Tokens.
        widths: Features in, between and out.
        dtype: Type of features and weights.
        laid_out: Copy of the input made by the first layer.
        norm_first: Whether a LayerNorm precedes them.
        gelu_first: Whether a GELU precedes them.
    """
    children: list[Kernels] = []
    if norm_first:
        children.append(layer_norm(n, widths[0], dtype))
    for index, (d_in, d_out) in enumerate(pairwise(widths)):
        if index or gelu_first:
            children.append(gelu(n * d_in, dtype))
        children.append(linear(n, d_in, d_out, dtype, bias=True))
    if children:
        children[0] = laid_out + children[0]
    return {"": (), **{str(index): kernels for index, kernels in enumerate(children)}}


def _token_pooling(N: Count, g: Count, d: int, dtype: Dtype) -> ModuleKernels:
    """Merges 2 x 2 neighbours into one token: two copies, then a linear 4 d -> d."""
    side = g // 2
    cells = N * side * side
    return {
        "": repeated(copy("clone", 4 * cells * d, dtype), 1 + (side > 1)),
        "token_pooling_layer": linear(cells, 4 * d, d, dtype, bias=True),
    }


def _gathered(dimensions: ProjectorDimensions) -> int:
    """Features of ratio x ratio tokens together."""
    return dimensions.input_channels * dimensions.downsample_ratio**2


def _downsampled_widths(dimensions: ProjectorDimensions) -> list[int]:
    inner = dimensions.n_embed * dimensions.mlp_ratio
    hidden = [inner] * max(dimensions.depth - 1, 1)
    return [_gathered(dimensions), *hidden, dimensions.n_embed]


def _downsampled(
    N: Count, g: Count, dimensions: ProjectorDimensions, dtype: Dtype
) -> ModuleKernels:
    """Concatenates ratio x ratio tokens (zero-padded to whole cells), then applies an MLP."""
    d = dimensions.input_channels
    cells = ceil_div(g, dimensions.downsample_ratio)
    side = cells * dimensions.downsample_ratio
    inner, padded = N * g * g * d, N * side * side * d
    padding = moved("constant_pad_nd", padded, inner * dtype.nbytes, padded * dtype.nbytes, dtype)
    norm_first = dimensions.projector_type.startswith("normlayer")
    # Cells are stored channel by channel: a norm copies them, a linear only those of several views.
    is_copied = several(cells) * (1 if norm_first else several(N))
    mlp = _mlp(
        N * cells * cells,
        _downsampled_widths(dimensions),
        dtype,
        laid_out=repeated(copy("clone", padded, dtype), is_copied),
        norm_first=norm_first,
    )
    return {
        "": (*repeated(padding, 1 * (side != g)), *copy("im2col", padded, dtype)),
        **under("layers", mlp),
    }
