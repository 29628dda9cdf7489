"""The vision side composed: SAM, CLIP and projector for N views of R x R pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures.ocr_family.stages import CLIP, SAM
from dsocr_analyze.costs.activations import gelu, quick_gelu
from dsocr_analyze.costs.conv2d import conv2d, conv2d_side
from dsocr_analyze.costs.embedding import embedding
from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.normalization import layer_norm, layer_norm_2d
from dsocr_analyze.costs.operators import Kernels, addition, copy, elementwise, moved
from dsocr_analyze.costs.position_table import bicubic_resize
from dsocr_analyze.costs.sam_attention import (
    grid_attention,
    window_count,
    window_partition,
)
from dsocr_analyze.costs.sections import Section
from dsocr_analyze.costs.self_attention import self_attention
from dsocr_analyze.costs.sums import ModuleKernels, repeated, under
from dsocr_analyze.dtypes import Dtype

if TYPE_CHECKING:
    from dsocr_analyze.architectures.ocr_family.dimensions import (
        ClipDimensions,
        SamDimensions,
    )

__all__ = ["clip_sections", "sam_sections"]

_CHANNELS: Final = 3
_SAM: Final = SAM.prefixes[0]
_CLIP: Final = CLIP.prefixes[0]


def grid_side(R: Count, sam: SamDimensions) -> Count:
    """Patches g per side of a view of R pixels per side."""
    return R // sam.patch


def sam_sections(N: Count, R: Count, sam: SamDimensions, dtype: Dtype) -> list[Section]:
    """SAM's encoder (`ImageEncoderViT`) on `[N, 3, R, R]`.

    Args:
        N: Views.
        R: Pixels per side.
        sam: Dimensions.
        dtype: Type of pixels, features and weights.
    """
    g = grid_side(R, sam)
    windowed = [index for index in range(sam.layers) if not sam.is_global(index)]
    whole = [index for index in range(sam.layers) if sam.is_global(index)]
    sections = [Section((_SAM,), _sam_frame(N, R, sam, dtype))]
    for indexes, is_global in ((windowed, False), (whole, True)):
        if indexes:
            paths = tuple(f"{_SAM}.blocks.{index}" for index in indexes)
            sections.append(Section(paths, _sam_block(N, g, sam, dtype, is_global)))
    return sections


def _sam_frame(N: Count, R: Count, sam: SamDimensions, dtype: Dtype) -> ModuleKernels:
    """Everything except the blocks: patches, positions, neck, the two stride-2 convolutions."""
    g = grid_side(R, sam)
    halved = conv2d_side(g, 3, 2, 1)
    features, positions = N * g * g * sam.width, g * g * sam.width
    middle, out = sam.downsample_channels
    norm = layer_norm_2d(N, sam.neck, g * g, dtype)
    return {
        "": (
            *bicubic_resize(sam.position_grid, g, sam.width, dtype),
            *elementwise("add", features, dtype, read=dtype.nbytes * (features + positions)),
            *copy("clone", N * halved * halved * middle, dtype),
        ),
        "patch_embed": (),
        "patch_embed.proj": conv2d(
            N, R, _CHANNELS, sam.width, sam.patch, dtype, stride=sam.patch, bias=True
        ),
        "neck": (),
        "neck.0": conv2d(N, g, sam.width, sam.neck, 1, dtype),
        "neck.1": norm,
        "neck.2": conv2d(N, g, sam.neck, sam.neck, 3, dtype, padding=1),
        "neck.3": norm,
        "net_2": conv2d(N, g, sam.neck, middle, 3, dtype, stride=2, padding=1),
        "net_3": conv2d(N, halved, middle, out, 3, dtype, stride=2, padding=1),
    }


def _sam_block(
    N: Count, g: Count, sam: SamDimensions, dtype: Dtype, is_global: bool
) -> ModuleKernels:
    """A pre-norm block: windows are padded, so attention runs on the padded tokens."""
    n, d = N * g * g, sam.width
    whole, cut = 2 * sam.position_grid - 1, 2 * sam.window - 1
    residual = addition(n * d, dtype)
    windowing: Kernels = ()
    if is_global:
        attention = grid_attention(N, g, d, sam.heads, whole, dtype)
    else:
        windowing = window_partition(N, g, sam.window, d, dtype)
        windows = N * window_count(g, sam.window) ** 2
        attention = grid_attention(windows, sam.window, d, sam.heads, cut, dtype)
    # The stream has the layout written by the patch convolution.
    norm = layer_norm(n, d, dtype, channels_first=True)
    return {
        "": (*windowing, *residual, *residual),
        "norm1": norm,
        **under("attn", attention),
        "norm2": norm,
        "mlp": (),
        "mlp.lin1": linear(n, d, sam.mlp, dtype, bias=True),
        "mlp.act": gelu(n * sam.mlp, dtype),
        "mlp.lin2": linear(n, sam.mlp, d, dtype, bias=True),
    }


def clip_sections(N: Count, q: Count, clip: ClipDimensions, dtype: Dtype) -> list[Section]:
    """CLIP (`VitModel`) on SAM's features `[N, d, q, q]`; its own patch convolution never runs.

    Args:
        N: Views.
        q: Tokens per side.
        clip: Dimensions.
        dtype: Type of features and weights.
    """
    d, T = clip.width, q * q + 1
    norm, residual = layer_norm(N * T, d, dtype), addition(N * T * d, dtype)
    frame: ModuleKernels = {
        "": (),
        "embeddings": _clip_embeddings(N, q, clip, dtype),
        "embeddings.position_embedding": embedding(clip.positions, d, dtype),
        "pre_layrnorm": norm,
        "transformer": (),
    }
    layer: ModuleKernels = {
        "": (*residual, *residual),
        "layer_norm1": norm,
        **under("self_attn", self_attention(N, T, d, clip.heads, dtype)),
        "layer_norm2": norm,
        "mlp": quick_gelu(N * T * clip.mlp, dtype),
        "mlp.fc1": linear(N * T, d, clip.mlp, dtype, bias=True),
        "mlp.fc2": linear(N * T, clip.mlp, d, dtype, bias=True),
    }
    paths = tuple(f"{_CLIP}.transformer.layers.{index}" for index in range(clip.layers))
    return [Section((_CLIP,), frame), Section(paths, layer)]


def _clip_embeddings(N: Count, q: Count, clip: ClipDimensions, dtype: Dtype) -> Kernels:
    """Puts the class token before the patches, and resizes and adds the position table.

    Resizing copies the table to channels-first (if it has more than one entry per side), and
    prepends the class token's position again.
    """
    d, T = clip.width, q * q + 1
    side = _clip_position_side(clip)
    tokens = N * T * d
    patches_and_class = dtype.nbytes * (N * q * q * d + d)
    is_resized = 1 * (q != side)
    channels_first = copy("clone", side * side * d, dtype) if side > 1 else ()
    return (
        *moved("cat", tokens, patches_and_class, dtype.nbytes * tokens, dtype),
        *repeated(channels_first, is_resized),
        *bicubic_resize(side, q, d, dtype),
        *repeated(copy("cat", T * d, dtype), is_resized),
        *elementwise("add", tokens, dtype, read=dtype.nbytes * (tokens + T * d)),
    )


def _clip_position_side(clip: ClipDimensions) -> int:
    return clip.image_size // clip.patch_size
