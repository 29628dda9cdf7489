"""The attention of DeepSeek-OCR-2's encoder."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.qwen2 import (
    ATTENTION,
    GROUP,
    LAYER,
    SYMBOLS,
    encoder_of,
    frame_and_layer,
    hidden,
    layer_arguments,
    part,
    view_cases,
)
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page, Parameter, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    encoder = encoder_of(facts)
    d, H, kv, D = encoder.width, encoder.heads, encoder.kv_heads, encoder.head_dim
    return Page(
        group=GROUP,
        subject=facts.class_at(f"{LAYER}.self_attn"),
        what="Grouped-query attention through PyTorch's fused `scaled_dot_product_attention`, with"
        " the mixed mask added to the scores. Queries, keys and values have biases, the output has"
        f" none. {H} query heads share {kv} key and value heads, which are repeated to match before"
        " the product. This class is used whichever attention the decoder after it was loaded with:"
        " the encoder is built with its own default, and FlashAttention-2 does not accept such a"
        " mask.",
        blocks=(("encoder", "attention"),),
        layer="architectures.deepseek_ocr_2.encoder (attention of a layer)",
        inputs={"hidden_states": "N, T, d"},
        output="N, T, d",
        parameters={
            "config": Parameter("Width, heads, base of the frequencies.", "made above"),
            "layer_idx": Parameter("Number of the layer: its place in the cache.", "0, 1, ..."),
        },
        diagram=_diagram(d, H, D, kv),
        pseudo_code="""q, k, v = heads(q_proj(x)), heads(k_proj(x)), heads(v_proj(x))
q, k = rotate(q, cos, sin), rotate(k, cos, sin)
k, v = cache.update(k, v)                     # before repetition
k, v = repeat_kv(k, H // H_kv), repeat_kv(v, H // H_kv)
out = scaled_dot_product_attention(q, k, v, attn_mask=mask)
return o_proj(join_heads(out))""",
        mathematics=r"y = W_o\,\mathrm{softmax}\left(\frac{q k^T}{\sqrt{D}} + M\right) v,"
        r" \quad q = \mathrm{rot}(W_q x + b_q), \quad k = \mathrm{rot}(W_k x + b_k),"
        r" \quad v = W_v x + b_v",
        symbols=pick("N q n T d H G D e", SYMBOLS),
        formulas=ATTENTION,
        cases=view_cases(
            facts,
            f"{LAYER}.self_attn",
            hidden(facts),
            lambda N, R: part(frame_and_layer(facts, N, R)[1], "self_attn"),
            layer_arguments(facts),
        ),
        flops_notes=(
            "A score costs a scale, the mask and a softmax (five FLOPs). Both products are over the"
            " whole square of T tokens, including masked entries.",
        ),
        memory_notes=(
            "The kernel reads queries, keys, values and mask and writes the heads; the scores never"
            " leave it. The repeated keys and values are copies.",
        ),
        related=(
            "Qwen2DecoderLayer",
            "Qwen2RotaryEmbedding",
            "CustomQwen2ModelInner",
            "repeat_kv",
            "Attention",
        ),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

layers = DeepSeekOCRSession.from_local().model.model.qwen2_model.model.model.layers
attention = layers[0].self_attn
assert attention.k_proj.out_features == {kv * D} and attention.k_proj.bias is not None
assert attention.o_proj.bias is None""",
        notes="fused, additive mask, biases, repeated key and value heads",
        references=("attention", "gqa", "rope", "qwen2"),
    )


def _diagram(d: int, H: int, D: int, kv: int) -> str:
    return f"""flowchart TB
  x["x [N, T, {d}]"] --> q["q_proj: Linear with bias<br/>{d} to {H * D}"]
  x --> k["k_proj: Linear with bias<br/>{d} to {kv * D}"]
  x --> v["v_proj: Linear with bias<br/>{d} to {kv * D}"]
  q --> rq["rotate"]
  k --> rk["rotate, repeat to {H} heads"]
  v --> rv["repeat to {H} heads"]
  rq --> sdpa["scaled dot-product attention"]
  rk --> sdpa
  rv --> sdpa
  mask["mask [N, 1, T, T]"] --> sdpa
  sdpa --> o["o_proj: Linear<br/>{H * D} to {d}"]
  o --> y["y [N, T, {d}]"]"""
