"""The decoder composed: layers, norm and head, for a prompt or for one new token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsocr_analyze.costs.decoder_attention import (
    causal_savable_macs,
    decoder_attention,
    decoder_attention_params,
)
from dsocr_analyze.costs.embedding import embedding, embedding_params
from dsocr_analyze.costs.integers import Count, is_one_token
from dsocr_analyze.costs.kv_cache import latent_width, mha_width
from dsocr_analyze.costs.lm_head import lm_head, lm_head_params
from dsocr_analyze.costs.mla import LatentHeads, mla_attention, mla_params
from dsocr_analyze.costs.moe import Routing, moe, moe_params, routed_experts
from dsocr_analyze.costs.movement import FP32_BYTES, INDEX_BYTES, addition, cast, moved
from dsocr_analyze.costs.normalization import rms_norm, rms_norm_params
from dsocr_analyze.costs.sections import Section
from dsocr_analyze.costs.sums import ModuleWork, combined, scaled, under
from dsocr_analyze.costs.swiglu import swiglu, swiglu_params
from dsocr_analyze.work import Work

if TYPE_CHECKING:
    from dsocr_analyze.model.dimensions import DecoderDimensions

__all__ = [
    "cache_width",
    "decoder_params",
    "decoder_savable_macs",
    "decoder_sections",
    "head_params",
    "latent_heads",
    "routing_of",
]

_LAYERS: Final = "model.layers"


def decoder_sections(
    B: Count,
    T: Count,
    cached: Count,
    decoder: DecoderDimensions,
    element_bytes: int,
    *,
    flash: bool,
    each_expert: bool = False,
) -> list[Section]:
    """Embedding, layers, norm and head of T new tokens over K = cached + T.

    Args:
        B: Batch.
        T: New tokens: the whole prompt (`cached` 0), or 1 in a decode step.
        cached: Tokens in the cache.
        decoder: Dimensions.
        element_bytes: Bytes of a feature.
        flash: FlashAttention in place of the eager product.
        each_expert: Whether routed experts are listed one by one (no arrays), not together.
    """
    n, d = B * T, decoder.hidden_size
    norm = rms_norm(n, d, element_bytes)
    frame: ModuleWork = {
        "model.embed_tokens": embedding(n, d, element_bytes),
        "model": _positions_and_mask(T, element_bytes, flash=flash),
        "model.norm": norm,
        **lm_head(n, d, decoder.vocab_size, element_bytes),
    }
    common: ModuleWork = {
        "input_layernorm": norm,
        **under("self_attn", _attention(B, T, cached, decoder, element_bytes, flash)),
        "": scaled(addition(n * d, element_bytes), 2),
        "post_attention_layernorm": norm,
    }
    dense = [index for index in range(decoder.layers) if not decoder.is_moe(index)]
    mixed = [index for index in range(decoder.layers) if decoder.is_moe(index)]
    sections = [Section(("",), frame)]
    if dense:
        mlp = swiglu(n, d, decoder.intermediate_size, element_bytes, decoder.hidden_act)
        sections.append(_layers(dense, common | under("mlp", mlp)))
    if mixed:
        mixture = _mixture(n, decoder, element_bytes, each_expert=each_expert)
        sections.append(_layers(mixed, common | under("mlp", mixture)))
    return sections


def _layers(indexes: list[int], modules: ModuleWork) -> Section:
    return Section(tuple(f"{_LAYERS}.{index}" for index in indexes), modules)


def _positions_and_mask(T: Count, element_bytes: int, *, flash: bool) -> Work:
    """The range of positions; for an eager prompt the causal mask `[T, T]`.

    The mask is filled with the lowest number (fp32), cleared where a comparison of two ranges
    (one of them shifted) says so, and cast.
    """
    positions = moved(0, INDEX_BYTES * T)
    if flash or is_one_token(T):
        return positions
    square = T * T
    building = Work(
        vector_flops=T + square,
        bytes_read=3 * INDEX_BYTES * T + (FP32_BYTES + 1) * square,
        bytes_written=2 * INDEX_BYTES * T + (2 * FP32_BYTES + 1) * square,
    )
    return combined((positions, building, cast(square, FP32_BYTES, element_bytes)))


def _attention(
    B: Count, T: Count, cached: Count, decoder: DecoderDimensions, element_bytes: int, flash: bool
) -> ModuleWork:
    d = decoder.hidden_size
    if decoder.use_mla:
        latent = latent_heads(decoder)
        return mla_attention(B, T, cached, d, latent, element_bytes, flash=flash)
    return decoder_attention(
        B,
        T,
        cached,
        d,
        decoder.heads,
        decoder.kv_heads,
        decoder.head_dim,
        element_bytes,
        flash=flash,
        bias=decoder.attention_bias,
    )


def _mixture(
    n: Count, decoder: DecoderDimensions, element_bytes: int, *, each_expert: bool
) -> ModuleWork:
    d, f, act = decoder.hidden_size, decoder.moe_intermediate_size, decoder.hidden_act
    routing = routing_of(decoder)
    modules = moe(n, d, f, decoder.shared_intermediate_size, routing, element_bytes, act)
    if each_expert:
        del modules["experts"]
        modules |= under("experts", routed_experts(n, d, f, routing, element_bytes, act))
    return modules


def latent_heads(decoder: DecoderDimensions) -> LatentHeads:
    """The dimensions of latent attention."""
    scaling = decoder.rope_scaling
    return LatentHeads(
        heads=decoder.heads,
        q_rank=decoder.q_lora_rank,
        kv_rank=decoder.kv_lora_rank,
        nope=decoder.qk_nope_head_dim,
        rope=decoder.qk_rope_head_dim,
        value=decoder.v_head_dim,
        variant="default" if scaling is None else scaling.kind,  # type: ignore[arg-type]  # checked
        trained_length=decoder.max_position_embeddings,
        bias=decoder.attention_bias,
    )


def routing_of(decoder: DecoderDimensions) -> Routing:
    """How tokens choose experts; of a decoder that has some."""
    return Routing(
        experts=decoder.n_routed_experts or 0,
        per_token=decoder.num_experts_per_tok,
        scoring=decoder.scoring_func,  # type: ignore[arg-type]  # checked when read
        method=decoder.topk_method,  # type: ignore[arg-type]  # checked when read
        groups=decoder.n_group,
        top_groups=decoder.topk_group,
        normalized=decoder.norm_topk_prob,
    )


def cache_width(decoder: DecoderDimensions, *, flash: bool) -> int:
    """Elements that one layer caches a token."""
    if not decoder.use_mla:
        return mha_width(decoder.kv_heads, decoder.head_dim)
    if flash:
        return mha_width(decoder.heads, decoder.head_dim)
    return latent_width(decoder.kv_lora_rank, decoder.qk_rope_head_dim)


def decoder_savable_macs(B: Count, T: Count, decoder: DecoderDimensions, *, flash: bool) -> Count:
    """MACs of all layers' prompt attention above the diagonal."""
    head_dims = 2 * decoder.head_dim
    if decoder.use_mla and not flash:
        head_dims = decoder.qk_rope_head_dim + 2 * decoder.kv_lora_rank
    return decoder.layers * causal_savable_macs(B, T, decoder.heads, head_dims)


def decoder_params(decoder: DecoderDimensions) -> int:
    """Parameters of embedding, layers and norm."""
    d = decoder.hidden_size
    if decoder.use_mla:
        attention = mla_params(d, latent_heads(decoder))
    else:
        attention = decoder_attention_params(
            d, decoder.heads, decoder.kv_heads, decoder.head_dim, bias=decoder.attention_bias
        )
    common = attention + 2 * rms_norm_params(d)
    mixed = decoder.moe_layers
    mixture = 0
    if mixed:
        mixture = moe_params(
            d, decoder.moe_intermediate_size, decoder.shared_intermediate_size, routing_of(decoder)
        )
    dense = swiglu_params(d, decoder.intermediate_size)
    return (
        embedding_params(decoder.vocab_size, d)
        + decoder.layers * common
        + (decoder.layers - mixed) * dense
        + mixed * mixture
        + rms_norm_params(d)
    )


def head_params(decoder: DecoderDimensions) -> int:
    """Parameters of the head."""
    return lm_head_params(decoder.hidden_size, decoder.vocab_size, tied=decoder.tie_word_embeddings)
