"""The MLP of DeepSeek-OCR-2's encoder."""

from __future__ import annotations

from dsocr_analyze.costs.swiglu import swiglu
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.mlp import SILU_GATE, gated_mlp_formulas
from dsocr_analyze.knowledge.families.qwen2 import (
    GROUP,
    LAYER,
    SYMBOLS,
    encoder_of,
    hidden,
    tokens,
    view_cases,
)
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page, Parameter, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    encoder = encoder_of(facts)
    d, m = encoder.width, encoder.intermediate_size
    return Page(
        group=GROUP,
        subject=facts.class_at(f"{LAYER}.mlp"),
        what="The gated MLP of a layer, computed like the decoder's `DeepseekV2MLP`: two up"
        " projections, one of them through SiLU, their product, one down projection; no biases.",
        blocks=(("encoder", "SwiGLU MLP"),),
        layer="costs.swiglu.swiglu",
        inputs={"x": "N, T, d"},
        output="N, T, d",
        parameters={
            "config": Parameter("Source of the widths and the activation.", "made above"),
            "hidden_size": Parameter("Overrides the config's width.", None),
            "intermediate_size": Parameter("Overrides the config's hidden width.", None),
        },
        diagram=f"""flowchart LR
  x["x [N, T, {d}]"] --> gate["gate_proj, SiLU<br/>{d} to {m}"]
  x --> up["up_proj<br/>{d} to {m}"]
  gate --> product["product"]
  up --> product
  product --> down["down_proj<br/>{m} to {d}"]
  down --> y["y [N, T, {d}]"]""",
        pseudo_code="return down_proj(silu(gate_proj(x)) * up_proj(x))",
        mathematics=SILU_GATE,
        symbols=pick("N q n T d m a", SYMBOLS),
        formulas=gated_mlp_formulas("N * T"),
        cases=view_cases(
            facts,
            f"{LAYER}.mlp",
            hidden(facts),
            lambda N, R: swiglu(N * tokens(facts, R), d, m, BFLOAT16),
        ),
        related=("DeepseekV2MLP", "Qwen2DecoderLayer"),
        usage=f"""from dsocr_analyze.session import DeepSeekOCRSession

mlp = DeepSeekOCRSession.from_local().model.model.qwen2_model.model.model.layers[0].mlp
assert mlp.gate_proj.weight.shape == mlp.up_proj.weight.shape == ({m}, {d})
assert mlp.down_proj.bias is None""",
        notes="same as the decoder's",
        references=("swiglu",),
    )
