"""Lifetimes of the vision side's tensors: SAM, CLIP and projector, replayed for N views.

Each function replays one forward of the vendor's files, in order and with its local variables: a
tensor lives until the function returns if a name still refers to it. Equal blocks are replayed
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from dsocr_analyze.architectures.ocr_family.stages import CLIP, PROJECTOR, SAM
from dsocr_analyze.architectures.ocr_family.vision import grid_side, token_side
from dsocr_analyze.costs.conv2d import conv2d_side
from dsocr_analyze.costs.sam_attention import window_count
from dsocr_analyze.dtypes import FLOAT32, INT64
from dsocr_analyze.scratch import (
    antialiased_scratch,
    attention_scratch,
    convolution_scratch,
    mean_scratch,
)

if TYPE_CHECKING:
    from dsocr_analyze.architectures.ocr_family.dimensions import (
        ClipDimensions,
        ModelDimensions,
        ProjectorDimensions,
        SamDimensions,
    )
    from dsocr_analyze.costs.lifetimes import Lifetimes
    from dsocr_analyze.workload import ViewBatch

__all__ = ["NO_FEATURES", "ViewFeatures", "replay_projector", "replay_sam", "replay_views"]

_CHANNELS: Final = 3
_FP32: Final = FLOAT32.nbytes
_SAM, _CLIP, _PROJECTOR = SAM.prefixes[0], CLIP.prefixes[0], PROJECTOR.prefixes[0]


class ViewFeatures(NamedTuple):
    """Bytes left by views, each under a name that the next page's views replace."""

    spatial: int
    """SAM's features."""
    semantic: int
    """The second encoder's features; 0 without one."""
    tokens: int
    """Projected features, finally laid out as tokens."""


NO_FEATURES: Final = ViewFeatures(0, 0, 0)


def replay_views(
    lives: Lifetimes,
    view: ViewBatch,
    dimensions: ModelDimensions,
    before: ViewFeatures = NO_FEATURES,
) -> ViewFeatures:
    """SAM, CLIP and projector on N views.

    Args:
        lives: The tensors alive.
        view: The views.
        dimensions: The model.
        before: What the previous page's views left, freed name by name.
    """
    sam, clip = dimensions.sam, dimensions.clip
    N, q = view.count, token_side(view.resolution, sam)
    spatial = replay_sam(lives, N, view.resolution, sam)
    lives.free(before.spatial)
    semantic = _clip(lives, N, q, clip)
    lives.free(before.semantic)
    lives.path = "model"
    joined = lives.features(N * q * q * (sam.out_channels + clip.width))
    lives.free(before.tokens)
    projected = replay_projector(lives, N * q * q, dimensions.projector)
    lives.free(joined)
    return ViewFeatures(spatial, semantic, projected)


def replay_projector(
    lives: Lifetimes, tokens: int, projector: ProjectorDimensions, *, is_copied: bool = False
) -> int:
    """The projector's linear layers; each tensor of an MLP is freed once the next exists."""
    lives.path = f"{_PROJECTOR}.layers"
    copied = lives.features(tokens * projector.input_channels) if is_copied else 0
    output = lives.linear(tokens, projector.input_channels, projector.n_embed)
    lives.free(copied)
    if projector.projector_type == "linear":
        return output
    activated = lives.features(tokens * projector.n_embed)
    lives.free(output)
    return activated


# --- SAM -------------------------------------------------------------------------------------


def replay_sam(lives: Lifetimes, N: int, R: int, sam: SamDimensions) -> int:
    """SAM on `[N, 3, R, R]`; returns the bytes of its features."""
    g = grid_side(R, sam)
    n = N * g * g
    lives.path = f"{_SAM}.patch_embed.proj"
    x = _convolution(lives, N, _CHANNELS, R, sam.width, g, sam.patch)
    lives.path = _SAM
    table = _sam_positions(lives, g, sam)
    added = lives.features(n * sam.width)
    lives.free(x, table)
    windowed = [index for index in range(sam.layers) if not sam.is_global(index)]
    for index in (*windowed[:1], *sam.global_attn_indexes[:1]):
        _sam_block(lives, N, g, sam, index)
    return _sam_neck(lives, N, g, sam, added)


def _sam_positions(lives: Lifetimes, g: int, sam: SamDimensions) -> int:
    """The table of positions, resized in fp32; returns the resized table's size, 0 if it fits."""
    side, d = sam.position_grid, sam.width
    if g == side:
        return 0
    source = lives.widened(side * side * d)
    resized = lives.make(_FP32 * g * g * d, scratch=_resize(lives, side, g, d))
    cast = lives.narrowed(g * g * d)
    lives.free(source)
    if cast:
        lives.free(resized)
    return cast or resized


def _sam_block(lives: Lifetimes, N: int, g: int, sam: SamDimensions, index: int) -> None:
    """A block, whose input its caller holds."""
    path, d, n = f"{_SAM}.blocks.{index}", sam.width, N * g * g
    lives.path = f"{path}.norm1"
    x = lives.layer_norm(n, d, channels_first=True)
    if sam.is_global(index):
        x = _grid_attention(lives, f"{path}.attn", N, g, sam, x)
    else:
        x = _windowed_attention(lives, path, N, g, sam, x)
    lives.path = path
    stream = lives.features(n * d)
    lives.free(x)
    lives.path = f"{path}.norm2"
    norm = lives.layer_norm(n, d, channels_first=True)
    lives.path = f"{path}.mlp.lin1"
    hidden = lives.linear(n, d, sam.mlp)
    lives.path = f"{path}.mlp.act"
    activated = lives.features(n * sam.mlp)
    lives.free(hidden)
    lives.path = f"{path}.mlp.lin2"
    output = lives.linear(n, sam.mlp, d)
    lives.free(activated, norm)
    lives.path = path
    lives.features(n * d)
    # The sum replaces the block's input.
    lives.free(output, stream, n * d * lives.dtype.nbytes)


def _windowed_attention(
    lives: Lifetimes, path: str, N: int, g: int, sam: SamDimensions, norm: int
) -> int:
    """Cuts the normalised stream into windows, runs attention, and reassembles the grid."""
    windows = window_count(g, sam.window)
    side = windows * sam.window
    cells = N * side * side * sam.width
    is_padded = side != g
    lives.path = path
    x = norm
    padded = lives.features(cells) if is_padded else 0
    if windows != 1:
        cut = lives.features(cells)
        lives.free(padded, norm)
        x = cut
    elif is_padded:
        lives.free(norm)
        x = padded
    x = _grid_attention(lives, f"{path}.attn", N * windows * windows, sam.window, sam, x)
    lives.path = path
    whole = lives.features(cells) if windows != 1 else x
    if is_padded:
        cropped = lives.features(N * g * g * sam.width)
        if windows != 1:
            lives.free(whole)
        whole = cropped
    if whole is not x or is_padded:
        lives.free(x)
    return whole


def _grid_attention(lives: Lifetimes, path: str, N: int, g: int, sam: SamDimensions, x: int) -> int:
    """Attention with relative positions on N grids of g x g tokens; frees `x` at its end."""
    d, H, tokens = sam.width, sam.heads, N * g * g
    D = sam.head_dim
    lives.path = f"{path}.qkv"
    made = lives.linear(tokens, d, 3 * d)
    lives.path = path
    is_split = N > 1 and H > 1
    if is_split:
        made += lives.features(3 * tokens * d)
    rows = _relative_positions(lives, g, sam, is_global=g != sam.window)
    columns = _relative_positions(lives, g, sam, is_global=g != sam.window)
    term = tokens * H * g
    by_row = _position_product(lives, term, tokens * d, is_copied=N * H > 1)
    by_column = _position_product(lives, term, tokens * d, is_copied=N == 1 and H > 1)
    if N * H > 1:
        laid_out = lives.features(term)
        lives.free(by_row)
        by_row = laid_out
    laid_out = lives.features(term)
    lives.free(by_column, rows, columns)
    made += by_row + laid_out
    made += lives.features(tokens * H * g * g)
    attended = lives.features(tokens * d)
    if lives.on_cpu:
        size, threads = lives.dtype.nbytes, lives.kernels_of.threads
        sums = lives.make(
            _FP32 * tokens * H, scratch=attention_scratch(g * g, g * g, D, size, threads)
        )
        lives.free(sums)
        if is_split:
            # The CPU's kernel writes the layout of its queries, so merging heads is a copy.
            joined = lives.features(tokens * d)
            lives.free(attended)
            attended = joined
    lives.path = f"{path}.proj"
    output = lives.linear(tokens, d, d)
    lives.free(attended, made, x)
    return output


def _position_product(lives: Lifetimes, term: int, queries: int, *, is_copied: bool) -> int:
    """A product of the queries with one axis of relative positions; returns its size."""
    copied = lives.features(queries) if is_copied else 0
    output = lives.features(term, scratch=0 if is_copied else lives.batched_copy(queries))
    lives.free(copied)
    return output


def _relative_positions(lives: Lifetimes, g: int, sam: SamDimensions, *, is_global: bool) -> int:
    """One axis of relative positions `[g, g, D]`; returns its size."""
    D = sam.head_dim
    rows = 2 * (sam.position_grid if is_global else sam.window) - 1
    held = 0
    if rows != 2 * g - 1:
        wide = lives.widened(rows * D)
        resized = lives.wide((2 * g - 1) * D)
        cast = lives.narrowed((2 * g - 1) * D)
        held = wide + (cast or resized)
        lives.free(resized if cast else 0)
    axes = lives.wide(g)
    for nbytes in (INT64.nbytes * g, _FP32 * g):
        axes += lives.make(nbytes)
    lives.free(INT64.nbytes * g)
    differences = lives.wide(g * g)
    shifted = lives.wide(g * g)
    lives.free(differences)
    indices = lives.make(INT64.nbytes * g * g)
    taken = lives.features(g * g * D)
    lives.free(indices, shifted, held, 2 * _FP32 * g)
    return taken


def _sam_neck(lives: Lifetimes, N: int, g: int, sam: SamDimensions, x: int) -> int:
    """Neck and both stride-2 convolutions; frees `x` after the neck."""
    middle, out = sam.downsample_channels
    lives.path = f"{_SAM}.neck.0"
    first = _convolution(lives, N, sam.width, g, sam.neck, g, 1)
    normed = _layer_norm_2d(lives, f"{_SAM}.neck.1", N * g * g, sam.neck)
    lives.free(first)
    lives.path = f"{_SAM}.neck.2"
    second = _convolution(lives, N, sam.neck, g, sam.neck, g, 3)
    lives.free(normed)
    neck = _layer_norm_2d(lives, f"{_SAM}.neck.3", N * g * g, sam.neck)
    lives.free(second, x)
    lives.path = f"{_SAM}.net_2"
    halved = conv2d_side(g, 3, 2, 1)
    x2 = _convolution(lives, N, sam.neck, g, middle, halved, 3)
    lives.path = _SAM
    copied = lives.features(N * halved * halved * middle)
    lives.path = f"{_SAM}.net_3"
    output = _convolution(lives, N, middle, halved, out, conv2d_side(halved, 3, 2, 1), 3)
    lives.free(copied, x2, neck)
    return output


def _layer_norm_2d(lives: Lifetimes, path: str, pixels: int, channels: int) -> int:
    """Layer norm over channels, operator by operator; returns its output's size."""
    lives.path = path
    n, size = pixels * channels, lives.dtype.nbytes
    scratch = mean_scratch(n, pixels, size) if lives.on_cpu else 0
    means = lives.features(pixels, scratch=scratch)
    centred = lives.features(n)
    squares = lives.features(n)
    lives.free(centred)
    variances = lives.features(pixels, scratch=scratch)
    lives.free(squares)
    centred = lives.features(n)
    shifted = lives.features(pixels)
    roots = lives.features(pixels)
    lives.free(shifted)
    quotient = lives.features(n)
    lives.free(centred, roots)
    weighted = lives.features(n)
    output = lives.features(n)
    lives.free(weighted, quotient, means, variances)
    return output


def _convolution(
    lives: Lifetimes, N: int, channels: int, side: int, outputs: int, output_side: int, kernel: int
) -> int:
    """A convolution's output; returns its size."""
    scratch = 0
    if lives.on_cpu:
        scratch = convolution_scratch(
            N,
            channels,
            side,
            outputs,
            output_side,
            kernel,
            lives.dtype.nbytes,
            lives.kernels_of,
        )
    return lives.features(N * output_side**2 * outputs, scratch=scratch)


def _resize(lives: Lifetimes, side: int, target: int, channels: int) -> int:
    """Scratch of an antialiased resize of one fp32 table."""
    return antialiased_scratch(1, channels, side, target, _FP32) if lives.on_cpu else 0


# --- CLIP ------------------------------------------------------------------------------------


def _clip(lives: Lifetimes, N: int, q: int, clip: ClipDimensions) -> int:
    """CLIP on SAM's features; returns the bytes of its features `[N, 1 + q q, d]`."""
    stream = N * (q * q + 1) * clip.width
    lives.path = f"{_CLIP}.embeddings"
    joined = lives.features(stream)
    positions = _clip_positions(lives, q, clip)
    embedded = lives.features(stream)
    lives.free(positions, joined)
    lives.path = f"{_CLIP}.pre_layrnorm"
    normed = lives.layer_norm(N * (q * q + 1), clip.width)
    # The caller's caller holds the first layer's input; other inputs are freed after their layer.
    output = _clip_layer(lives, N, q, clip, 0)
    if clip.layers > 1:
        lives.free(_clip_layer(lives, N, q, clip, 1))
    lives.free(embedded, normed)
    return output


def _clip_positions(lives: Lifetimes, q: int, clip: ClipDimensions) -> int:
    """Positions for 1 + q q tokens, resized in fp32 unless they fit; returns their size."""
    side, d = clip.image_size // clip.patch_size, clip.width
    lives.path = f"{_CLIP}.embeddings.position_embedding"
    table = lives.features(clip.positions * d)
    lives.path = f"{_CLIP}.embeddings"
    if q == side:
        return table
    source = lives.features(side * side * d)
    wide = lives.widened(side * side * d)
    if wide:
        lives.free(source)
    resized = lives.make(_FP32 * q * q * d, scratch=_resize(lives, side, q, d))
    cast = lives.narrowed(q * q * d)
    lives.free(resized if cast else 0)
    positions = lives.features((q * q + 1) * d)
    lives.free(table, wide or source, cast or resized)
    return positions


def _clip_layer(lives: Lifetimes, N: int, q: int, clip: ClipDimensions, index: int) -> int:
    """A layer; returns its output's size."""
    path, d, T = f"{_CLIP}.transformer.layers.{index}", clip.width, q * q + 1
    n = N * T
    lives.path = f"{path}.layer_norm1"
    norm = lives.layer_norm(n, d)
    lives.path = f"{path}.self_attn.qkv_proj"
    qkv = lives.linear(n, d, 3 * d)
    lives.path = f"{path}.self_attn"
    attended = lives.features(n * d)
    if lives.on_cpu:
        size, threads = lives.dtype.nbytes, lives.kernels_of.threads
        sums = lives.make(
            _FP32 * n * clip.heads, scratch=attention_scratch(T, T, clip.head_dim, size, threads)
        )
        lives.free(sums)
    lives.path = f"{path}.self_attn.out_proj"
    residual = lives.linear(n, d, d)
    lives.free(attended, qkv, norm)
    lives.path = path
    h = lives.features(n * d)
    lives.path = f"{path}.layer_norm2"
    norm = lives.layer_norm(n, d)
    output = _clip_mlp(lives, f"{path}.mlp", n, clip)
    lives.free(norm)
    lives.path = path
    out = lives.features(n * d)
    lives.free(output, h, residual)
    return out


def _clip_mlp(lives: Lifetimes, path: str, n: int, clip: ClipDimensions) -> int:
    """`fc2(quick_gelu(fc1(x)))`; returns its output's size."""
    lives.path = f"{path}.fc1"
    hidden = lives.linear(n, clip.width, clip.mlp)
    lives.path = path
    scaled = lives.features(n * clip.mlp)
    gate = lives.features(n * clip.mlp)
    lives.free(scaled)
    activated = lives.features(n * clip.mlp)
    lives.free(gate, hidden)
    lives.path = f"{path}.fc2"
    output = lives.linear(n, clip.mlp, clip.width)
    lives.free(activated)
    return output
