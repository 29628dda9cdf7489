"""Multi-head latent attention: eager with absorbed up-projection, and its flash form.

All heads share one latent of rank r (for keys and values) and one rotary key of P features. If
absorbed, the up-projection `[W_k; W_v]` multiplies queries and results instead of the cached
latent, so its module is never called; the flash form calls it and attends like plain attention.

Source: DeepSeek-V2 (2405.04434), eq. 9 to 19 and section 2.1.2; `DeepseekV2Attention` and
`DeepseekV2FlashAttention2` (`modeling_deepseekv2.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dsocr_analyze.costs.decoder_attention import flash_attention, masked_softmax
from dsocr_analyze.costs.integers import Count, is_one_token, several
from dsocr_analyze.costs.kv_cache import append
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.normalization import rms_norm
from dsocr_analyze.costs.operators import Kernels, addition, copy, elementwise, moved, product
from dsocr_analyze.costs.rope import RopeVariant, dynamic_update, rotation, table_rows, tables
from dsocr_analyze.costs.sums import ModuleKernels, repeated
from dsocr_analyze.dtypes import Dtype

__all__ = ["LatentHeads", "mla_attention"]


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """Dimensions of latent attention.

    Attributes:
        heads: H.
        q_rank: Rank of the queries' latent; None for a direct projection.
        kv_rank: Rank r of the keys' and values' latent.
        nope: Features of a query or key without positions.
        nope: Features per query or key without positions.
        rope: Rotary features P.
        value: Features per value.
        variant: How rotary positions are stretched.
        trained_length: Positions the model was trained for.
        bias: Whether the projections into latents and the output projection have biases.
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
        """Features per query or key."""
        return self.nope + self.rope


def mla_attention(
    B: Count,
    T: Count,
    cached: Count,
    d: int,
    latent: LatentHeads,
    dtype: Dtype,
    *,
    flash: bool,
    is_masked: bool = True,
) -> ModuleKernels:
    """Latent attention of T new tokens over K = cached + T keys, including its rotary tables.

    Args:
        B: Batch.
        T: New tokens: the whole prompt (`cached` 0), or 1 in a decode step.
        cached: Tokens in the cache.
        d: Width.
        latent: Dimensions of the heads.
        dtype: Type of features and weights.
        flash: FlashAttention over up-projected keys and values, instead of absorption.
        is_masked: Whether absorbed attention adds a mask.

    Returns:
        Own kernels and those of the called children.
    """
    n = B * T
    H, P, r = latent.heads, latent.rope, latent.kv_rank
    if flash:
        attended = _flash(B, T, cached, latent, dtype)
    else:
        attended = _absorbed(B, T, cached, latent, dtype, is_masked=is_masked)
    modules: ModuleKernels = {
        "": (
            *table_rows(n, P, dtype),
            *rotation(B, T, H, P, dtype, pairs=True),
            *rotation(B, T, 1, P, dtype, pairs=True),
            *attended,
        ),
        **_queries(n, d, latent, dtype),
        "kv_a_proj_with_mqa": linear(n, d, r + P, dtype, bias=latent.bias),
        "kv_a_layernorm": rms_norm(n, r, dtype),
    }
    if flash:
        modules["kv_b_proj"] = linear(n, r, H * (latent.nope + latent.value), dtype)
    modules["rotary_emb"] = _rotary(cached + T, latent, dtype)
    modules["o_proj"] = linear(n, H * latent.value, d, dtype, bias=latent.bias)
    return modules


def _rotary(K: Count, latent: LatentHeads, dtype: Dtype) -> Kernels:
    """The tables of K positions and, for "dynamic", new frequencies beyond the trained length."""
    update: Kernels = ()
    if latent.variant == "dynamic":
        update = repeated(dynamic_update(latent.rope), 1 * (latent.trained_length < K))
    return update + tables(latent.variant, K, latent.rope, dtype)


def _queries(n: Count, d: int, latent: LatentHeads, dtype: Dtype) -> ModuleKernels:
    """One projection, or two with a latent and its norm in between."""
    width = latent.heads * latent.query
    if latent.q_rank is None:
        return {"q_proj": linear(n, d, width, dtype)}
    return {
        "q_a_proj": linear(n, d, latent.q_rank, dtype, bias=latent.bias),
        "q_a_layernorm": rms_norm(n, latent.q_rank, dtype),
        "q_b_proj": linear(n, latent.q_rank, width, dtype),
    }


def _absorbed(
    B: Count,
    T: Count,
    cached: Count,
    latent: LatentHeads,
    dtype: Dtype,
    *,
    is_masked: bool,
) -> Kernels:
    """Scores `q_pe k_pe^T + (q_nope W_k) c^T`, scaled, masked, softmaxed; `(a c) W_v`.

    With more than one sequence, the products copy what heads or sequences share, and a prompt's
    queries, stored as [B, T, H, D]; of these, the rotary part only if it is a single pair, since
    rotating more pairs already lays them out afresh.
    """
    H, P, r, nope, value = latent.heads, latent.rope, latent.kv_rank, latent.nope, latent.value
    K = cached + T
    scores = B * T * K * H
    growing: Kernels = ()
    merge: Kernels = ()
    queries: Kernels = ()
    turned: Kernels = ()
    if is_one_token(T):
        growing = append(B, cached, P, dtype) + append(B, cached, r, dtype)
    elif H > 1:
        merge = copy("clone", B * T * (H * value), dtype)
        queries = repeated(copy("clone", B * T * (H * nope), dtype), several(B))
        if P == 2:
            turned = repeated(copy("clone", B * T * (H * P), dtype), several(B))

    def expanded(held: Count, times: Count) -> Kernels:
        """Copies a factor of `held` elements once for each matrix that shares it."""
        size = dtype.nbytes * held
        if H == 1:
            return ()
        return repeated(moved("clone", held * times, size, size * times, dtype), several(B))

    return (
        *growing,
        *queries,
        *expanded(H * nope * r, B),
        *product("matmul", B * H, T, r, nope, dtype, right=H * nope * r),
        *turned,
        *expanded(B * K * P, H),
        *product("matmul", B * H, T, K, P, dtype, right=B * K * P),
        *expanded(B * K * r, H),
        *product("matmul", B * H, T, K, r, dtype, right=B * K * r),
        *addition(scores, dtype),
        *elementwise("mul", scores, dtype),
        *masked_softmax(B, T, K, H, dtype, is_masked=is_masked),
        *product("einsum", B, T * H, r, K, dtype),
        *expanded(H * r * value, B),
        *product("matmul", B * H, T, value, r, dtype, right=H * r * value),
        *merge,
    )


def _flash(B: Count, T: Count, cached: Count, latent: LatentHeads, dtype: Dtype) -> Kernels:
    """Queries and keys joined from their parts, padded values, attention, and the output.

    The rotary key is read once and written for every head.
    """
    H, P, query, value = latent.heads, latent.rope, latent.query, latent.value
    n = B * T
    rows = n * H
    without_positions = copy("copy", rows * latent.nope, dtype)
    joined = (
        *without_positions,
        *copy("copy", rows * P, dtype),
        *without_positions,
        *moved("copy", rows * P, dtype.nbytes * P * n, dtype.nbytes * P * rows, dtype),
    )
    padding: Kernels = ()
    unpadding: Kernels = ()
    if query != value:
        read, written = dtype.nbytes * value * rows, dtype.nbytes * query * rows
        padding = moved("constant_pad_nd", rows * query, read, written, dtype)
        unpadding = copy("clone", rows * value, dtype)
        if H == 1:
            # A single row without its padding is already contiguous.
            unpadding = repeated(unpadding, 1 * (n != 1))
    return (
        *joined,
        *padding,
        *(2 * append(B, cached, H * query, dtype) if is_one_token(T) else ()),
        *flash_attention(B, T, cached + T, H, H, query, dtype),
        *unpadding,
    )
