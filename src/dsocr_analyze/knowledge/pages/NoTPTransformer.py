"""The blocks of the CLIP encoder."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.clip import (
    BLOCK,
    GROUP,
    SYMBOLS,
    sections,
    setting_parameters,
    tokens,
    view_cases,
)
from dsocr_analyze.knowledge.machinery.facts import Facts, kernels_of
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    clip = facts.clip
    d = clip.width
    return Page(
        group=GROUP,
        subject=facts.get("NoTPTransformer"),
        what=f"The stack of the CLIP encoder: {clip.layers} identical blocks and no final norm.",
        blocks=(("clip", "transformer"),),
        layer="architectures.ocr_family.vision.clip_sections",
        inputs={"hidden_states": "N, T, d"},
        output="N, T, d",
        parameters=setting_parameters(
            facts, "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size"
        ),
        diagram=f"""flowchart LR
  x["x [N, T, {d}]"] --> layers["layers: {clip.layers} x NoTPTransformerBlock"]
  layers --> y["y [N, T, {d}]"]""",
        pseudo_code="""for layer in layers:
    x = layer(x)
return x""",
        mathematics=r"x^{(l)} = \mathrm{block}_l(x^{(l-1)}), \quad l = 1, \dots, L",
        symbols=pick("N q T d H m L", SYMBOLS),
        formulas=Formulas(
            macs=f"L * ({BLOCK.macs})",
            vector_flops=f"L * ({BLOCK.vector_flops})",
            params=f"L * ({BLOCK.params})",
            activations=f"L * ({BLOCK.activations})",
        ),
        cases=view_cases(
            facts,
            build=lambda: facts.at("model.vision_model.transformer"),
            closed_form=lambda N, R: kernels_of(sections(facts, N, R)[1:]),
        ),
        related=("NoTPTransformerBlock", "VitModel"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

stack = DeepSeekOCRSession.from_local().model.model.vision_model.transformer
assert len(stack.layers) == {clip.layers}
x = torch.empty(1, {tokens(facts, facts.views[0][2])}, {d}, dtype=torch.bfloat16, device="meta")
assert stack(x).shape == x.shape""",
        notes="identical blocks",
        references=("clip",),
    )
