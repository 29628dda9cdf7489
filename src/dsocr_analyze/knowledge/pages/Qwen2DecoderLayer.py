"""A layer of DeepSeek-OCR-2's encoder."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.pre_norm import PRE_NORM, pre_norm_diagram
from dsocr_analyze.knowledge.families.qwen2 import (
    GROUP,
    LAYER,
    LAYER_FORMULAS,
    encoder_of,
    frame_and_layer,
    hidden,
    layer_arguments,
    layer_symbols,
    view_cases,
)
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page, Parameter

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    encoder = encoder_of(facts)
    d = encoder.width
    return Page(
        group=GROUP,
        subject=facts.class_at(LAYER),
        what="One layer of the encoder: normalise, attend, add; normalise, MLP, add. It differs"
        " from the decoder's dense layer in its attention: fewer key and value heads, biases, and"
        " scores that are never written to memory.",
        blocks=(("encoder", "layer"),),
        layer="architectures.deepseek_ocr_2.encoder (one layer of it)",
        inputs={"hidden_states": "N, T, d"},
        output="N, T, d",
        parameters={
            "config": Parameter("Settings of attention, MLP and norms.", "made above"),
            "layer_idx": Parameter("Number of the layer, from 0.", f"0 to {encoder.layers - 1}"),
        },
        diagram=pre_norm_diagram(
            f"[N, T, {d}]",
            norms=("input_layernorm: Qwen2RMSNorm", "post_attention_layernorm: Qwen2RMSNorm"),
            attention="""  n1 --> attn["self_attn: Qwen2SdpaAttention"]
  mask["mixed mask, rotary tables"] --> attn""",
            mlp=f"mlp: Qwen2MLP<br/>{d} to {encoder.intermediate_size} to {d}",
        ),
        pseudo_code="""x = x + self_attn(input_layernorm(x), mask, tables, cache)
return x + mlp(post_attention_layernorm(x)), cache""",
        mathematics=PRE_NORM,
        symbols=layer_symbols(),
        formulas=LAYER_FORMULAS,
        cases=view_cases(
            facts,
            LAYER,
            hidden(facts),
            lambda N, R: frame_and_layer(facts, N, R)[1],
            layer_arguments(facts),
        ),
        flops_notes=("The MLP is wide relative to the model and has most of a layer's MACs.",),
        related=(
            "CustomQwen2ModelInner",
            "Qwen2SdpaAttention",
            "Qwen2MLP",
            "Qwen2RMSNorm",
            "DeepseekV2DecoderLayer",
        ),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

layer = DeepSeekOCRSession.from_local().model.model.qwen2_model.model.model.layers[0]
assert layer.mlp.gate_proj.out_features == {encoder.intermediate_size}
assert sum(weights.numel() for weights in layer.parameters()) == {_layer_params(facts)}""",
        notes="pre-norm, grouped-query attention, SwiGLU",
        references=("qwen2",),
    )


def _layer_params(facts: Facts) -> int:
    return sum(weights.numel() for weights in facts.at(LAYER).parameters())
