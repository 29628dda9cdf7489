"""Latent attention: the page template of the eager and the flash class."""

from __future__ import annotations

from typing import Any, Final

from dsocr_analyze.costs.mla import LatentHeads, mla_attention
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.decoder import (
    LAYER_INDEX,
    SYMBOLS,
    THE_CONFIG,
    config_parameters,
)
from dsocr_analyze.knowledge.families.reference_files import DECODER
from dsocr_analyze.knowledge.families.rotary import YARN_OPERATORS
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Parameter, Symbol, pick
from dsocr_analyze.knowledge.machinery.signature import import_line

__all__ = ["LATENT_SYMBOLS", "latent_formulas", "latent_page"]

_CLASS_DEFAULTS: Final = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)


LATENT_SYMBOLS: Final = {
    "r": Symbol("d_c", "rank of the keys' and values' latent"),
    "q": Symbol("d_q", "rank of the queries' latent"),
    "P": Symbol("D_n", "features of a head without positions"),
    "R": Symbol("D_r", "rotary features of a head"),
    "v": Symbol("D_v", "features of a value head"),
}


def latent_page(
    facts: Facts,
    name: str,
    *,
    flash: bool,
    block: str,
    what: str,
    diagram: str,
    pseudo_code: str,
    mathematics: str,
    flops_notes: tuple[str, ...],
    memory_notes: tuple[str, ...],
    related: tuple[str, ...],
    notes: str,
    references: tuple[str, ...],
) -> Page:
    """The page of the class `name`, in the catalogue the block `block` of both passes.

    For the other arguments see `Page`.
    """
    return Page(
        group="Decoder: attention",
        subject=facts.get(name),
        what=f"{what}{_not_used(facts)}",
        blocks=(("prefill", block), ("decode", block)),
        layer=f"costs.mla.mla_attention (flash={flash})",
        inputs={"hidden_states": "B, T, d"},
        output="B, T, d",
        parameters=_parameters(facts),
        diagram=diagram,
        pseudo_code=pseudo_code,
        mathematics=mathematics,
        symbols=_symbols(facts),
        formulas=_flash_formulas(facts) if flash else latent_formulas(facts),
        cases=_cases(facts, name, flash=flash),
        flops_notes=flops_notes,
        memory_notes=memory_notes,
        related=related,
        usage=_usage(facts, name),
        notes=notes,
        references=references,
    )


def _latent_config(facts: Facts, attention: str) -> Any:
    """The model's own config if it uses latent attention, else the class's default sizes."""
    if facts.decoder.use_mla:
        return facts.config_with(attention)
    defaults = facts.defaults()
    return facts.config_with(
        attention, use_mla=True, **{key: defaults[key] for key in _CLASS_DEFAULTS}
    )


def _latent_heads(config: Any) -> LatentHeads:
    scaling = config.rope_scaling
    return LatentHeads(
        heads=config.num_attention_heads,
        q_rank=config.q_lora_rank,
        kv_rank=config.kv_lora_rank,
        nope=config.qk_nope_head_dim,
        rope=config.qk_rope_head_dim,
        value=config.v_head_dim,
        variant="default" if scaling is None else scaling["type"],
        trained_length=config.max_position_embeddings,
        bias=bool(config.attention_bias),
    )


def _parameters(facts: Facts) -> dict[str, Parameter]:
    """Parameters of the constructor."""
    return {
        "config": THE_CONFIG,
        "layer_idx": LAYER_INDEX,
        **config_parameters(
            facts.config,
            {
                "hidden_size": "Width d.",
                "num_attention_heads": "Heads H.",
                "q_lora_rank": "Rank of the queries' latent; None for one full projection.",
                "kv_lora_rank": "Rank of the keys' and values' latent, which is cached.",
                "qk_nope_head_dim": "Features of a head's query and key without positions.",
                "qk_rope_head_dim": "Rotary features of a head's query; the key's are shared by all"
                " heads.",
                "v_head_dim": "Features of a value head.",
                "rope_theta": "Base of the rotary frequencies.",
                "rope_scaling": "How rotary positions are stretched.",
                "attention_bias": "Whether the latent and output projections have biases.",
                "attention_dropout": "Dropout of the attention weights, in training.",
            },
        ),
    }


def _symbols(facts: Facts) -> dict[str, Symbol]:
    """Symbols of the formulas; without the queries' latent if there is none."""
    has_query_latent = _latent_config(facts, "eager").q_lora_rank is not None
    return pick("B T K d H e", SYMBOLS) | {
        name: symbol for name, symbol in LATENT_SYMBOLS.items() if name != "q" or has_query_latent
    }


def _cases(facts: Facts, name: str, *, flash: bool) -> tuple[Case, ...]:
    """One case of the class `name` per decoder pass."""
    config = _latent_config(facts, "flash_attention_2" if flash else "eager")
    latent, d = _latent_heads(config), config.hidden_size
    values = {
        "B": 1,
        "d": d,
        "H": latent.heads,
        "r": latent.kv_rank,
        "P": latent.nope,
        "R": latent.rope,
        "v": latent.value,
        "e": BFLOAT16.nbytes,
    }
    if latent.q_rank is not None:
        values["q"] = latent.q_rank

    def cache(past: int) -> Any:
        if flash:
            pair = (tensor(1, latent.heads, past, latent.query),) * 2
        else:
            pair = (tensor(1, 1, past, latent.rope), tensor(1, 1, past, latent.kv_rank))
        return facts.get("KeyValueCache")([pair] if past else [])

    return cases_of(
        facts.steps,
        lambda T, K: {"T": T, "K": K, **values},
        build=lambda *_: facts.make(name, config, 0),
        arguments=lambda T, _: [tensor(1, T, d)],
        keywords=lambda T, K: {
            "attention_mask": None if flash else tensor(1, 1, T, K),
            "position_ids": facts.positions(T),
            "past_key_value": cache(K - T),
        },
        closed_form=lambda T, K: mla_attention(1, T, K - T, d, latent, BFLOAT16, flash=flash),
    )


def _not_used(facts: Facts) -> str:
    """The note for a model without latent attention; empty otherwise."""
    if facts.decoder.use_mla:
        return ""
    return (
        f" In {facts.model_name} it is not used: `use_mla` is false, and the layers have plain"
        " multi-head attention. The figures here use the published width and heads with the default"
        " latent sizes of `DeepseekV2Config`."
    )


def _query_terms(facts: Facts) -> tuple[str, str, str, str]:
    """MACs, vector FLOPs, parameters and activations of the queries' path, and all biases."""
    config = _latent_config(facts, "eager")
    if config.q_lora_rank is None:
        biases = "r + R + d" if config.attention_bias else "0"
        heads = "H * (P + R)"
        return (
            f"B * T * d * {heads}",
            f"B * T * ({biases})",
            f"d * {heads} + {biases}",
            f"B * T * {heads}",
        )
    biases = " + q + r + R + d" if config.attention_bias else ""
    return (
        "B * T * q * (d + H * (P + R))",
        f"B * T * (4 * q + 2{biases})",
        f"q * (d + H * (P + R)) + q{biases}",
        "B * T * (q + H * (P + R))",
    )


def _rope_terms(facts: Facts) -> str:
    """Vector FLOPs of the tables and of rotating queries and the shared key."""
    scaling = _latent_config(facts, "eager").rope_scaling
    kind = None if scaling is None else scaling["type"]
    extra = {
        None: "",
        "linear": " + K",
        "dynamic": f" + (K > {facts.decoder.max_position_embeddings}) * 4 * R / 2",
        "yarn": f" + 2 * K * R + {YARN_OPERATORS} * R / 2",
    }[kind]
    return f"K * R / 2 + 2 * K * R{extra} + 7 / 2 * B * T * R * (H + 1)"


def latent_formulas(facts: Facts, *, masks_steps: bool = True) -> Formulas:
    """Formulas of eager latent attention; one of the FLOPs per score is the mask."""
    score = "8" if masks_steps else "(7 + (T > 1))"
    macs, vector, params, outputs = _query_terms(facts)
    rope = _rope_terms(facts)
    return Formulas(
        macs=f"{macs} + B * T * d * (r + R) + B * H * T * r * (P + v)"
        " + B * H * T * K * (R + 2 * r) + B * T * H * v * d",
        vector_flops=f"{vector} + B * T * (4 * r + 2) + {rope} + {score} * B * H * T * K",
        params=f"{params} + d * (r + R) + r + r * H * (P + v) + H * v * d",
        activations=f"{outputs} + B * T * (r + R) + B * H * T * (2 * r + v)"
        " + 2 * B * H * T * K + B * T * d",
        cache_bytes="B * K * (r + R) * e",
    )


def _flash_formulas(facts: Facts) -> Formulas:
    """Formulas of latent attention through the kernel, for which values are padded."""
    macs, vector, params, outputs = _query_terms(facts)
    rope = _rope_terms(facts)
    return Formulas(
        macs=f"{macs} + B * T * d * (r + R) + B * T * r * H * (P + v)"
        " + 2 * B * H * T * K * (P + R) + B * T * H * v * d",
        vector_flops=f"{vector} + B * T * (4 * r + 2) + {rope} + 6 * B * H * T * K",
        params=f"{params} + d * (r + R) + r + r * H * (P + v) + H * v * d",
        activations=f"{outputs} + B * T * (r + R) + B * T * H * (P + v)"
        " + B * T * H * (P + R) + B * T * d",
        cache_bytes="2 * B * K * H * (P + R) * e",
    )


def _usage(facts: Facts, name: str) -> str:
    """The usage snippet of the class `name`; it calls only the eager class."""
    d, T = facts.decoder.hidden_size, facts.tokens
    names = ", ".join(f'"{key}"' for key in _CLASS_DEFAULTS)
    sizes = ""
    if not facts.decoder.use_mla:
        sizes = "defaults = type(config)()\n"
        sizes += f"for key in ({names}):\n    setattr(config, key, getattr(defaults, key))\n"
    call = "assert attention.kv_b_proj.in_features == config.kv_lora_rank"
    if name == "DeepseekV2Attention":
        call = f"""with torch.device("meta"):
    out, weights, cache = attention(torch.empty(1, {T}, {d}))
assert out.shape == (1, {T}, {d}) and weights is None"""
    return f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
{import_line(DECODER, name)}

config = DeepSeekOCRSession.from_local().model.config
{sizes}with torch.device("meta"):
    attention = {name}(config, layer_idx=0).eval()
{call}"""
