"""The decoder's latent attention through FlashAttention-2."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.latent_attention import latent_page
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    return latent_page(
        facts,
        "DeepseekV2FlashAttention2",
        flash=True,
        block="latent attention, FlashAttention-2",
        what="Multi-head latent attention through FlashAttention-2. The kernel takes keys and"
        " values, so the latent is projected up for every head, and the cache holds full keys and"
        " values, padded to the same size. The scores are never written to memory.",
        diagram="""flowchart TB
  x["x [B, T, d]"] --> qa["q_a_proj, norm, q_b_proj"]
  x --> kva["kv_a_proj_with_mqa"]
  kva --> up["norm, kv_b_proj"]
  kva --> kp["k_pe, rotated"]
  qa --> q["queries [B, T, H, D_n + D_r]"]
  up --> k["keys, joined with k_pe"]
  kp --> k
  up --> v["values, padded to a key's size"]
  k --> cache[("cache: keys and values")]
  v --> cache
  q --> kernel["flash_attn_func, causal"]
  cache --> kernel
  kernel --> cut["cut to D_v"]
  cut --> o["o_proj"]""",
        pseudo_code="""q = join(q_nope, rotate(q_pe))
k_nope, v = split(kv_b_proj(norm(latent)))
k = join(k_nope, rotate(k_pe))
v = pad(v, key_size - value_size)
k, v = cache.update(k, v)
return o_proj(flash_attn_func(q, k, v, causal=True)[..., :value_size])""",
        mathematics=r"k_j = [W_k c_j;\ k^r_j], \quad v_j = W_v c_j, \quad"
        r" o_t = W_o \sum_j \mathrm{softmax}_j\left(\frac{q_t^T k_j}{\sqrt{D_n + D_r}}\right) v_j",
        flops_notes=(
            "Values are padded to a key's size, and the work on the padding is counted.",
            "A causal kernel may skip the scores above the diagonal; they are counted here, and the"
            " main command reports them as `causal_savable_flops`.",
        ),
        memory_notes=(
            "The cache is larger than that of the eager class: full keys and values of every head.",
        ),
        related=("DeepseekV2Attention", "DeepseekV2DecoderLayer", "DeepseekV2RotaryEmbedding"),
        notes="MLA through the kernel; keys and values projected up",
        references=("deepseekv2", "rope", "flash2"),
    )
