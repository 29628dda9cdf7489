"""The whole of DeepSeek-OCR."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.model import causal_lm_page
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.pages import DeepseekOCRModel

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    return causal_lm_page(
        DeepseekOCRModel.model(facts, head=True),
        what="The whole model: `DeepseekOCRModel` and the head over the vocabulary. Its `forward`"
        " takes images in addition to the decoder's arguments. (The vendor's class also has"
        " `infer()`, which cuts the page, builds the prompt and generates; this project's workload"
        " planner computes the same sizes without it.)",
        related=(
            "DeepseekOCRModel",
            "DeepseekOCRConfig",
            "DeepseekV2ForCausalLM",
            "NoEOSTextStreamer",
            "BasicImageTransform",
        ),
        references=("deepseekocr",),
    )
