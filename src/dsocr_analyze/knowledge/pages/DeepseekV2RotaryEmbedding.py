"""Rotary positions of latent attention, and the base of their scaled variants."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.rotary import ROTATION, rotary_diagram, rotary_page
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    return rotary_page(
        facts,
        "DeepseekV2RotaryEmbedding",
        "default",
        what="Rotary positions: tables of the cosines and sines of position times frequency, which"
        " rotate queries and keys so that their product depends on the distance between them. The"
        " tables are filled up to the longest length requested so far and then sliced.",
        blocks=(("prefill", "RoPE of latent attention"), ("decode", "RoPE of latent attention")),
        diagram=rotary_diagram("base^(-2 i / D)"),
        pseudo_code="""frequencies = base ** (-arange(0, D, 2) / D)
if seq_len > tabled:
    angles = outer(arange(seq_len), frequencies)
    cos, sin = cat(angles, angles).cos(), cat(angles, angles).sin()
return cos[:seq_len], sin[:seq_len]""",
        mathematics=ROTATION + r", \quad \mathrm{half}([x_1, x_2]) = [-x_2, x_1]",
        notes="tables of cosines and sines; base class of the scaled variants",
        references=("rope",),
    )
