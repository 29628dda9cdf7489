"""The decoder's plain attention, MHA or GQA, eager and flash.

Source: Vaswani et al. 2017, eq. 1; Ainslie et al. 2023 (GQA); Dao 2023 (FlashAttention-2);
`LlamaAttention` and `LlamaFlashAttention2` of transformers 4.46, which `modeling_deepseekv2.py`
uses if `use_mla` is false.
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count, is_one_token, several
from dsocr_analyze.costs.kv_cache import append, overwrite
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.operators import (
    Kernels,
    attention,
    cast,
    copy,
    elementwise,
    moved,
    product,
    reduction,
    softmax,
)
from dsocr_analyze.costs.rope import llama_tables, rotation
from dsocr_analyze.costs.sums import ModuleKernels, repeated
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64, Dtype
from dsocr_analyze.kernels import Attention

__all__ = ["decoder_attention", "flash_attention", "masked_softmax"]


def decoder_attention(
    B: Count,
    T: Count,
    cached: Count,
    d: int,
    heads: int,
    kv_heads: int,
    D: int,
    dtype: Dtype,
    *,
    flash: bool,
    bias: bool = False,
    is_masked: bool = True,
    overwrites: bool = False,
) -> ModuleKernels:
    """Attention of T new tokens over K = cached + T keys, including its rotary tables.

    Args:
        B: Batch.
        T: New tokens: the whole prompt (`cached` 0), or 1 in a decode step.
        cached: Tokens in the cache.
        d: Width.
        heads: Query heads H.
        kv_heads: Key and value heads.
        D: Features per head.
        dtype: Type of features and weights.
        flash: FlashAttention instead of the eager product.
        bias: Whether the four projections have biases.
        is_masked: Whether eager attention adds a mask.
        overwrites: Whether a new token replaces one in the cache, which already held K tokens.

    Returns:
        Own kernels, the four projections and `rotary_emb`.
    """
    n = B * T
    key_value = kv_heads * D
    K = cached + T
    if flash:
        attended = _flash(B, T, K, heads, kv_heads, D, dtype)
    else:
        attended = _eager(B, T, K, heads, kv_heads, D, dtype, is_masked=is_masked)
    held = linear(n, d, key_value, dtype, bias=bias)
    kept = overwrite(B, key_value, dtype) if overwrites else append(B, cached, key_value, dtype)
    return {
        "": (
            *rotation(B, T, heads, D, dtype, pairs=False),
            *rotation(B, T, kv_heads, D, dtype, pairs=False),
            *(2 * kept if is_one_token(T) else ()),
            *attended,
        ),
        "q_proj": linear(n, d, heads * D, dtype, bias=bias),
        "k_proj": held,
        "v_proj": held,
        "rotary_emb": llama_tables(B, T, D, dtype),
        "o_proj": linear(n, heads * D, d, dtype, bias=bias),
    }


def _flash(
    B: Count, T: Count, K: Count, heads: int, kv_heads: int, D: int, dtype: Dtype
) -> Kernels:
    """FlashAttention; for a prompt, after checking its positions."""
    attended = flash_attention(B, T, K, heads, kv_heads, D, dtype)
    return attended if is_one_token(T) else position_check(B, T) + attended


def _eager(
    B: Count,
    T: Count,
    K: Count,
    heads: int,
    kv_heads: int,
    D: int,
    dtype: Dtype,
    *,
    is_masked: bool,
) -> Kernels:
    """`softmax(q k^T / sqrt(D) + mask) v`, operator by operator; the full T x K product.

    Keys and values are first repeated for the query heads that share them (a single shared head is
    expanded without a copy), and the result is copied to [B, T, H, D]. With more than one
    sequence, the products copy operands that are not one batch of matrices in memory: queries, keys
    and values stored as [B, T, H, D], and an expanded shared head.
    """
    held = B * K * (kv_heads * D)
    is_repeated = heads != kv_heads and kv_heads > 1
    keys = B * K * (heads * D) if is_repeated else held
    repeat: Kernels = ()
    if is_repeated:
        repeat = moved("clone", keys, dtype.nbytes * held, dtype.nbytes * keys, dtype)
    merge: Kernels = ()
    queries: Kernels = ()
    shared: Kernels = ()
    if heads > 1 and not is_one_token(T):
        merge = copy("clone", B * T * (heads * D), dtype)
        queries = repeated(merge, several(B))
    if heads > 1 and not is_repeated and not (is_one_token(T) and heads == kv_heads):
        laid_out = B * K * (heads * D)
        read, written = dtype.nbytes * held, dtype.nbytes * laid_out
        shared = repeated(moved("clone", laid_out, read, written, dtype), several(B))
    return (
        *repeat,
        *repeat,
        *queries,
        *shared,
        *product("matmul", B * heads, T, K, D, dtype, right=keys),
        *elementwise("div", B * T * K * heads, dtype),
        *masked_softmax(B, T, K, heads, dtype, is_masked=is_masked),
        *shared,
        *product("matmul", B * heads, T, D, K, dtype, right=keys),
        *merge,
    )


def masked_softmax(
    B: Count,
    T: Count,
    K: Count,
    heads: int,
    dtype: Dtype,
    *,
    is_masked: bool = True,
) -> Kernels:
    """Addition of the mask, a cast, softmax in fp32 (5 FLOPs per score), and a cast back.

    Args:
        B: Batch.
        T: New tokens.
        K: Keys.
        heads: H.
        dtype: Type of the scores before and after.
        is_masked: Whether there is a mask.
    """
    scores = B * T * K * heads
    masked = elementwise("add", scores, dtype, read=dtype.nbytes * (scores + B * T * K))
    return (
        *(masked if is_masked else ()),
        *softmax(B * T * heads, K, dtype),
        *cast(scores, FLOAT32, dtype),
    )


def flash_attention(
    B: Count, T: Count, K: Count, heads: int, kv_heads: int, D: int, dtype: Dtype
) -> Kernels:
    """Two products and 6 FLOPs per score; scores are never read or written (Dao 2023, alg. 1).

    Args:
        B: Batch.
        T: New tokens, the last T of the K keys.
        K: Keys.
        heads: H.
        kv_heads: Key and value heads.
        D: Features per head, the same for keys and values.
        dtype: Type of the features.
    """
    skippable = _skippable_scores(B, T, heads)
    shape = Attention(B, heads, kv_heads, T, K, D, D, skippable_scores=skippable)
    return attention("flash_attention", shape, dtype)


def position_check(B: Count, T: Count) -> Kernels:
    """Checks before a flash prefill that positions increase: differences, tests, and an `all`.

    Args:
        B: Sequences.
        T: Positions per sequence.
    """
    steps = B * (T - 1)
    return (
        *elementwise("sub", steps, INT64, inputs=2),
        *elementwise("ge", steps, INT64, output=BOOL),
        *reduction("all", 1, steps, BOOL),
    )


def _skippable_scores(B: Count, T: Count, heads: int) -> Count:
    """Scores of T new tokens with those after them."""
    return B * (T * (T - 1) // 2) * heads
