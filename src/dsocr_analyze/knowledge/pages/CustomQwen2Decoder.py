"""The decoder in DeepSeek-OCR-2's encoder: its config and its model."""

from __future__ import annotations

from typing import Any

from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import EncoderDimensions
from dsocr_analyze.knowledge.families.qwen2 import (
    DECODER,
    GROUP,
    INNER,
    STACK,
    embeds_and_kinds,
    encoder_of,
    inner_kernels,
    stack_symbols,
    view_cases,
)
from dsocr_analyze.knowledge.families.reference_files import QWEN2
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page, Parameter
from dsocr_analyze.knowledge.machinery.signature import import_line

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    encoder = encoder_of(facts)
    config: Any = facts.at(INNER).config
    return Page(
        group=GROUP,
        subject=facts.class_at(DECODER),
        what="Builds the config of a small Qwen2 and holds the model made from it; calling it calls"
        " that model. The constructor's defaults are those of Qwen2 with half a billion parameters."
        " The token embedding and the head are left out, since the input is always features.",
        blocks=(("encoder", "decoder over image tokens and queries"),),
        layer="architectures.deepseek_ocr_2.encoder.encoder_sections (below its `model`)",
        inputs={"inputs_embeds": "N, T, d", "token_type_ids": "N, T"},
        output="N, T, d",
        parameters=_parameters(encoder, config),
        diagram="""flowchart LR
  x["inputs_embeds [N, T, d]"] --> model["model: CustomQwen2ModelInner"]
  kinds["token_type_ids [N, T]<br/>0 image token, 1 query"] --> model
  model --> y["last_hidden_state [N, T, d]"]
  model --> cache[("KV cache, dropped by the caller")]""",
        pseudo_code="""def __init__(sizes):
    self.model = CustomQwen2ModelInner(config(sizes, query, key and value with bias))
def forward(inputs_embeds, token_type_ids, attention_mask=None):
    return model(inputs_embeds=inputs_embeds, token_type_ids=token_type_ids)""",
        mathematics=r"y = \mathrm{Qwen2}(x;\ M(\mathrm{kinds}))",
        symbols=stack_symbols(),
        formulas=STACK,
        cases=view_cases(
            facts,
            DECODER,
            lambda N, R: [],
            lambda N, R: inner_kernels(facts, N, R),
            embeds_and_kinds(facts),
        ),
        flops_notes=("All of its work is done by the model that it holds.",),
        memory_notes=(
            "`use_cache` is left on: keys and values of every layer are returned with the result.",
        ),
        related=("Qwen2Decoder2Encoder", "CustomQwen2ModelInner"),
        usage=f"""import torch
{import_line(QWEN2, "CustomQwen2Decoder")}

with torch.device("meta"):
    decoder = CustomQwen2Decoder()
assert len(decoder.model.layers) == {facts.default("CustomQwen2Decoder", "decoder_layer")}
assert not hasattr(decoder.model, "embed_tokens")""",
        notes="config and model; no token embedding, no head",
        references=("qwen2",),
    )


def _parameters(encoder: EncoderDimensions, config: Any) -> dict[str, Parameter]:
    return {
        "decoder_layer": Parameter("Layers.", encoder.layers),
        "max_position_embeddings": Parameter(
            "Positions that it was trained for; nothing depends on it.",
            config.max_position_embeddings,
        ),
        "hidden_dimension": Parameter("Width d.", encoder.width),
        "num_attention_heads": Parameter("Query heads.", encoder.heads),
        "num_key_value_heads": Parameter("Key and value heads.", encoder.kv_heads),
        "intermediate_size": Parameter("Hidden width of the MLPs.", encoder.intermediate_size),
        "vocab_size": Parameter("Unused: there is no token embedding.", "any number"),
        "attn_implementation": Parameter("Only `sdpa` accepts the mixed mask.", "sdpa"),
        "rms_norm_eps": Parameter("Epsilon of the norms.", config.rms_norm_eps),
        "rope_theta": Parameter("Base of the rotary frequencies.", config.rope_theta),
        "attention_dropout": Parameter(
            "Dropout of the attention weights, in training.", config.attention_dropout
        ),
        "hidden_act": Parameter("Activation of the MLPs' gates.", config.hidden_act),
        "initializer_range": Parameter(
            "Standard deviation of the initial weights.", config.initializer_range
        ),
    }
