"""Multi-head latent attention: eager with the up-projection absorbed, and its flash form.

Keys and values are one latent of rank r and one rotary key of P features, shared by the heads.
Absorbed, the up-projection `[W_k; W_v]` multiplies queries and results in place of the cached
latent, so its module is never called; the flash form calls it and attends as plain attention does.

Source: DeepSeek-V2 (2405.04434), eq. 9 to 19 and section 2.1.2; `DeepseekV2Attention` and
`DeepseekV2FlashAttention2` (`modeling_deepseekv2.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dsocr_analyze.costs.decoder_attention import flash_attention, masked_softmax
from dsocr_analyze.costs.integers import Count, is_one_token
from dsocr_analyze.costs.kv_cache import append, latent_width
from dsocr_analyze.costs.linear import linear, linear_params, product
from dsocr_analyze.costs.movement import addition, copy, elementwise, moved
from dsocr_analyze.costs.normalization import rms_norm, rms_norm_params
from dsocr_analyze.costs.rope import RopeVariant, dynamic_update, rotation, table_rows, tables
from dsocr_analyze.costs.sums import ModuleWork, combined, scaled
from dsocr_analyze.work import Work

__all__ = ["LatentHeads", "mla_attention", "mla_params"]


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """Dimensions of latent attention.

    Attributes:
        heads: H.
        q_rank: Rank of the queries' latent; None for a direct projection.
        kv_rank: Rank r of the keys' and values' latent.
        nope: Features of a query or key without positions.
        rope: Rotary features P.
        value: Features of a value.
        variant: How rotary positions are stretched.
        trained_length: Positions the model was trained for.
        bias: Whether the projections into latents and out have biases.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    variant: RopeVariant = "default"
    trained_length: int = 0
    bias: bool = False

    @property
    def query(self) -> int:
        """Features of a query or key."""
        return self.nope + self.rope


def mla_attention(
    B: Count,
    T: Count,
    cached: Count,
    d: int,
    latent: LatentHeads,
    element_bytes: int,
    *,
    flash: bool,
) -> ModuleWork:
    """Latent attention of T new tokens over K = cached + T, with its rotary tables.

    Args:
        B: Batch.
        T: New tokens: the whole prompt (`cached` 0), or 1 in a decode step.
        cached: Tokens in the cache.
        d: Width.
        latent: Dimensions of the heads.
        element_bytes: Bytes of a feature.
        flash: Keys and values projected up and FlashAttention, in place of absorption.

    Returns:
        Own work and that of the called children.
    """
    n = B * T
    K = cached + T
    H, P, r = latent.heads, latent.rope, latent.kv_rank
    rotary = tables(latent.variant, K, P, element_bytes)
    if latent.variant == "dynamic":
        update = scaled(dynamic_update(P), 1 * (latent.trained_length < K))
        rotary = combined((rotary, update))
    own = [
        table_rows(T, P, element_bytes),
        rotation(B, T, H, P, element_bytes, pairs=True),
        rotation(B, T, 1, P, element_bytes, pairs=True),
    ]
    modules = _queries(n, d, latent, element_bytes)
    modules["kv_a_proj_with_mqa"] = linear(n, d, r + P, element_bytes, bias=latent.bias)
    modules["kv_a_layernorm"] = rms_norm(n, r, element_bytes)
    if flash:
        modules["kv_b_proj"] = linear(n, r, H * (latent.nope + latent.value), element_bytes)
        own.extend(_flash(B, T, cached, latent, element_bytes))
    else:
        own.extend(_absorbed(B, T, cached, latent, element_bytes))
    modules["rotary_emb"] = rotary
    modules[""] = combined(own)
    modules["o_proj"] = linear(n, H * latent.value, d, element_bytes, bias=latent.bias)
    return modules


def _queries(n: Count, d: int, latent: LatentHeads, element_bytes: int) -> ModuleWork:
    """One projection, or two around a latent and its norm."""
    width = latent.heads * latent.query
    if latent.q_rank is None:
        return {"q_proj": linear(n, d, width, element_bytes)}
    return {
        "q_a_proj": linear(n, d, latent.q_rank, element_bytes, bias=latent.bias),
        "q_a_layernorm": rms_norm(n, latent.q_rank, element_bytes),
        "q_b_proj": linear(n, latent.q_rank, width, element_bytes),
    }


def _absorbed(
    B: Count, T: Count, cached: Count, latent: LatentHeads, element_bytes: int
) -> list[Work]:
    """Scores `q_pe k_pe^T + (q_nope W_k) c^T`, scaled, masked, softmaxed; `(a c) W_v`."""
    H, P, r = latent.heads, latent.rope, latent.kv_rank
    K = cached + T
    rows = B * T * H
    scores = rows * K
    is_step = is_one_token(T)
    parts = [
        product(rows, latent.nope, r, rows * latent.nope, H * latent.nope * r, element_bytes),
        product(rows, P, K, rows * P, B * K * P, element_bytes),
        product(rows, r, K, rows * r, B * K * r, element_bytes),
        addition(scores, element_bytes),
        elementwise(scores, element_bytes),
        masked_softmax(B, T, K, H, element_bytes),
        product(rows, K, r, scores, B * K * r, element_bytes),
        product(rows, r, latent.value, rows * r, H * r * latent.value, element_bytes),
    ]
    if is_step:
        parts.append(append(B, cached, latent_width(r, P), element_bytes))
    elif H > 1:
        parts.append(copy(rows * latent.value, element_bytes))
    return parts


def _flash(
    B: Count, T: Count, cached: Count, latent: LatentHeads, element_bytes: int
) -> list[Work]:
    """Queries and keys joined from their parts, values padded to their size, attention, the rest.

    The rotary key is read once and written for every head.
    """
    H, P, query, value = latent.heads, latent.rope, latent.query, latent.value
    n = B * T
    rows = n * H
    is_step = is_one_token(T)
    parts = [
        copy(rows * (2 * latent.nope + P), element_bytes),
        moved(element_bytes * P * n, element_bytes * P * rows),
        flash_attention(B, T, cached + T, H, H, query, element_bytes),
    ]
    if query != value:
        parts.append(moved(element_bytes * value * rows, element_bytes * query * rows))
        unpadded = copy(rows * value, element_bytes)
        parts.append(unpadded if H > 1 else scaled(unpadded, 1 * (n != 1)))
    if is_step:
        parts.append(append(B, cached, 2 * H * query, element_bytes))
    return parts


def mla_params(d: int, latent: LatentHeads) -> int:
    """Parameters of all projections and the latents' norms."""
    H, r, bias = latent.heads, latent.kv_rank, latent.bias
    width = H * latent.query
    if latent.q_rank is None:
        queries = linear_params(d, width)
    else:
        queries = (
            linear_params(d, latent.q_rank, bias=bias)
            + rms_norm_params(latent.q_rank)
            + linear_params(latent.q_rank, width)
        )
    return (
        queries
        + linear_params(d, r + latent.rope, bias=bias)
        + rms_norm_params(r)
        + linear_params(r, H * (latent.nope + latent.value))
        + linear_params(H * latent.value, d, bias=bias)
    )
