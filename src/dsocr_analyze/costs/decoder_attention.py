"""The decoder's plain attention, MHA or GQA, eager and flash.

Source: Vaswani et al. 2017, eq. 1; Ainslie et al. 2023 (GQA); Dao 2023 (FlashAttention-2);
`LlamaAttention` and `LlamaFlashAttention2` of transformers 4.46, which `modeling_deepseekv2.py`
uses where `use_mla` is false.
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count, is_one_token
from dsocr_analyze.costs.kv_cache import append
from dsocr_analyze.costs.linear import linear, linear_params
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
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64, Dtype
from dsocr_analyze.kernels import Attention

__all__ = [
    "causal_savable_macs",
    "decoder_attention",
    "decoder_attention_params",
    "flash_attention",
    "masked_softmax",
    "position_check",
]


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
) -> ModuleKernels:
    """Attention of T new tokens over K = cached + T, with its rotary tables.

    Args:
        B: Batch.
        T: New tokens: the whole prompt (`cached` 0), or 1 in a decode step.
        cached: Tokens in the cache.
        d: Width.
        heads: Query heads H.
        kv_heads: Key and value heads.
        D: Features of a head.
        dtype: Type of features and weights.
        flash: FlashAttention in place of the eager product.
        bias: Whether the four projections have biases.

    Returns:
        Own kernels, the four projections and `rotary_emb`.
    """
    n = B * T
    key_value = kv_heads * D
    attend = _flash if flash else _eager
    held = linear(n, d, key_value, dtype, bias=bias)
    return {
        "": (
            *rotation(B, T, heads, D, dtype, pairs=False),
            *rotation(B, T, kv_heads, D, dtype, pairs=False),
            *(2 * append(B, cached, key_value, dtype) if is_one_token(T) else ()),
            *attend(B, T, cached + T, heads, kv_heads, D, dtype),
        ),
        "q_proj": linear(n, d, heads * D, dtype, bias=bias),
        "k_proj": held,
        "v_proj": held,
        "rotary_emb": llama_tables(T, D, dtype),
        "o_proj": linear(n, heads * D, d, dtype, bias=bias),
    }


def _flash(
    B: Count, T: Count, K: Count, heads: int, kv_heads: int, D: int, dtype: Dtype
) -> Kernels:
    """FlashAttention, for a prompt after a look at its positions."""
    attended = flash_attention(B, T, K, heads, kv_heads, D, dtype)
    return attended if is_one_token(T) else position_check(T) + attended


def _eager(
    B: Count, T: Count, K: Count, heads: int, kv_heads: int, D: int, dtype: Dtype
) -> Kernels:
    """`softmax(q k^T / sqrt(D) + mask) v`, operator by operator; the full T x K product.

    Keys and values are first repeated for the query heads that share them (one shared head is
    expanded without a copy), the result's heads are copied behind the tokens.
    """
    held = B * K * (kv_heads * D)
    is_repeated = heads != kv_heads and kv_heads > 1
    keys = B * K * (heads * D) if is_repeated else held
    repeat: Kernels = ()
    if is_repeated:
        repeat = moved("clone", keys, dtype.nbytes * held, dtype.nbytes * keys, dtype)
    merge: Kernels = ()
    if heads > 1 and not is_one_token(T):
        merge = copy("clone", B * T * (heads * D), dtype)
    return (
        *repeat,
        *repeat,
        *product("matmul", B * heads, T, K, D, dtype, right=keys),
        *elementwise("div", B * T * K * heads, dtype),
        *masked_softmax(B, T, K, heads, dtype),
        *product("matmul", B * heads, T, D, K, dtype, right=keys),
        *merge,
    )


def masked_softmax(B: Count, T: Count, K: Count, heads: int, dtype: Dtype) -> Kernels:
    """The mask's addition (none for one new token), softmax in fp32 (5 per score), and a cast.

    Args:
        B: Batch.
        T: New tokens.
        K: Keys.
        heads: H.
        dtype: Type of the scores before and after.
    """
    scores = B * T * K * heads
    mask: Kernels = ()
    if not is_one_token(T):
        mask = elementwise("add", scores, dtype, read=dtype.nbytes * (scores + T * K))
    return (*mask, *softmax(B * T * heads, K, dtype), *cast(scores, FLOAT32, dtype))


def flash_attention(
    B: Count, T: Count, K: Count, heads: int, kv_heads: int, D: int, dtype: Dtype
) -> Kernels:
    """Both products and 6 FLOPs per score, of which none is read or written (Dao 2023, alg. 1).

    Args:
        B: Batch.
        T: New tokens, the last of the K.
        K: Keys.
        heads: H.
        kv_heads: Key and value heads.
        D: Features of a head, of keys and values alike.
        dtype: Type of the features.
    """
    skippable = _skippable_scores(B, T, heads)
    shape = Attention(B, heads, kv_heads, T, K, D, D, skippable_scores=skippable)
    return attention("flash_attention", shape, dtype)


def position_check(T: Count) -> Kernels:
    """Whether positions increase, asked before a flash prefill: differences, tests, their "all".

    Args:
        T: Positions.
    """
    steps = T - 1
    return (
        *elementwise("sub", steps, INT64, inputs=2),
        *elementwise("ge", steps, INT64, output=BOOL),
        *reduction("all", 1, steps, BOOL),
    )


def causal_savable_macs(B: Count, T: Count, heads: int, head_dims: int) -> Count:
    """MACs of a prompt's attention that lie above the diagonal: B H T (T - 1) / 2 scores.

    Args:
        B: Batch.
        T: Tokens of the prompt.
        heads: H.
        head_dims: MACs of one score: features of a key and of a value.
    """
    return _skippable_scores(B, T, heads) * head_dims


def _skippable_scores(B: Count, T: Count, heads: int) -> Count:
    """Scores of T new tokens with those that come after them."""
    return B * (T * (T - 1) // 2) * heads


def decoder_attention_params(d: int, heads: int, kv_heads: int, D: int, *, bias: bool) -> int:
    """Parameters of the four projections."""
    return (
        linear_params(d, heads * D, bias=bias)
        + 2 * linear_params(d, kv_heads * D, bias=bias)
        + linear_params(heads * D, d, bias=bias)
    )
