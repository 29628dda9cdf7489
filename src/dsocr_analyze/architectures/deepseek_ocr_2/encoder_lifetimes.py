"""Lifetimes of the tensors of DeepSeek-OCR-2's Qwen2 encoder, replayed for N views.

Each function replays one forward of the vendor's files (and of the transformers classes they use),
in order and with its local variables: a tensor lives until the function returns if a name still
refers to it. Of equal layers, only the first and the last are replayed, as the cache grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures.deepseek_ocr_2.stages import ENCODER
from dsocr_analyze.architectures.ocr_family.layer_lifetimes import (
    rms_norm,
    rotary_tables,
    rotated,
    swiglu,
)
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64
from dsocr_analyze.scratch import attention_scratch

if TYPE_CHECKING:
    from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import EncoderDimensions
    from dsocr_analyze.costs.lifetimes import Lifetimes

__all__ = ["replay_encoder"]

_ENCODER: Final = ENCODER.prefixes[0]
_MODEL: Final = f"{_ENCODER}.model.model"


def replay_encoder(lives: Lifetimes, N: int, n: int, encoder: EncoderDimensions) -> int:
    """The encoder on N views of n tokens.

    Returns:
        Bytes of its output, which is held with the image tokens in front of the queries.
    """
    T, d = 2 * n, encoder.width
    lives.path = _ENCODER
    combined = lives.features(N * T * d)
    kinds = _on_host(lives, INT64.nbytes * N * n) + _on_host(lives, INT64.nbytes * N * n)
    which = _on_host(lives, INT64.nbytes * N * T)
    lives.free(kinds)
    lives.path = _MODEL
    positions = lives.make(INT64.nbytes * T)
    mask = _mixed_mask(lives, N, n)
    lives.path = f"{_MODEL}.rotary_emb"
    tables = rotary_tables(lives, T, encoder.head_dim)
    cache = 2 * N * T * encoder.kv_heads * encoder.head_dim * lives.dtype.nbytes
    stream = N * T * d * lives.dtype.nbytes
    for index in range(encoder.layers):
        if 0 < index < encoder.layers - 1:
            lives.alive += cache  # its output replaces its input
            continue
        _layer(lives, N, T, encoder, index)
        if index:
            lives.free(stream)  # its input; the first one's are the tokens
    lives.path = f"{_MODEL}.norm"
    output = rms_norm(lives, N * T, d)
    lives.free(stream if encoder.layers else 0, encoder.layers * cache)
    lives.free(tables, mask, positions, which, combined)
    return output


def _on_host(lives: Lifetimes, nbytes: int) -> int:
    """Makes a tensor on the host, which counts as alive only if the CPU is the device too."""
    return lives.make(nbytes) if lives.on_cpu else 0


def _mixed_mask(lives: Lifetimes, N: int, n: int) -> int:
    """The additive mask `[N, 1, T, T]`; returns its size."""
    T = 2 * n
    places = 0
    views = 0
    for _ in range(min(N, 2)):
        # Each view's local names replace those of the view before.
        view = lives.features(T * T)
        found = 0
        for _ in range(2):
            flags = _on_host(lives, BOOL.nbytes * T)
            found += _on_host(lives, INT64.nbytes * n)
            lives.free(flags)
        lives.free(places)
        places = found
        if not lives.on_cpu:
            lives.free(lives.features(1))
        views += view
    if N > 2:
        more = (N - 2) * views // 2
        lives.alive += more
        views += more
    mask = lives.features(N * T * T)
    lives.free(views, places)
    return mask


def _layer(lives: Lifetimes, N: int, T: int, encoder: EncoderDimensions, index: int) -> None:
    """A layer, whose input its caller holds; its cache and its output remain."""
    path, d, n = f"{_MODEL}.layers.{index}", encoder.width, N * T
    lives.path = f"{path}.input_layernorm"
    normed = rms_norm(lives, n, d)
    attended = _attention(lives, f"{path}.self_attn", N, T, encoder)
    lives.path = path
    lives.free(normed)
    stream = lives.features(n * d)
    lives.free(attended)
    lives.path = f"{path}.post_attention_layernorm"
    normed = rms_norm(lives, n, d)
    output = swiglu(lives, f"{path}.mlp", n, d, encoder.intermediate_size)
    lives.path = path
    lives.free(normed)
    lives.features(n * d)
    lives.free(output, stream)


def _attention(lives: Lifetimes, path: str, N: int, T: int, encoder: EncoderDimensions) -> int:
    """Attention; its keys and values remain as cache; returns the output's size."""
    n, d, H, kv, D = N * T, encoder.width, encoder.heads, encoder.kv_heads, encoder.head_dim
    lives.path = f"{path}.q_proj"
    projected = lives.linear(n, d, H * D)
    lives.path = f"{path}.k_proj"
    projected += lives.linear(n, d, kv * D)
    lives.path = f"{path}.v_proj"
    lives.linear(n, d, kv * D)
    lives.path = path
    query = rotated(lives, n * H * D)
    rotated(lives, n * kv * D)
    lives.free(projected)
    repeated = 0
    if H > kv > 1:
        repeated = lives.features(n * H * D) + lives.features(n * H * D)
    attended = lives.features(n * H * D)
    if lives.on_cpu:
        size, threads = lives.dtype.nbytes, lives.kernels_of.threads
        sums = lives.make(FLOAT32.nbytes * n * H, scratch=attention_scratch(T, T, D, size, threads))
        lives.free(sums)
    lives.path = f"{path}.o_proj"
    output = lives.linear(n, H * D, d)
    lives.free(attended, query, repeated)
    return output
