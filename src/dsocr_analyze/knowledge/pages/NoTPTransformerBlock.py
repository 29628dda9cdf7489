"""A block of the CLIP encoder."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.clip import (
    BLOCK,
    GROUP,
    SYMBOLS,
    sections,
    setting_parameters,
    settings,
    tokens,
    view_cases,
)
from dsocr_analyze.knowledge.families.pre_norm import PRE_NORM, pre_norm_diagram
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page, Parameter, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    clip = facts.clip
    d = clip.width
    return Page(
        group=GROUP,
        subject=facts.get("NoTPTransformerBlock"),
        what="A pre-norm block of the CLIP encoder. As in the published code, it calls `forward` of"
        " its attention and its MLP directly, so hooks on those two never fire; this project's"
        " recorder sees them nevertheless.",
        blocks=(("clip", "transformer block"),),
        layer="architectures.ocr_family.vision (one block of it)",
        inputs={"x": "N, T, d"},
        output="N, T, d",
        parameters={
            **setting_parameters(
                facts, "hidden_size", "num_attention_heads", "ffn_hidden_size", "layernorm_epsilon"
            ),
            "layer_id": Parameter("Number of the block, from one.", f"1 to {clip.layers}"),
            "multiple_of": Parameter(
                "Unused, as published.", facts.default("NoTPTransformerBlock", "multiple_of")
            ),
        },
        diagram=pre_norm_diagram(
            f"[N, T, {d}]",
            norms=("layer_norm1", "layer_norm2"),
            attention='  n1 --> attn["self_attn: NoTPAttention"]',
            mlp="mlp: NoTPFeedForward",
        ),
        pseudo_code="""h = x + self_attn(layer_norm1(x))
return h + mlp(layer_norm2(h))""",
        mathematics=PRE_NORM,
        symbols=pick("N q T d H m", SYMBOLS),
        formulas=BLOCK,
        cases=view_cases(
            facts,
            build=lambda: facts.make("NoTPTransformerBlock", settings(facts), 1),
            closed_form=lambda N, R: sections(facts, N, R)[1].modules,
        ),
        flops_notes=("Two norms (five FLOPs per element) and two sums are added to the parts.",),
        related=("NoTPAttention", "NoTPFeedForward", "NoTPTransformer"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

block = DeepSeekOCRSession.from_local().model.model.vision_model.transformer.layers[0]
x = torch.empty(1, {tokens(facts, facts.views[0][2])}, {d}, dtype=torch.bfloat16, device="meta")
assert block(x).shape == x.shape""",
        notes="pre-norm",
        references=("clip", "vit"),
    )
