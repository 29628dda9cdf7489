"""Rules of fused attention: two products, a softmax, and what a causal kernel may skip."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from dsocr_analyze.kernels import Attention
from dsocr_analyze.trace.call import Call, Rule, first_output
from dsocr_analyze.trace.vector_rules import SOFTMAX_FLOPS

__all__ = ["ATTENTION_RULES", "keys_after_first", "keys_after_last"]


def keys_after_first(queries: int, keys: int) -> int:
    """Scores above the diagonal if query q of T sees the first q + 1 of K keys, as in torch."""
    rows = min(queries, keys)
    return rows * (keys - 1) - rows * (rows - 1) // 2


def keys_after_last(queries: int, keys: int) -> int:
    """Scores above it if the last query sees all K keys, as in flash-attn: q sees K - T + q + 1."""
    rows = min(queries - 1, keys)
    return rows * (rows + 1) // 2 + (queries - 1 - rows) * keys


# --- scaled dot-product attention ------------------------------------------------------------


def _attention_macs(call: Call) -> int:
    """q [..., Hq, T, D], k [..., Hk, K, D], v [..., Hk, K, Dv]: q k^T and the product with v."""
    query, value = call.args[0], call.args[2]
    return _attention_scores(call) * (int(query.shape[-1]) + int(value.shape[-1]))


def _attention_scores(call: Call) -> int:
    """Elements of q k^T [..., Hq, T, K]; the output's batch dimensions are the broadcast ones."""
    keys: int = call.args[1].shape[-2]
    return math.prod(call.outputs[0].shape[:-1]) * keys


def _is_masked(call: Call) -> bool:
    return len(call.tensors()) > 3


def _attention_vector_flops(call: Call) -> int:
    """Per score: the scale, the mask if there is one, and five for softmax."""
    return _attention_scores(call) * (1 + SOFTMAX_FLOPS + _is_masked(call))


def _attention_dimensions(causal_at: int) -> Callable[[Call], Attention]:
    """Sizes of [..., H, T, D]; a three-dimensional tensor has one head per batch element.

    Args:
        causal_at: Position of `is_causal` among the arguments.
    """

    def dimensions(call: Call) -> Attention:
        query, key, value = call.args[:3]
        output = call.outputs[0].shape
        has_heads = len(output) > 3
        batch = math.prod(output[:-3] if has_heads else output[:-2])
        heads = int(output[-3]) if has_heads else 1
        queries, keys = int(query.shape[-2]), int(key.shape[-2])
        is_causal = bool(call.argument(causal_at, "is_causal"))
        return Attention(
            batch=batch,
            heads=heads,
            kv_heads=int(key.shape[-3]) if has_heads else 1,
            queries=queries,
            keys=keys,
            head_dim=int(query.shape[-1]),
            value_dim=int(value.shape[-1]),
            masked=_is_masked(call),
            skippable_scores=batch * heads * keys_after_first(queries, keys) if is_causal else 0,
        )

    return dimensions


def _attention(causal_at: int) -> Rule:
    return Rule(
        "attention",
        "two products, plus scale, mask and softmax per score; fused, so scores are neither read"
        " nor written",
        macs=_attention_macs,
        vector_flops=_attention_vector_flops,
        bytes_written=first_output,
        dimensions=_attention_dimensions(causal_at),
    )


# --- flash attention -------------------------------------------------------------------------


def _flash_macs(call: Call) -> int:
    """q [B, T, Hq, D], k [B, K, Hk, D], v [B, K, Hk, Dv]; the full T x K product."""
    query, value = call.args[0], call.args[2]
    return _flash_scores(call) * (int(query.shape[-1]) + int(value.shape[-1]))


def _flash_scores(call: Call) -> int:
    scores: int = math.prod(call.args[0].shape[:3]) * call.args[1].shape[1]
    return scores


def _flash_vector_flops(call: Call) -> int:
    return _flash_scores(call) * (1 + SOFTMAX_FLOPS)


def _flash_dimensions(call: Call) -> Attention:
    query, key, value = call.args[:3]
    batch, queries, heads, head_dim = map(int, query.shape)
    keys = int(key.shape[1])
    skippable = batch * heads * keys_after_last(queries, keys)
    return Attention(
        batch=batch,
        heads=heads,
        kv_heads=int(key.shape[2]),
        queries=queries,
        keys=keys,
        head_dim=head_dim,
        value_dim=int(value.shape[3]),
        skippable_scores=skippable if call.kwargs.get("causal") else 0,
    )


# --- kernels called by their own names --------------------------------------------------------


def _kernel(offsets_at: int, causal_at: int) -> Rule:
    """Rule for a kernel that takes q [B, T, Hq, D] and so on, or packed sequences [T, Hq, D].

    Packed sequences are concatenated, and a tensor of offsets holds where each begins. Their
    lengths are values, which `meta` lacks: each counts as the longest, an upper bound.

    Args:
        offsets_at: Position of the queries' offsets among the arguments; the keys' offsets and
            the two longest lengths follow. A bias, if the kernel takes one, comes before them.
        causal_at: Position of `is_causal`.
    """

    def dimensions(call: Call) -> Attention:
        query, key, value = call.args[:3]
        batch, queries, keys = int(query.shape[0]), int(query.shape[-3]), int(key.shape[-3])
        if call.args[offsets_at] is not None:
            longest = call.args[offsets_at + 2 : offsets_at + 4]
            batch = int(call.args[offsets_at].shape[0]) - 1
            queries, keys = (
                int(n or most) for n, most in zip(longest, (queries, keys), strict=True)
            )
        heads = int(query.shape[-2])
        skippable = batch * heads * keys_after_last(queries, keys)
        return Attention(
            batch=batch,
            heads=heads,
            kv_heads=int(key.shape[-2]),
            queries=queries,
            keys=keys,
            head_dim=int(query.shape[-1]),
            value_dim=int(value.shape[-1]),
            masked=any(bias is not None for bias in call.args[3:offsets_at]),
            skippable_scores=skippable if call.argument(causal_at, "is_causal") else 0,
        )

    def macs(call: Call) -> int:
        size = dimensions(call)
        scores = size.batch * size.heads * size.queries * size.keys
        return scores * (size.head_dim + size.value_dim)

    def vector_flops(call: Call) -> int:
        size = dimensions(call)
        scores = size.batch * size.heads * size.queries * size.keys
        return scores * (1 + SOFTMAX_FLOPS + size.masked)

    return Rule(
        "attention",
        "as scaled dot-product attention, on [B, T, H, D]; packed sequences all count as the"
        " longest: an upper bound",
        macs=macs,
        vector_flops=vector_flops,
        bytes_written=first_output,
        dimensions=dimensions,
    )


ATTENTION_RULES: Final[list[tuple[Rule, str]]] = [
    (
        _attention(causal_at=5),
        "scaled_dot_product_attention _scaled_dot_product_fused_attention_overrideable",
    ),
    (
        _attention(causal_at=4),
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu",
    ),
    (
        _attention(causal_at=6),
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    ),
    (
        Rule(
            "attention",
            "as scaled dot-product attention, on [B, T, H, D]; causality skips nothing",
            macs=_flash_macs,
            vector_flops=_flash_vector_flops,
            bytes_written=first_output,
            dimensions=_flash_dimensions,
        ),
        "flash_attention",
    ),
    (_kernel(offsets_at=3, causal_at=8), "_flash_attention_forward"),
    (_kernel(offsets_at=3, causal_at=7), "torch_attn::_varlen_attn"),
    (_kernel(offsets_at=4, causal_at=9), "_efficient_attention_forward"),
]
"""Rules, and the names of the operators that each covers."""
