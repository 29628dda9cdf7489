"""The kernels a serving engine launches for DeepSeek-OCR and its relatives.

The encoders run as in the model's own code: engines neither compile them nor capture them in graphs
(`vllm/model_executor/models/deepseek_ocr.py`). The decoder consists of fused kernels
(`costs/served.py`); each prompt runs alone, and each step runs all sequences together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsocr_analyze.architectures.ocr_family.decoder import cache_width
from dsocr_analyze.architectures.ocr_family.peak import peak
from dsocr_analyze.architectures.ocr_family.stages import DECODE, PREFILL
from dsocr_analyze.costs.served import (
    cache_write,
    combined_experts,
    fused_add_rms_norm,
    grouped_experts,
    last_logits,
    looked_up_tokens,
    merged_linear,
    paged_attention,
    placed_features,
    rotary_embedding,
    router,
    sampled,
    silu_and_mul,
)
from dsocr_analyze.errors import ConfigError

if TYPE_CHECKING:
    from dsocr_analyze.architectures.ocr_family.dimensions import (
        DecoderDimensions,
        RelativeDimensions,
    )
    from dsocr_analyze.architectures.ocr_family.network import Network
    from dsocr_analyze.costs.integers import Count
    from dsocr_analyze.costs.operators import Kernels
    from dsocr_analyze.dtypes import Dtype
    from dsocr_analyze.workload import Workload

__all__ = [
    "cache_elements",
    "check_served",
    "quantizable_params",
    "served_activation_bytes",
    "served_prompt",
    "served_step",
    "served_views",
]


def check_served(dimensions: RelativeDimensions) -> None:
    """Raises ConfigError for anything that no rule of the serving engines covers."""
    decoder = dimensions.decoder
    if decoder.use_mla:
        raise ConfigError(
            "config.json: 'use_mla' is true, and serving engines are modelled for plain"
            " attention only; use runtime eager, or a model with 'use_mla' false"
        )
    if decoder.hidden_act != "silu":
        raise ConfigError(
            f"config.json: 'hidden_act' is {decoder.hidden_act!r}, and serving engines fuse 'silu'"
            " only; use runtime eager"
        )
    if decoder.rope_scaling == "dynamic":
        raise ConfigError(
            "config.json: 'rope_scaling' of type 'dynamic' is not modelled for serving engines;"
            " use runtime eager"
        )


def served_views(
    network: Network, N: Count, R: Count, dimensions: RelativeDimensions, dtype: Dtype
) -> dict[str, Kernels]:
    """Kernels of one vision call on N views of R pixels per side, by stage."""
    return {
        stage.name: tuple(
            kernel._replace(calls=kernel.calls * section.calls * len(section.paths),
                            path=section.paths[0], stage=stage.name)
            for section in sections
            for kernels in section.modules.values()
            for kernel in kernels
        )
        for stage, sections in network.served_sections(N, R, dimensions, dtype).items()
    }  # fmt: skip


def served_prompt(
    T: Count, K: Count, visual: Count, dimensions: RelativeDimensions, dtype: Dtype, cache_bits: int
) -> Kernels:
    """One chunk of a prompt through the decoder.

    Args:
        T: Tokens of the chunk.
        K: Keys that its tokens see on average at its end, including those of the chunk.
        visual: Visual tokens among them.
        dimensions: The model.
        dtype: Type of features.
        cache_bits: Bits per cached element.
    """
    decoder = dimensions.decoder
    kernels = (
        *placed_features(visual, decoder.hidden_size, dtype),
        *_layers(1, T, K, decoder, dtype, cache_bits),
        *_ending(1, decoder, dtype),
    )
    return tuple(kernel._replace(stage=PREFILL.name) for kernel in kernels)


def served_step(
    B: Count, K: Count, dimensions: RelativeDimensions, dtype: Dtype, cache_bits: int
) -> Kernels:
    """One decode step of B sequences over K keys each, including the new token's."""
    decoder = dimensions.decoder
    kernels = (*_layers(B, 1, K, decoder, dtype, cache_bits), *_ending(B, decoder, dtype))
    return tuple(kernel._replace(stage=DECODE.name) for kernel in kernels)


def _layers(
    B: Count, T: Count, K: Count, decoder: DecoderDimensions, dtype: Dtype, cache_bits: int
) -> Kernels:
    """Embedding and all layers, for T new tokens in each of B sequences."""
    n, d = B * T, decoder.hidden_size
    heads, kv_heads, D = decoder.heads, decoder.kv_heads, decoder.head_dim
    norm = fused_add_rms_norm(n, d, dtype)
    bias = decoder.attention_bias
    attention = (
        *norm,
        *merged_linear(n, d, (heads + 2 * kv_heads) * D, dtype, parts=3, bias=bias),
        *rotary_embedding(n, heads + kv_heads, D, dtype),
        *cache_write(n, cache_width(decoder, flash=True), dtype, cache_bits),
        *paged_attention(B, T, K, heads, kv_heads, D, dtype, cache_bits),
        *merged_linear(n, heads * D, d, dtype, parts=1, bias=bias),
        *norm,
    )
    mixed = decoder.moe_layers
    return (
        *looked_up_tokens(n, d, dtype),
        *_times(attention, decoder.layers),
        *_times(_mlp(n, d, decoder.intermediate_size, dtype), decoder.layers - mixed),
        *_times(_mixture(n, decoder, dtype) if mixed else (), mixed),
    )


def _mlp(n: Count, d: int, inter: int, dtype: Dtype) -> Kernels:
    """A gated MLP: gate and up in one product, the fused activation, the down projection."""
    return (
        *merged_linear(n, d, 2 * inter, dtype, parts=2),
        *silu_and_mul(n, inter, dtype),
        *merged_linear(n, inter, d, dtype, parts=1),
    )


def _mixture(n: Count, decoder: DecoderDimensions, dtype: Dtype) -> Kernels:
    """Router, grouped experts, and the shared experts as one additional MLP."""
    d, experts = decoder.hidden_size, decoder.n_routed_experts or 0
    shared = decoder.shared_intermediate_size
    beside = (*_mlp(n, d, shared, dtype), *combined_experts(n, d, dtype)) if shared else ()
    return (
        *router(n, d, experts, dtype),
        *grouped_experts(
            n, d, decoder.moe_intermediate_size, experts, decoder.num_experts_per_tok, dtype
        ),
        *beside,
    )


def _ending(B: Count, decoder: DecoderDimensions, dtype: Dtype) -> Kernels:
    """The last norm, the logits of the last position, and the next token, for B sequences."""
    return (
        *fused_add_rms_norm(B, decoder.hidden_size, dtype),
        *last_logits(B, decoder.hidden_size, decoder.vocab_size, dtype),
        *sampled(B, decoder.vocab_size, dtype),
    )


def _times(kernels: Kernels, count: int) -> Kernels:
    """The kernels with `count` times the calls; none for 0."""
    return tuple(each._replace(calls=each.calls * count) for each in kernels) if count else ()


def cache_elements(dimensions: RelativeDimensions) -> int:
    """Elements that all layers cache per token."""
    return dimensions.decoder.layers * cache_width(dimensions.decoder, flash=True)


def served_activation_bytes(
    network: Network, dimensions: RelativeDimensions, workload: Workload, dtype: Dtype
) -> int:
    """Peak of the prefill pass without its logits, of which engines keep only the last row."""
    found = peak(network, dimensions, workload, dtype, flash_attention=True, has_logits=False)
    return found.nbytes


def quantizable_params(dimensions: RelativeDimensions) -> int:
    """Weights of the decoder's layers that engines quantize: every linear except the routers."""
    decoder = dimensions.decoder
    d, D = decoder.hidden_size, decoder.head_dim
    attention = d * (2 * decoder.heads + 2 * decoder.kv_heads) * D
    expert = 3 * d * decoder.moe_intermediate_size
    mixture = (decoder.n_routed_experts or 0) * expert + 3 * d * decoder.shared_intermediate_size
    mixed = decoder.moe_layers
    dense = 3 * d * decoder.intermediate_size
    return decoder.layers * attention + mixed * mixture + (decoder.layers - mixed) * dense
