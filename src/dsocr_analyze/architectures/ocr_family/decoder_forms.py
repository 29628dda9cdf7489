"""The decoder composed: layers, norm and head, for a prompt or for one new token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsocr_analyze.costs.decoder_attention import (
    decoder_attention,
)
from dsocr_analyze.costs.embedding import embedding
from dsocr_analyze.costs.integers import Count, is_one_token
from dsocr_analyze.costs.lm_head import lm_head
from dsocr_analyze.costs.mla import LatentHeads, mla_attention
from dsocr_analyze.costs.moe import Routing, moe
from dsocr_analyze.costs.normalization import rms_norm
from dsocr_analyze.costs.operators import (
    Kernels,
    addition,
    cast,
    elementwise,
    filled,
    moved,
    reduction,
)
from dsocr_analyze.costs.sections import Section
from dsocr_analyze.costs.sums import ModuleKernels, under
from dsocr_analyze.costs.swiglu import swiglu
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64, Dtype

if TYPE_CHECKING:
    from dsocr_analyze.architectures.ocr_family.dimensions import (
        DecoderDimensions,
    )

__all__ = ["decoder_sections", "routing_of"]

_LAYERS: Final = "model.layers"


def decoder_sections(
    B: Count,
    T: Count,
    cached: Count,
    decoder: DecoderDimensions,
    dtype: Dtype,
    *,
    flash: bool,
    overwrites: bool = False,
) -> list[Section]:
    """Embedding, layers, norm and head of T new tokens over K = cached + T keys.

    Args:
        B: Batch.
        T: New tokens: the whole prompt (`cached` 0), or 1 in a decode step.
        cached: Tokens in the cache.
        decoder: Dimensions.
        dtype: Type of features and weights.
        flash: FlashAttention instead of the eager product.
        overwrites: Whether the new token replaces one in a cache that already held K.
    """
    n, d = B * T, decoder.hidden_size
    norm = rms_norm(n, d, dtype)
    is_masked = decoder.masks_steps or not is_one_token(T)
    head = lm_head(n, d, decoder.vocab_size, dtype)
    first: ModuleKernels = {
        "": head[""],
        "model": _mask(B, T, cached + T, dtype, flash=flash) if is_masked else (),
        "model.embed_tokens": embedding(n, d, dtype),
    }
    last: ModuleKernels = {"model.norm": norm, "lm_head": head["lm_head"]}
    attention = _attention(
        B, T, cached, decoder, dtype, flash, is_masked=is_masked, overwrites=overwrites
    )
    common: ModuleKernels = {
        "": 2 * addition(n * d, dtype),
        "input_layernorm": norm,
        **under("self_attn", attention),
        "post_attention_layernorm": norm,
    }
    dense = [index for index in range(decoder.layers) if not decoder.is_moe(index)]
    mixed = [index for index in range(decoder.layers) if decoder.is_moe(index)]
    sections = [Section(("",), first)]
    if dense:
        mlp = swiglu(n, d, decoder.intermediate_size, dtype, decoder.hidden_act)
        sections.append(_layers(dense, common | under("mlp", mlp)))
    if mixed:
        mixture = _mixture(n, decoder, dtype)
        sections.append(_layers(mixed, common | under("mlp", mixture)))
    sections.append(Section(("",), last))
    return sections


def _layers(indexes: list[int], modules: ModuleKernels) -> Section:
    return Section(tuple(f"{_LAYERS}.{index}" for index in indexes), modules)


def _mask(B: Count, T: Count, K: Count, dtype: Dtype, *, flash: bool) -> Kernels:
    """Operators on the mask `[B, K]` that separates tokens from padding.

    FlashAttention checks whether it holds a zero. Eager attention adds `[B, 1, T, K]`: ones and
    zeros in the features' type, subtracted from one, replaced by the lowest number wherever that is
    nonzero; for a prompt, the same again over the causal mask.
    """
    if flash:
        return (
            *elementwise("eq", B * K, INT64, output=BOOL),
            *reduction("any", 1, B * K, BOOL),
        )
    scores = B * T * K
    size = dtype.nbytes * scores
    filling = size + BOOL.nbytes * scores
    padding = (
        *moved("_to_copy", scores, INT64.nbytes * B * K, size, INT64, output=dtype),
        *elementwise("rsub", scores, dtype),
        *cast(scores, dtype, BOOL),
        *moved("masked_fill", scores, filling, size, dtype),
    )
    if is_one_token(T):
        return padding
    filling = dtype.nbytes * T * K + BOOL.nbytes * scores
    return (
        *_causal_mask(T, dtype),
        *padding,
        *cast(scores, dtype, BOOL),
        *moved("masked_fill", scores, filling, size, dtype),
    )


def _causal_mask(T: Count, dtype: Dtype) -> Kernels:
    """`[T, T]`: the lowest number (fp32), cleared by a comparison of two ranges, and cast.

    One of the ranges is shifted.
    """
    square = T * T
    cleared = (FLOAT32.nbytes + BOOL.nbytes) * square
    return (
        *filled("full", square, FLOAT32),
        *filled("arange", T, INT64),
        *elementwise("add", T, INT64),
        *elementwise("lt", square, INT64, read=2 * INT64.nbytes * T, output=BOOL),
        *moved("masked_fill", square, cleared, FLOAT32.nbytes * square, FLOAT32),
        *cast(square, FLOAT32, dtype),
    )


def _attention(
    B: Count,
    T: Count,
    cached: Count,
    decoder: DecoderDimensions,
    dtype: Dtype,
    flash: bool,
    *,
    is_masked: bool,
    overwrites: bool,
) -> ModuleKernels:
    d = decoder.hidden_size
    if decoder.use_mla:
        latent = _latent_heads(decoder)
        return mla_attention(B, T, cached, d, latent, dtype, flash=flash, is_masked=is_masked)
    return decoder_attention(
        B,
        T,
        cached,
        d,
        decoder.heads,
        decoder.kv_heads,
        decoder.head_dim,
        dtype,
        flash=flash,
        bias=decoder.attention_bias,
        is_masked=is_masked,
        overwrites=overwrites,
    )


def _mixture(
    n: Count,
    decoder: DecoderDimensions,
    dtype: Dtype,
) -> ModuleKernels:
    return moe(
        n,
        decoder.hidden_size,
        decoder.moe_intermediate_size,
        decoder.shared_intermediate_size,
        routing_of(decoder),
        dtype,
        decoder.hidden_act,
    )


def _latent_heads(decoder: DecoderDimensions) -> LatentHeads:
    """Dimensions of latent attention."""
    return LatentHeads(
        heads=decoder.heads,
        q_rank=decoder.q_lora_rank,
        kv_rank=decoder.kv_lora_rank,
        nope=decoder.qk_nope_head_dim,
        rope=decoder.qk_rope_head_dim,
        value=decoder.v_head_dim,
        variant=decoder.rope_scaling or "default",  # type: ignore[arg-type]  # checked
        trained_length=decoder.max_position_embeddings,
        bias=decoder.attention_bias,
    )


def routing_of(decoder: DecoderDimensions) -> Routing:
    """How tokens choose experts, for a decoder with experts."""
    return Routing(
        experts=decoder.n_routed_experts or 0,
        per_token=decoder.num_experts_per_tok,
        scoring=decoder.scoring_func,  # type: ignore[arg-type]  # checked when read
        method=decoder.topk_method,  # type: ignore[arg-type]  # checked when read
        groups=decoder.n_group,
        top_groups=decoder.topk_group,
        normalized=decoder.norm_topk_prob,
    )
