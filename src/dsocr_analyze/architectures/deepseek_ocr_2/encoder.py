"""Qwen2 as an encoder: a decoder over image tokens and an equal number of learned queries.

Source: `Qwen2Decoder2Encoder`, `CustomQwen2Decoder` (`deepencoderv2.py`) and the Qwen2 classes of
transformers 4.46, which it uses; Ainslie et al. 2023 (GQA), Shazeer 2020 (SwiGLU).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures.deepseek_ocr_2.stages import ENCODER
from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.normalization import rms_norm
from dsocr_analyze.costs.operators import (
    Kernels,
    addition,
    attention,
    copy,
    elementwise,
    filled,
    moved,
)
from dsocr_analyze.costs.rope import llama_tables, rotation
from dsocr_analyze.costs.sections import Section
from dsocr_analyze.costs.sums import ModuleKernels, repeated, under
from dsocr_analyze.costs.swiglu import swiglu
from dsocr_analyze.dtypes import BOOL, INT64, Dtype
from dsocr_analyze.kernels import Attention

if TYPE_CHECKING:
    from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import EncoderDimensions

__all__ = ["encoder_sections"]

_ENCODER: Final = ENCODER.prefixes[0]
_MODEL: Final = "model.model"
"""Path of the module that holds the layers, below the encoder."""


def encoder_sections(
    N: Count,
    q: Count,
    encoder: EncoderDimensions,
    dtype: Dtype,
    *,
    has_mask: bool = False,
) -> list[Section]:
    """The encoder on SAM's features `[N, d, q, q]`.

    Args:
        N: Views.
        q: Tokens per side.
        encoder: Dimensions.
        dtype: Type of features and weights.
        has_mask: Whether the mask exists already, from an earlier call.
    """
    n, d = q * q, encoder.width
    T = 2 * n
    norm = rms_norm(N * T, d, dtype)
    mask = () if has_mask else _mixed_mask(N, n, dtype)
    frame: ModuleKernels = {
        "": _tokens_and_queries(N, n, d, dtype),
        "model": (),
        _MODEL: filled("arange", T, INT64) + mask,
        f"{_MODEL}.rotary_emb": llama_tables(1, T, encoder.head_dim, dtype),
        f"{_MODEL}.norm": norm,
    }
    residual = addition(N * T * d, dtype)
    layer: ModuleKernels = {
        "": 2 * residual,
        "input_layernorm": norm,
        **under("self_attn", _attention(N, T, encoder, dtype)),
        "post_attention_layernorm": norm,
        **under("mlp", swiglu(N * T, d, encoder.intermediate_size, dtype)),
    }
    paths = tuple(f"{_ENCODER}.{_MODEL}.layers.{index}" for index in range(encoder.layers))
    return [Section((_ENCODER,), frame), Section(paths, layer)]


def _tokens_and_queries(N: Count, n: Count, d: int, dtype: Dtype) -> Kernels:
    """Concatenates image tokens and queries, with flags for which of the two each token is.

    All views share one table of queries.
    """
    written = dtype.nbytes * (N * 2 * n * d)
    read = dtype.nbytes * (N * n * d + n * d)
    return (
        *moved("cat", N * 2 * n * d, read, written, dtype),
        *filled("zeros", N * n, INT64),
        *filled("ones", N * n, INT64),
        *copy("cat", N * 2 * n, INT64),
    )


def _mixed_mask(N: Count, n: Count, dtype: Dtype) -> Kernels:
    """The additive mask `[N, 1, T, T]`, written view by view and row by row.

    For each view: the lowest number everywhere; the positions of image tokens and of queries; zero
    between image tokens; and for each query, zero for the image tokens, and zero for the queries
    up to itself.

    Args:
        N: Views.
        n: Image tokens per view; also the number of queries.
        dtype: Type of features.
    """
    T = 2 * n
    found = (
        *elementwise("eq", T, INT64, output=BOOL),
        *moved("nonzero", n, T * BOOL.nbytes, n * INT64.nbytes, BOOL, output=INT64),
    )
    zero = filled("scalar_tensor", 1, dtype)
    view = (
        *filled("full", T * T, dtype),
        *2 * found,
        *zero,
        *_written(T * T, 2 * n, n * n, dtype),
        *repeated((*zero, *_written(T, n, n, dtype)), n),
        *repeated(zero, n),
        *_rows_of_queries(T, n, dtype),
    )
    return (*repeated(view, N), *copy("stack", N * T * T, dtype))


def _written(elements: Count, indices: Count, written: Count, dtype: Dtype) -> Kernels:
    """Writes one number at some positions of a tensor.

    Args:
        elements: Elements of the tensor.
        indices: Indices that select the positions.
        written: Positions written.
        dtype: Type of the number.
    """
    read = dtype.nbytes + INT64.nbytes * indices
    return moved("index_put", elements, read, dtype.nbytes * written, dtype)


def _rows_of_queries(T: Count, n: Count, dtype: Dtype) -> Kernels:
    """Zeros in the rows of n queries: i of them in the i-th row."""
    return tuple(kernel for i in range(1, n + 1) for kernel in _written(T, i, i, dtype))


def _attention(N: Count, T: Count, encoder: EncoderDimensions, dtype: Dtype) -> ModuleKernels:
    """SDPA with the mask; all views share the rotary tables; keys and values are repeated."""
    d, H, kv, D = encoder.width, encoder.heads, encoder.kv_heads, encoder.head_dim
    n = N * T
    held = linear(n, d, kv * D, dtype, bias=True)
    repeats: Kernels = ()
    if H > kv > 1:
        size = dtype.nbytes * n
        repeats = moved("clone", n * H * D, size * (kv * D), size * (H * D), dtype)
    # The kernel gets H heads of keys; if a single one was expanded, it reads just that one.
    read = Attention(N, H, H if kv > 1 else 1, T, T, D, D, masked=True)
    (attended,) = attention("scaled_dot_product_attention", read, dtype, mask=N * T * T)
    return {
        "": (
            *rotation(N, T, H, D, dtype, pairs=False, rows_of_tables=T),
            *rotation(N, T, kv, D, dtype, pairs=False, rows_of_tables=T),
            *2 * repeats,
            attended._replace(dimensions=read._replace(kv_heads=H)),
        ),
        "q_proj": linear(n, d, H * D, dtype, bias=True),
        "k_proj": held,
        "v_proj": held,
        "o_proj": linear(n, H * D, d, dtype),
    }
