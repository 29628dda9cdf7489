"""The whole of DeepSeek-OCR-2."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.model import causal_lm_page
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.pages import DeepseekOCR2Model

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    tile = facts.workload.image_size
    return causal_lm_page(
        DeepseekOCR2Model.model(facts, head=True),
        what="The whole model: `DeepseekOCR2Model` and the head over the vocabulary. Compared with"
        " DeepSeek-OCR, a Qwen2 encoder with learned queries replaces CLIP, SAM's last convolution"
        " has the encoder's width, views have other sizes, and there are no newlines; the decoder"
        " and the head are the same. (The vendor's class also has `infer()`, whose tiles have"
        f" {tile} pixels per side regardless of `image_size`, so this project's planner refuses any"
        " other size in crop mode.)",
        related=(
            "DeepseekOCR2Model",
            "DeepseekOCR2Config",
            "DeepseekV2ForCausalLM",
            "DeepseekOCRForCausalLM",
            "NoEOSTextStreamer",
            "BasicImageTransform",
        ),
        references=("deepseekocr2",),
    )
