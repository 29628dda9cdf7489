"""The decoder's plain attention, MHA or GQA, eager and flash.

Source: Vaswani et al. 2017, eq. 1; Ainslie et al. 2023 (GQA); Dao 2023 (FlashAttention-2);
`LlamaAttention` and `LlamaFlashAttention2` of transformers 4.46, which `modeling_deepseekv2.py`
uses where `use_mla` is false.
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count, is_one_token
from dsocr_analyze.costs.kv_cache import append, mha_width
from dsocr_analyze.costs.linear import linear, linear_params, product
from dsocr_analyze.costs.movement import FP32_BYTES, INDEX_BYTES, cast, copy, elementwise, moved
from dsocr_analyze.costs.rope import llama_tables, rotation
from dsocr_analyze.costs.sums import ModuleWork, combined
from dsocr_analyze.work import NO_WORK, Work

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
    element_bytes: int,
    *,
    flash: bool,
    bias: bool = False,
) -> ModuleWork:
    """Attention of T new tokens over K = cached + T, with its rotary tables.

    Args:
        B: Batch.
        T: New tokens: the whole prompt (`cached` 0), or 1 in a decode step.
        cached: Tokens in the cache.
        d: Width.
        heads: Query heads H.
        kv_heads: Key and value heads.
        D: Features of a head.
        element_bytes: Bytes of a feature.
        flash: FlashAttention in place of the eager product.
        bias: Whether the four projections have biases.

    Returns:
        Own work, the four projections and `rotary_emb`.
    """
    n = B * T
    key_value = kv_heads * D
    is_step = is_one_token(T)
    own = [
        rotation(B, T, heads, D, element_bytes, pairs=False),
        rotation(B, T, kv_heads, D, element_bytes, pairs=False),
    ]
    if is_step:
        own.append(append(B, cached, mha_width(kv_heads, D), element_bytes))
    if flash:
        if not is_step:
            own.append(position_check(T))
        own.append(flash_attention(B, T, cached + T, heads, kv_heads, D, element_bytes))
    else:
        own.append(_eager(B, T, cached + T, heads, kv_heads, D, element_bytes))
    return {
        "q_proj": linear(n, d, heads * D, element_bytes, bias=bias),
        "k_proj": linear(n, d, key_value, element_bytes, bias=bias),
        "v_proj": linear(n, d, key_value, element_bytes, bias=bias),
        "rotary_emb": llama_tables(T, D, element_bytes),
        "": combined(own),
        "o_proj": linear(n, heads * D, d, element_bytes, bias=bias),
    }


def _eager(
    B: Count, T: Count, K: Count, heads: int, kv_heads: int, D: int, element_bytes: int
) -> Work:
    """`softmax(q k^T / sqrt(D) + mask) v`, operator by operator; the full T x K product.

    Keys and values are first repeated for the query heads that share them (one shared head is
    expanded without a copy), the result's heads are copied behind the tokens.
    """
    rows = B * T * heads
    scores = rows * K
    held = B * K * (kv_heads * D)
    is_repeated = heads != kv_heads and kv_heads > 1
    keys = B * K * (heads * D) if is_repeated else held
    parts = [
        product(rows, D, K, rows * D, keys, element_bytes),
        elementwise(scores, element_bytes),
        masked_softmax(B, T, K, heads, element_bytes),
        product(rows, K, D, scores, keys, element_bytes),
    ]
    if is_repeated:
        parts.append(moved(2 * element_bytes * held, 2 * element_bytes * keys))
    if heads > 1 and not is_one_token(T):
        parts.append(copy(rows * D, element_bytes))
    return combined(parts)


def masked_softmax(B: Count, T: Count, K: Count, heads: int, element_bytes: int) -> Work:
    """The mask's addition (none for one new token), softmax in fp32 (5 a score), and a cast.

    Args:
        B: Batch.
        T: New tokens.
        K: Keys.
        heads: H.
        element_bytes: Bytes of a score before and after.
    """
    scores = B * T * K * heads
    softmax = Work(
        vector_flops=5 * scores,
        bytes_read=element_bytes * scores,
        bytes_written=FP32_BYTES * scores,
    )
    mask = NO_WORK
    if not is_one_token(T):
        mask = Work(
            vector_flops=scores,
            bytes_read=element_bytes * (scores + T * K),
            bytes_written=element_bytes * scores,
        )
    return combined((mask, softmax, cast(scores, FP32_BYTES, element_bytes)))


def flash_attention(
    B: Count, T: Count, K: Count, heads: int, kv_heads: int, D: int, element_bytes: int
) -> Work:
    """Both products and 6 FLOPs a score, of which none is read or written (Dao 2023, alg. 1).

    Args:
        B: Batch.
        T: New tokens.
        K: Keys.
        heads: H.
        kv_heads: Key and value heads.
        D: Features of a head, of keys and values alike.
        element_bytes: Bytes of a feature.
    """
    queries = B * T * (heads * D)
    scores = B * T * K * heads
    return Work(
        macs=2 * scores * D,
        vector_flops=6 * scores,
        activations=queries,
        bytes_read=element_bytes * (queries + 2 * B * K * (kv_heads * D)),
        bytes_written=element_bytes * queries,
    )


def position_check(T: Count) -> Work:
    """Whether positions increase, asked before a flash prefill: differences, tests, their "all".

    Args:
        T: Positions.
    """
    steps = T - 1
    return Work(
        vector_flops=3 * steps,
        bytes_read=(3 * INDEX_BYTES + 1) * steps,
        bytes_written=(INDEX_BYTES + 1) * steps + 1,
    )


def causal_savable_macs(B: Count, T: Count, heads: int, head_dims: int) -> Count:
    """MACs of a prompt's attention that lie above the diagonal: B H T (T - 1) / 2 scores.

    Args:
        B: Batch.
        T: Tokens of the prompt.
        heads: H.
        head_dims: MACs of one score: features of a key and of a value.
    """
    return B * (T * (T - 1) // 2) * (heads * head_dims)


def decoder_attention_params(d: int, heads: int, kv_heads: int, D: int, *, bias: bool) -> int:
    """Parameters of the four projections."""
    return (
        linear_params(d, heads * D, bias=bias)
        + 2 * linear_params(d, kv_heads * D, bias=bias)
        + linear_params(heads * D, d, bias=bias)
    )
