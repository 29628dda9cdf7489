"""The decoder: plain attention, one layer, and the stack with or without a head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dsocr_analyze.costs.activations import activation_flops
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.decoder import SYMBOLS, THE_CONFIG, config_parameters
from dsocr_analyze.knowledge.families.latent_attention import LATENT_SYMBOLS, latent_formulas
from dsocr_analyze.knowledge.families.mixture import gate_formulas, mixture_values, moe_formulas
from dsocr_analyze.knowledge.families.mlp import gated_mlp_formulas
from dsocr_analyze.knowledge.families.rms_norm import rms_norm_formulas
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Parameter, Symbol, pick

__all__ = [
    "attention_formulas",
    "attention_note",
    "stack_cases",
    "stack_formulas",
    "stack_parameters",
    "stack_symbols",
    "stack_values",
    "with_head",
]


def attention_formulas(facts: Facts) -> Formulas:
    """Formulas of the model's attention, eager; the cache is that of one layer."""
    decoder = facts.decoder
    if decoder.use_mla:
        return latent_formulas(facts, masks_steps=decoder.masks_steps)
    bias = " + B * T * (D * (H + 2 * G) + d)" if decoder.attention_bias else ""
    bias_params = " + D * (H + 2 * G) + d" if decoder.attention_bias else ""
    score = "7" if decoder.masks_steps else "(6 + (T > 1))"
    return Formulas(
        macs="2 * B * T * d * D * (H + G) + B * T * D / 2 + 2 * B * H * T * K * D",
        vector_flops=f"4 * B * T * D + 7 / 2 * B * T * D * (H + G) + {score} * B * H * T * K{bias}",
        params=f"2 * d * D * (H + G){bias_params}",
        activations="B * T * D * (2 * H + 2 * G) + B * T * d + B * T * D / 2 + B * H * T * K",
        cache_bytes="2 * B * K * G * D * e",
    )


_PLAIN_NOTE: Final = (
    "Attention here is `LlamaAttention` of transformers, which the vendor's class table selects"
    " without `use_mla`: projections, rotary positions recomputed by each layer, the whole"
    " product of T queries and K keys, softmax in fp32."
)


def attention_note(facts: Facts) -> str:
    """The note on the attention class of the layers."""
    name = facts.class_at("model.layers.0.self_attn").__name__
    if name == "LlamaAttention":
        return _PLAIN_NOTE
    variant = ", latent and eager" if facts.decoder.use_mla else ""
    with_key = "with" if facts.decoder.use_mla else "without"
    return (
        f"Attention here is `{name}`{variant}, which the class table selects {with_key} `use_mla`."
    )


def stack_symbols(facts: Facts, *, layers: bool) -> dict[str, Symbol]:
    """Symbols of a layer, or of the stack if `layers`, including derived ones."""
    decoder, attention = facts.decoder, attention_formulas(facts)
    mlp, norm = gated_mlp_formulas("B * T"), rms_norm_formulas("B * T")
    names = "B T K d H G D m a e"
    has_mixture = decoder.n_routed_experts is not None
    symbols = pick(names + (" E k f s" if has_mixture else ""), SYMBOLS)
    if decoder.use_mla:
        latent = "r P R v" if decoder.q_lora_rank is None else "r q P R v"
        symbols |= pick(latent, LATENT_SYMBOLS)
    if has_mixture and decoder.topk_method != "greedy":
        symbols["g"] = Symbol("g", "groups of experts", str(decoder.n_group))
    symbols |= {
        "Am": Symbol("M_{attn}", "MACs of attention", attention.macs),
        "Av": Symbol("V_{attn}", "vector FLOPs of attention", attention.vector_flops),
        "Dm": Symbol("M_{mlp}", "MACs of the dense MLP", mlp.macs),
        "Dv": Symbol("V_{mlp}", "vector FLOPs of the dense MLP", mlp.vector_flops),
    }
    if has_mixture:
        mixture = moe_formulas(decoder)
        symbols |= {
            "Gv": Symbol(
                "V_{gate}", "vector FLOPs of the router", gate_formulas(decoder).vector_flops
            ),
            "Xm": Symbol("M_{moe}", "MACs of the mixture", mixture.macs),
            "Xv": Symbol(
                "V_{moe}",
                "vector FLOPs of the mixture",
                mixture.vector_flops.replace(gate_formulas(decoder).vector_flops, "Gv", 1),
            ),
            "Xp": Symbol("P_{moe}", "parameters of the mixture", mixture.params),
            "Xa": Symbol("A_{moe}", "matrix outputs of the mixture", mixture.activations),
        }
    symbols |= {
        "Nv": Symbol("V_{norm}", "vector FLOPs of a norm", norm.vector_flops),
        "Ap": Symbol("P_{attn}", "parameters of attention", attention.params),
        "Aa": Symbol("A_{attn}", "matrix outputs of attention", attention.activations),
        "Ac": Symbol("C_{attn}", "bytes of one layer's cache", attention.cache_bytes),
    }
    if layers:
        symbols |= {
            "L": Symbol("L", "layers", str(decoder.layers)),
            "X": Symbol("L_{moe}", "layers with a mixture", str(decoder.moe_layers)),
            "V": SYMBOLS["V"],
        }
    return symbols


def stack_values(facts: Facts) -> dict[str, int]:
    """Values of those symbols of `stack_symbols` that are the same in every pass."""
    decoder = facts.decoder
    values = {
        "B": 1,
        "d": decoder.hidden_size,
        "H": decoder.heads,
        "G": decoder.kv_heads,
        "D": decoder.head_dim,
        "m": decoder.intermediate_size,
        "a": activation_flops(decoder.hidden_act),
        "e": BFLOAT16.nbytes,
        "V": decoder.vocab_size,
    }
    if decoder.n_routed_experts is not None:
        values |= mixture_values(decoder)
    if decoder.use_mla:
        values |= {
            "r": decoder.kv_lora_rank,
            "q": decoder.q_lora_rank or 0,
            "P": decoder.qk_nope_head_dim,
            "R": decoder.qk_rope_head_dim,
            "v": decoder.v_head_dim,
        }
    return values


def stack_formulas(facts: Facts) -> Formulas:
    """Formulas of embedding, layers and final norm, in the symbols of `stack_symbols`."""
    decoder, mlp = facts.decoder, gated_mlp_formulas("B * T")

    def both(dense_part: str, mixed_part: str) -> str:
        if decoder.n_routed_experts is None:
            return f"(L - X) * {dense_part}"
        return f"(L - X) * {dense_part} + X * {mixed_part}"

    masked = "" if decoder.masks_steps else "(T > 1) * "
    return Formulas(
        macs=f"L * Am + {both('Dm', 'Xm')}",
        vector_flops=f"L * (Av + 2 * Nv + 2 * B * T * d) + {both('Dv', 'Xv')} + Nv"
        f" + {masked}B * T * K + (T > 1) * (T + T ** 2)",
        params=f"V * d + L * (Ap + 2 * d) + {both(mlp.params, 'Xp')} + d",
        activations=f"L * Aa + {both(mlp.activations, 'Xa')}",
        cache_bytes="L * Ac",
    )


def with_head(model: Formulas, outputs: str, *, shares_weights: bool = False) -> Formulas:
    """Formulas of a model and a linear map of all its tokens to `outputs` features."""
    weights = "" if shares_weights else f" + d * {outputs}"
    return replace(
        model,
        macs=f"{model.macs} + B * T * d * {outputs}",
        params=f"{model.params}{weights}",
        activations=f"{model.activations} + B * T * {outputs}",
    )


def stack_cases(
    facts: Facts,
    name: str,
    closed: Callable[[int, int], Kernels],
    below: str = "",
) -> tuple[Case, ...]:
    """One case per decoder pass of the class `name`.

    Args:
        facts: The model.
        name: The class, which takes only the config.
        closed: Returns its kernels from the closed forms, given new and cached tokens.
        below: The module's path in the model.
    """
    return cases_of(
        facts.steps,
        lambda T, K: {**stack_values(facts), "T": T, "K": K},
        build=lambda *_: facts.make(name, facts.config),
        keywords=lambda T, K: {
            "input_ids": facts.ids(T),
            "attention_mask": facts.ids(K),
            "position_ids": facts.ids(T),
            "past_key_values": facts.cache(facts.decoder.layers, K - T),
            "use_cache": True,
        },
        closed_form=lambda T, K: closed(T, K - T),
        alike=facts.alike(below),
    )


_STACK_KEYS: Final = {
    "vocab_size": "Rows of the embedding (and the head).",
    "hidden_size": "Width d.",
    "num_hidden_layers": "Layers.",
    "num_attention_heads": "Query heads of a layer.",
    "num_key_value_heads": "Key and value heads of a layer.",
    "max_position_embeddings": "Positions that the model was trained for.",
    "rms_norm_eps": "Epsilon of the norms.",
    "use_cache": "Whether a pass returns its cache.",
    "pad_token_id": "Row of the embedding for padding.",
}


def stack_parameters(facts: Facts) -> dict[str, Parameter]:
    """The config keys of a whole decoder."""
    return {"config": THE_CONFIG, **config_parameters(facts.config, _STACK_KEYS)}
