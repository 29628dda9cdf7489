"""The vision side composed: SAM, CLIP and projector for N views of R x R pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsocr_analyze.costs.activations import gelu, quick_gelu
from dsocr_analyze.costs.conv2d import conv2d, conv2d_params, conv2d_side
from dsocr_analyze.costs.embedding import embedding, embedding_params
from dsocr_analyze.costs.integers import Count, ceil_div
from dsocr_analyze.costs.linear import linear, linear_params
from dsocr_analyze.costs.movement import addition, copy, moved
from dsocr_analyze.costs.normalization import layer_norm, layer_norm_2d, layer_norm_params
from dsocr_analyze.costs.position_table import bicubic_resize
from dsocr_analyze.costs.projector import projector
from dsocr_analyze.costs.sam_attention import (
    grid_attention,
    grid_attention_params,
    window_count,
    window_partition,
)
from dsocr_analyze.costs.sections import Section
from dsocr_analyze.costs.self_attention import self_attention, self_attention_params
from dsocr_analyze.costs.sums import ModuleWork, combined, scaled, under
from dsocr_analyze.model.stages import STAGE_PREFIXES
from dsocr_analyze.work import Work

if TYPE_CHECKING:
    from dsocr_analyze.model.dimensions import (
        ClipDimensions,
        ProjectorDimensions,
        SamDimensions,
    )

__all__ = [
    "clip_params",
    "clip_sections",
    "grid_side",
    "projector_sections",
    "sam_params",
    "sam_sections",
    "token_side",
]

_CHANNELS: Final = 3
_SAM: Final = STAGE_PREFIXES["sam"][0]
_CLIP: Final = STAGE_PREFIXES["clip"][0]
_PROJECTOR: Final = STAGE_PREFIXES["projector"][0]


def grid_side(R: Count, sam: SamDimensions) -> Count:
    """Patches g a side of a view of R pixels a side."""
    return R // sam.patch


def token_side(R: Count, sam: SamDimensions) -> Count:
    """Tokens q a side behind the two stride-2 convolutions: `ceil(g / 4)`."""
    return ceil_div(grid_side(R, sam), 4)


def sam_sections(N: Count, R: Count, sam: SamDimensions, element_bytes: int) -> list[Section]:
    """SAM's encoder (`ImageEncoderViT`) on `[N, 3, R, R]`.

    Args:
        N: Views.
        R: Pixels a side.
        sam: Dimensions.
        element_bytes: Bytes of a feature.
    """
    g = grid_side(R, sam)
    windowed = [index for index in range(sam.layers) if not sam.is_global(index)]
    whole = [index for index in range(sam.layers) if sam.is_global(index)]
    sections = [Section((_SAM,), _sam_frame(N, R, sam, element_bytes))]
    for indexes, is_global in ((windowed, False), (whole, True)):
        if indexes:
            paths = tuple(f"{_SAM}.blocks.{index}" for index in indexes)
            sections.append(Section(paths, _sam_block(N, g, sam, element_bytes, is_global)))
    return sections


def _sam_frame(N: Count, R: Count, sam: SamDimensions, element_bytes: int) -> ModuleWork:
    """Everything but the blocks: patches, positions, neck, the two stride-2 convolutions."""
    g = grid_side(R, sam)
    halved = conv2d_side(g, 3, 2, 1)
    features, positions = N * g * g * sam.width, g * g * sam.width
    positioned = Work(
        vector_flops=features,
        bytes_read=element_bytes * (features + positions),
        bytes_written=element_bytes * features,
    )
    middle, out = sam.downsample_channels
    neck = layer_norm_2d(N, sam.neck, g * g, element_bytes)
    return {
        "patch_embed.proj": conv2d(
            N, R, _CHANNELS, sam.width, sam.patch, element_bytes, stride=sam.patch, bias=True
        ),
        "": combined(
            (
                bicubic_resize(sam.position_grid, g, sam.width, element_bytes),
                positioned,
                copy(N * halved * halved * middle, element_bytes),
            )
        ),
        "neck.0": conv2d(N, g, sam.width, sam.neck, 1, element_bytes),
        "neck.1": neck,
        "neck.2": conv2d(N, g, sam.neck, sam.neck, 3, element_bytes, padding=1),
        "neck.3": neck,
        "net_2": conv2d(N, g, sam.neck, middle, 3, element_bytes, stride=2, padding=1),
        "net_3": conv2d(N, halved, middle, out, 3, element_bytes, stride=2, padding=1),
    }


def _sam_block(
    N: Count, g: Count, sam: SamDimensions, element_bytes: int, is_global: bool
) -> ModuleWork:
    """A pre-norm block: windows are padded, so attention runs on the padded tokens."""
    n, d = N * g * g, sam.width
    residuals = scaled(addition(n * d, element_bytes), 2)
    if is_global:
        own = residuals
        attention = grid_attention(N, g, d, sam.heads, 2 * sam.position_grid - 1, element_bytes)
    else:
        windows = window_count(g, sam.window)
        own = combined((window_partition(N, g, sam.window, d, element_bytes), residuals))
        attention = grid_attention(
            N * windows * windows, sam.window, d, sam.heads, 2 * sam.window - 1, element_bytes
        )
    norm = layer_norm(n, d, element_bytes)
    return {
        "norm1": norm,
        **under("attn", attention),
        "": own,
        "norm2": norm,
        "mlp.lin1": linear(n, d, sam.mlp, element_bytes, bias=True),
        "mlp.act": gelu(n * sam.mlp, element_bytes),
        "mlp.lin2": linear(n, sam.mlp, d, element_bytes, bias=True),
    }


def sam_params(sam: SamDimensions) -> int:
    """Parameters of SAM's encoder."""
    d, middle, out = sam.width, *sam.downsample_channels
    mlp = linear_params(d, sam.mlp, bias=True) + linear_params(sam.mlp, d, bias=True)
    blocks = sum(
        2 * layer_norm_params(d)
        + grid_attention_params(
            d,
            sam.heads,
            2 * (sam.position_grid if sam.is_global(index) else sam.window) - 1,
        )
        + mlp
        for index in range(sam.layers)
    )
    convolutions = (
        conv2d_params(_CHANNELS, d, sam.patch, bias=True)
        + conv2d_params(d, sam.neck, 1)
        + conv2d_params(sam.neck, sam.neck, 3)
        + conv2d_params(sam.neck, middle, 3)
        + conv2d_params(middle, out, 3)
    )
    return blocks + convolutions + sam.position_grid**2 * d + 2 * layer_norm_params(sam.neck)


def clip_sections(N: Count, q: Count, clip: ClipDimensions, element_bytes: int) -> list[Section]:
    """CLIP (`VitModel`) on SAM's features `[N, d, q, q]`; its own patch convolution never runs.

    Args:
        N: Views.
        q: Tokens a side.
        clip: Dimensions.
        element_bytes: Bytes of a feature.
    """
    d, T = clip.width, q * q + 1
    frame: ModuleWork = {
        "embeddings.position_embedding": embedding(clip.positions, d, element_bytes),
        "embeddings": _clip_embeddings(N, q, clip, element_bytes),
        "pre_layrnorm": layer_norm(N * T, d, element_bytes),
    }
    paths = tuple(f"{_CLIP}.transformer.layers.{index}" for index in range(clip.layers))
    norm = layer_norm(N * T, d, element_bytes)
    layer: ModuleWork = {
        "layer_norm1": norm,
        **under("self_attn", self_attention(N, T, d, clip.heads, element_bytes)),
        "": scaled(addition(N * T * d, element_bytes), 2),
        "layer_norm2": norm,
        "mlp.fc1": linear(N * T, d, clip.mlp, element_bytes, bias=True),
        "mlp": quick_gelu(N * T * clip.mlp, element_bytes),
        "mlp.fc2": linear(N * T, clip.mlp, d, element_bytes, bias=True),
    }
    return [Section((_CLIP,), frame), Section(paths, layer)]


def _clip_embeddings(N: Count, q: Count, clip: ClipDimensions, element_bytes: int) -> Work:
    """The class token put before the patches, the position table resized and added.

    Resizing copies the table channels first (more than one entry a side), and joins the class
    token's position again.
    """
    d, T = clip.width, q * q + 1
    side = _clip_position_side(clip)
    patches = N * q * q * d
    classed = moved(element_bytes * (patches + d), element_bytes * N * T * d)
    reordered = copy(side * side * d if side > 1 else 0, element_bytes)
    resized = scaled(combined((reordered, copy(T * d, element_bytes))), 1 * (q != side))
    positioned = Work(
        vector_flops=N * T * d,
        bytes_read=element_bytes * (N * T * d + T * d),
        bytes_written=element_bytes * N * T * d,
    )
    return combined((classed, bicubic_resize(side, q, d, element_bytes), resized, positioned))


def _clip_position_side(clip: ClipDimensions) -> int:
    return clip.image_size // clip.patch_size


def clip_params(clip: ClipDimensions) -> int:
    """Parameters of CLIP, the patch convolution that never runs included."""
    d = clip.width
    layer = (
        2 * layer_norm_params(d)
        + self_attention_params(d)
        + linear_params(d, clip.mlp, bias=True)
        + linear_params(clip.mlp, d, bias=True)
    )
    return (
        d
        + conv2d_params(_CHANNELS, d, clip.patch_size)
        + embedding_params(clip.positions, d)
        + layer_norm_params(d)
        + clip.layers * layer
    )


def projector_sections(
    N: Count, q: Count, dimensions: ProjectorDimensions, element_bytes: int
) -> list[Section]:
    """The projector on `[N, q q, d_in]`.

    Args:
        N: Views.
        q: Tokens a side.
        dimensions: Variant and widths.
        element_bytes: Bytes of a feature.
    """
    return [Section((_PROJECTOR,), projector(N, q, dimensions, element_bytes))]
