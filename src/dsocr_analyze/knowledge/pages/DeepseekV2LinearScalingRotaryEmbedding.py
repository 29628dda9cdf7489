"""Rotary positions with every position divided by a factor."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.rotary import rotary_diagram, rotary_page
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    return rotary_page(
        facts,
        "DeepseekV2LinearScalingRotaryEmbedding",
        "linear",
        what="Rotary positions with every position divided by a factor, so that a longer sequence"
        " falls into the range of angles the model was trained on (position interpolation).",
        arguments={"scaling_factor": 2.0},
        meanings={"scaling_factor": "Divisor of the positions; stated here for twice the length."},
        diagram=rotary_diagram(
            "base^(-2 i / D)", positions="positions 0 .. K - 1, divided by the factor"
        ),
        pseudo_code="""angles = outer(arange(seq_len) / scaling_factor, frequencies)
cos, sin = cat(angles, angles).cos(), cat(angles, angles).sin()""",
        mathematics=r"\mathrm{rot}_s(x, p) = \mathrm{rot}\left(x, \frac{p}{s}\right)",
        extra=" + K",
        usage_arguments=", scaling_factor=2.0",
        notes="`rope_scaling` of type linear",
        references=("interpolation", "rope"),
    )
