"""The decoder's latent attention, eager."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.latent_attention import latent_page
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    return latent_page(
        facts,
        "DeepseekV2Attention",
        flash=False,
        block="latent attention (MLA)",
        what="Multi-head latent attention (MLA), eager. Keys and values of all heads come from one"
        " latent vector per token, and the heads share the rotary part of the key; only these two"
        " are cached. The latent is never projected up: the weight of that projection is absorbed"
        " into the queries and into the outputs, so the module `kv_b_proj` is never called.",
        diagram="""flowchart TB
  x["x [B, T, d]"] --> qa["q_a_proj, norm, q_b_proj"]
  qa --> qn["q_nope"]
  qa --> qp["q_pe, rotated"]
  x --> kva["kv_a_proj_with_mqa"]
  kva --> norm["latent, normalised"]
  kva --> kp["k_pe, rotated"]
  norm --> cache[("cache: latent and k_pe")]
  kp --> cache
  qn --> absorb["times W_k of kv_b_proj"]
  absorb --> scores["scores: latent and rotary part"]
  qp --> scores
  cache --> scores
  scores --> softmax["scale, mask, softmax in fp32"]
  softmax --> mix["weights times latent"]
  cache --> mix
  mix --> up["times W_v of kv_b_proj"]
  up --> o["o_proj"]""",
        pseudo_code="""q_nope, q_pe = split(q_b_proj(norm(q_a_proj(x))))
latent, k_pe = split(kv_a_proj_with_mqa(x))
latent, k_pe = cache.update(norm(latent), rotate(k_pe))
W_k, W_v = split(kv_b_proj.weight)
scores = rotate(q_pe) @ k_pe.T + (q_nope @ W_k) @ latent.T
weights = softmax(scores * scale + mask)
return o_proj(((weights @ latent) @ W_v.T))""",
        mathematics=r"c_t = \mathrm{norm}(W_{dkv} x_t), \quad"
        r" a_{tj} = \mathrm{softmax}_j\left(\frac{(W_k^T q^n_t)^T c_j + (q^r_t)^T k^r_j}"
        r"{\sqrt{D_n + D_r}}\right), \quad"
        r" o_t = W_o\, W_v \sum_j a_{tj}\, c_j",
        flops_notes=(
            "The whole product of T queries and K keys is computed; the mask makes it causal.",
            "Absorbing the weight avoids projecting every cached token, but makes the scores more"
            " expensive: the latent is wider than a head.",
        ),
        memory_notes=(
            "The cache holds the latent and the shared rotary key, so its size does not depend on"
            " the number of heads.",
        ),
        related=(
            "DeepseekV2FlashAttention2",
            "DeepseekV2DecoderLayer",
            "DeepseekV2RotaryEmbedding",
            "DeepseekV2RMSNorm",
            "repeat_kv",
        ),
        notes="MLA, up-projection absorbed; not used if `use_mla` is false",
        references=("deepseekv2", "rope"),
    )
