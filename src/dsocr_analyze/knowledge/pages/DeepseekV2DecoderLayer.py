"""A layer of the decoder."""

from __future__ import annotations

from typing import Any

from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
from dsocr_analyze.knowledge.families.decoder import THE_CONFIG
from dsocr_analyze.knowledge.families.decoder_stack import (
    attention_note,
    stack_symbols,
    stack_values,
)
from dsocr_analyze.knowledge.families.mlp import gated_mlp_formulas
from dsocr_analyze.knowledge.families.pre_norm import PRE_NORM, pre_norm_diagram
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Parameter, Symbol

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    decoder = facts.decoder
    d, D = decoder.hidden_size, decoder.head_dim
    shown = next((i for i in range(decoder.layers) if decoder.is_moe(i)), 0)
    return Page(
        group="Decoder: the stack",
        subject=facts.get("DeepseekV2DecoderLayer"),
        what="One layer of the decoder: normalise, attend, add; normalise, MLP, add. The attention"
        " class depends on `use_mla` and the attention implementation. The MLP is a mixture of"
        " experts if the config has routed experts, the layer is not one of the first, dense ones,"
        " and its number is a multiple of `moe_layer_freq`.",
        blocks=(("prefill", "decoder layer"), ("decode", "decoder layer")),
        layer="architectures.ocr_family.decoder (one layer of it)",
        inputs={"hidden_states": "B, T, d"},
        output="B, T, d",
        parameters=_parameters(decoder),
        diagram=pre_norm_diagram(
            f"[B, T, {d}]",
            norms=("input_layernorm: RMSNorm", "post_attention_layernorm: RMSNorm"),
            attention=f"""  n1 --> attn["self_attn: {decoder.heads} heads of {D}"]
  cache[("KV cache")] <--> attn""",
            mlp="mlp: DeepseekV2MLP or DeepseekV2MoE",
        ),
        pseudo_code="""x = x + self_attn(input_layernorm(x), mask, positions, cache)
return x + mlp(post_attention_layernorm(x))""",
        mathematics=PRE_NORM
        + r", \quad \mathrm{attn}(x) = \mathrm{softmax}\left(\frac{Q K^T}{\sqrt{D}} + M\right) V\, W_o",
        symbols={
            **stack_symbols(facts, layers=False),
            "x": Symbol("x", "1 for a layer with a mixture, 0 for a dense one"),
        },
        formulas=_formulas(facts),
        cases=_cases(facts),
        flops_notes=(attention_note(facts),),
        memory_notes=(
            "The eager scores are written to memory and read back several times, in fp32 for the"
            " softmax; with FlashAttention-2 they never leave the kernel.",
        ),
        related=(
            "DeepseekV2RMSNorm",
            "DeepseekV2Attention",
            "DeepseekV2FlashAttention2",
            "DeepseekV2MLP",
            "DeepseekV2MoE",
            "DeepseekV2Model",
        ),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.running.forward import running

layer = DeepSeekOCRSession.from_local().model.model.layers[{shown}]
x = torch.empty(1, {facts.tokens}, {d}, dtype=torch.bfloat16, device="meta")
with running(torch.device("meta")):
    (y,) = layer(x)
assert y.shape == x.shape""",
        notes="pre-norm; plain attention unless `use_mla`",
        references=("deepseekv2", "attention", "rmsnorm"),
    )


def _parameters(decoder: DecoderDimensions) -> dict[str, Parameter]:
    return {
        "config": THE_CONFIG,
        "layer_idx": Parameter("Number of the layer, from 0.", f"0 to {decoder.layers - 1}"),
        "config.use_mla": Parameter("Latent or plain attention.", decoder.use_mla),
        "config.n_routed_experts": Parameter(
            "Routed experts; None if all layers are dense.", decoder.n_routed_experts
        ),
        "config.first_k_dense_replace": Parameter(
            "Number of dense layers at the start.", decoder.first_k_dense_replace
        ),
        "config.moe_layer_freq": Parameter(
            "Interval between mixture layers.", decoder.moe_layer_freq
        ),
        "config.rms_norm_eps": Parameter("Epsilon of both norms.", decoder.rms_norm_eps),
    }


def _formulas(facts: Facts) -> Formulas:
    mlp = gated_mlp_formulas("B * T")
    has_mixture = facts.decoder.n_routed_experts is not None

    def either(dense: str, mixed: str) -> str:
        return f"(1 - x) * {dense} + x * {mixed}" if has_mixture else f"(1 - x) * {dense}"

    return Formulas(
        macs=f"Am + {either('Dm', 'Xm')}",
        vector_flops=f"Av + {either('Dv', 'Xv')} + 2 * Nv + 2 * B * T * d",
        params=f"Ap + 2 * d + {either(mlp.params, 'Xp')}",
        activations=f"Aa + {either(mlp.activations, 'Xa')}",
        cache_bytes="Ac",
    )


def _cases(facts: Facts) -> tuple[Case, ...]:
    """Every pass of the first dense layer and of the first mixture layer."""
    decoder, d = facts.decoder, facts.decoder.hidden_size
    firsts = []
    for kind, wanted in (("dense layer", False), ("MoE layer", True)):
        index = next((i for i in range(decoder.layers) if decoder.is_moe(i) == wanted), None)
        if index is not None:
            firsts.append((kind, index))

    def build(index: int) -> Any:
        # The layer runs alone, so it uses layer 0 of the cache.
        layer: Any = facts.make("DeepseekV2DecoderLayer", facts.config, index)
        layer.self_attn.layer_idx = 0
        return layer

    def of_call(index: int, T: int, K: int) -> dict[str, int]:
        return {**stack_values(facts), "T": T, "K": K, "x": int(decoder.is_moe(index))}

    return cases_of(
        [(f"{kind}, {step}", index, T, K) for kind, index in firsts for step, T, K in facts.steps],
        of_call,
        build=lambda index, T, K: build(index),
        arguments=lambda index, T, K: [tensor(1, T, d)],
        keywords=lambda index, T, K: {
            "attention_mask": facts.mask(T, K),
            "position_ids": facts.positions(T),
            "past_key_value": facts.cache(1, K - T),
        },
        closed_form=lambda index, T, K: facts.layer_kernels(index, T, K - T),
    )
