"""Rotary positions whose base grows with the length."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.rotary import rotary_diagram, rotary_page
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    return rotary_page(
        facts,
        "DeepseekV2DynamicNTKScalingRotaryEmbedding",
        "dynamic",
        what="Rotary positions whose base grows with the length once it exceeds the trained length:"
        " high frequencies stay, low ones are stretched (dynamic NTK-aware scaling). Up to the"
        " trained length it equals the plain class.",
        arguments={"scaling_factor": 2.0},
        meanings={"scaling_factor": "How fast the base grows; stated here for a factor of two."},
        diagram=rotary_diagram("base'^(-2 i / D), base' grown beyond L0"),
        pseudo_code="""if seq_len > max_position_embeddings:
    stretch = factor * seq_len / max_position_embeddings - (factor - 1)
    frequencies = (base * stretch ** (D / (D - 2))) ** (-arange(0, D, 2) / D)
angles = outer(arange(seq_len), frequencies)""",
        mathematics=r"b' = b \left(\frac{s\,K}{L_0} - (s - 1)\right)^{\frac{D}{D - 2}}"
        r" \quad (K > L_0)",
        extra=" + (K > L) * 4 * D / 2",
        usage_arguments=", scaling_factor=2.0",
        notes="`rope_scaling` of type dynamic",
        references=("yarn", "rope"),
    )
