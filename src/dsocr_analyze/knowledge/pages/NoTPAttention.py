"""The CLIP encoder's attention."""

from __future__ import annotations

from dsocr_analyze.costs.self_attention import self_attention
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.clip import (
    GROUP,
    SYMBOLS,
    setting_parameters,
    settings,
    tokens,
    view_cases,
)
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    clip = facts.clip
    d = clip.width
    T = tokens(facts, facts.views[0][2])
    return Page(
        group=GROUP,
        subject=facts.get("NoTPAttention"),
        what="Multi-head self-attention of the CLIP encoder: one fused projection to queries, keys"
        " and values, PyTorch's scaled dot-product attention without a mask, and an output"
        ' projection. ("NoTP" means no tensor parallelism.)',
        blocks=(("clip", "self-attention"),),
        layer="costs.self_attention.self_attention",
        inputs={"x": "N, T, d"},
        output="N, T, d",
        parameters=setting_parameters(facts, "hidden_size", "num_attention_heads"),
        diagram=f"""flowchart LR
  x["x [N, T, {d}]"] --> qkv["qkv_proj<br/>{d} to {3 * d}"]
  qkv --> q["q"]
  qkv --> k["k"]
  qkv --> v["v"]
  q --> sdpa["scaled dot-product attention<br/>{clip.heads} heads of {clip.head_dim}"]
  k --> sdpa
  v --> sdpa
  sdpa --> out["out_proj<br/>{d} to {d}"]
  out --> y["y [N, T, {d}]"]""",
        pseudo_code="""q, k, v = split(qkv_proj(x))               # [N, H, T, D]
return out_proj(join_heads(scaled_dot_product_attention(q, k, v)))""",
        mathematics=r"y = W_o\, \mathrm{softmax}\left(\frac{Q K^T}{\sqrt{D}}\right) V + b_o,"
        r" \quad [Q, K, V] = x W_{qkv}^T + b_{qkv}",
        symbols=pick("N q T d H", SYMBOLS),
        formulas=Formulas(
            macs="4 * N * T * d ** 2 + 2 * N * T ** 2 * d",
            vector_flops="4 * N * T * d + 6 * N * H * T ** 2",
            params="4 * d ** 2 + 4 * d",
            activations="5 * N * T * d",
        ),
        cases=view_cases(
            facts,
            build=lambda: facts.make("NoTPAttention", settings(facts)),
            closed_form=lambda N, R: self_attention(N, tokens(facts, R), d, clip.heads, BFLOAT16),
        ),
        flops_notes=("A score costs a scale and a softmax (five FLOPs); there is no mask.",),
        memory_notes=("Fused: the scores are never written to memory.",),
        related=("NoTPTransformerBlock", "Attention", "DeepseekV2DecoderLayer"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

block = DeepSeekOCRSession.from_local().model.model.vision_model.transformer.layers[0]
x = torch.empty(1, {T}, {d}, dtype=torch.bfloat16, device="meta")
assert block.self_attn(x).shape == x.shape""",
        notes="fused, no mask",
        references=("attention", "clip"),
    )
