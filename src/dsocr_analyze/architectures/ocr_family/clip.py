"""CLIP's vision transformer on SAM's features, which take the place of its own patches.

Source: `VitModel` and its parts (`deepencoder.py`), in whose order operators and names stand;
Vaswani et al. 2017, eq. 1.
"""

from __future__ import annotations

from operator import methodcaller

from dsocr_analyze.architectures.ocr_family.dimensions import ClipDimensions
from dsocr_analyze.dtypes import FLOAT32, INT64
from dsocr_analyze.kernels import Attention
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.tape.modules import (
    bicubic,
    conv2d,
    embedding,
    fused_attention,
    layer_norm,
    linear,
    quick_gelu,
)

__all__ = ["absolute_positions", "clip", "embeddings_of_pixels", "layer_norm_fp32"]

_CHANNELS = 3


def clip(t: Tape, features: Operand, N: Size, q: int, c: ClipDimensions) -> Operand:
    """SAM's features of N views, `[N, d, q, q] -> [N, 1 + q q, d]` (`VitModel`)."""
    x = t.call("embeddings", embeddings, features, N, q, c)
    hidden_states = t.call("pre_layrnorm", layer_norm, x, N * (q * q + 1), c.width)
    output = t.call("transformer", _transformer, hidden_states, N, q * q + 1, c)
    t.hold(x, hidden_states)
    return output


# --- embeddings ------------------------------------------------------------------------------


def embeddings(t: Tape, features: Operand, N: Size, q: int, c: ClipDimensions) -> Operand:
    """The class token before the patches, plus positions (`CLIPVisionEmbeddings`)."""
    d, positions = c.width, (c.image_size // c.patch_size) ** 2 + 1
    t.idle("patch_embedding", methodcaller("weight", _CHANNELS * d * c.patch_size**2))
    tokens = t.move("cat", t.weight(d, "class_embedding"), features, n=N * (q * q + 1) * d)
    ids = t.input(positions, INT64)
    return t.map(
        "add",
        tokens,
        absolute_positions(t, t.call("position_embedding", embedding, ids, positions, d), q, c),
    )


def embeddings_of_pixels(t: Tape, N: Size, q: int, c: ClipDimensions) -> Operand:
    """The same with patches of its own convolution, which DeepSeek-OCR never runs."""
    side = q * c.patch_size
    pixels = t.input(N * _CHANNELS * side * side, t.dtype)
    sizes = pixels, N, side, _CHANNELS, c.width, c.patch_size
    patches = t.call("patch_embedding", conv2d, *sizes, stride=c.patch_size)
    return embeddings(t, patches, N, q, c)


def absolute_positions(t: Tape, abs_pos: Operand, q: int, c: ClipDimensions) -> Operand:
    """`[1 + s s, d] -> [1 + q q, d]`, the class token's position first (`get_abs_pos`)."""
    d, side = c.width, c.image_size // c.patch_size
    if side == q:
        return abs_pos
    grid: Operand = t.view(abs_pos, side * side * d)
    if side > 1:
        grid = t.move("clone", grid)  # channels first
    grid = t.cast(grid, FLOAT32)
    patches = bicubic(t, grid, side, q, d)
    joined = t.cat(t.view(abs_pos, d), patches)
    t.hold(grid, patches)
    return joined


def layer_norm_fp32(t: Tape, x: Operand, rows: Size, d: Size) -> Operand:
    """A norm in fp32, which DeepSeek-OCR's config does not ask for (`LayerNormfp32`)."""
    return t.cast(layer_norm(t, t.cast(x, FLOAT32), rows, d), t.dtype)


# --- layers ----------------------------------------------------------------------------------


def _transformer(t: Tape, x: Operand, N: Size, T: int, c: ClipDimensions) -> Operand:
    """All layers in turn, `[N, T, d]` (`NoTPTransformer`)."""
    for index in range(c.layers):
        x = t.again(f"layers.{index}", _layer, x, N, T, c)
    return x


def _layer(t: Tape, x: Operand, N: Size, T: int, c: ClipDimensions) -> Operand:
    """`h = x + attention(norm(x))`, `h + mlp(norm(h))` (`NoTPTransformerBlock`)."""
    n, d = N * T, c.width
    residual = t.call("self_attn", _attention, t.call("layer_norm1", layer_norm, x, n, d), N, T, c)
    h = t.map("add", x, residual)
    out = t.map("add", h, t.call("mlp", _mlp, t.call("layer_norm2", layer_norm, h, n, d), n, c))
    t.hold(residual)
    return out


def _attention(t: Tape, x: Operand, N: Size, T: int, c: ClipDimensions) -> Operand:
    """`softmax(q k^T / sqrt(D)) v`, whose kernel merges the heads (`NoTPAttention`)."""
    n, d, H, D = N * T, c.width, c.heads, c.width // c.heads
    qkv = t.call("qkv_proj", linear, x, n, d, 3 * d, bias=True)
    output = fused_attention(t, "scaled_dot_product_attention", Attention(N, H, H, T, T, D, D), qkv)
    output = t.call("out_proj", linear, output, n, d, d, bias=True)
    t.hold(qkv)
    return output


def _mlp(t: Tape, x: Operand, n: Size, c: ClipDimensions) -> Operand:
    """`W_2 quick_gelu(W_1 x)`, four times as wide inside (`NoTPFeedForward`, `vit_model_cfg`)."""
    d, f = c.width, 4 * c.width
    hidden = t.call("fc1", linear, x, n, d, f, bias=True)
    hidden = quick_gelu(t, hidden)
    return t.call("fc2", linear, hidden, n, f, d, bias=True)
