"""Rotary positions of DeepSeek-OCR-2's encoder."""

from __future__ import annotations

from dsocr_analyze.costs.rope import llama_tables
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.qwen2 import (
    GROUP,
    INNER,
    SYMBOLS,
    encoder_of,
    hidden,
    tokens,
    view_cases,
)
from dsocr_analyze.knowledge.families.rotary import ROTATION
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, Parameter, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    encoder = encoder_of(facts)
    D = encoder.head_dim
    return Page(
        group=GROUP,
        subject=facts.class_at(f"{INNER}.rotary_emb"),
        what="Cosines and sines of position times frequency, computed at every call for one row of"
        " positions that all views share: image tokens have positions from zero, and the queries"
        " follow. The product of frequencies and positions is a matrix product, so it counts as"
        f" MACs. Of the {encoder.layers + 1} modules of this class only the model's own is called;"
        " those of the layers are a leftover of the class they inherit from.",
        blocks=(("encoder", "rotary positions"),),
        layer="costs.rope.llama_tables",
        inputs={"x": "N, T, d", "position_ids": "1, T"},
        output="1, T, D",
        parameters={"config": Parameter("Base of the frequencies, size of a head.", "made above")},
        diagram=f"""flowchart LR
  p["positions [1, T]"] --> outer["matrix product [1, T, {D // 2}]"]
  f["frequencies [{D // 2}], fp32"] --> outer
  outer --> both["both halves [1, T, {D}]"]
  both --> cos["cosine, cast"]
  both --> sin["sine, cast"]""",
        pseudo_code="""angles = inv_freq[:, None] @ position_ids[:, None].float()
angles = cat(angles, angles)
return cos(angles).to(x.dtype), sin(angles).to(x.dtype)""",
        mathematics=ROTATION,
        symbols=pick("N q n T d D", SYMBOLS),
        formulas=Formulas(macs="T * D / 2", vector_flops="4 * T * D", activations="T * D / 2"),
        cases=view_cases(
            facts,
            f"{INNER}.rotary_emb",
            lambda N, R: [*hidden(facts)(N, R), facts.positions(tokens(facts, R))],
            lambda N, R: llama_tables(1, tokens(facts, R), D, BFLOAT16),
        ),
        related=("Qwen2SdpaAttention", "CustomQwen2ModelInner", "DeepseekV2RotaryEmbedding"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

rotary = DeepSeekOCRSession.from_local().model.model.qwen2_model.model.model.rotary_emb
positions = torch.arange(8, device="meta")[None]
cos, sin = rotary(torch.empty(0, dtype=torch.bfloat16, device="meta"), positions)
assert cos.shape == sin.shape == (1, 8, {D})""",
        notes="once per call, for one row of positions",
        references=("rope",),
    )
