"""The whole of Unlimited-OCR."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.model import causal_lm_page
from dsocr_analyze.knowledge.families.window import bound_note, steps_note
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.pages import UnlimitedOCRModel

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    return causal_lm_page(
        UnlimitedOCRModel.model(facts, head=True),
        what="The whole model: `UnlimitedOCRModel` and the head over the vocabulary. Its tensors have"
        " the names and shapes of DeepSeek-OCR's. New are the decoder's window, a longer context,"
        " more local views per page, and several pages in one prompt. (The vendor's class also has"
        " `infer()` and `infer_multi()`, which enable the window; a bare `generate()` runs without"
        " it. This project's planner computes the same sizes without them.)",
        related=(
            "UnlimitedOCRModel",
            "UnlimitedOCRConfig",
            "SlidingWindowLlamaAttention",
            "DeepseekOCRForCausalLM",
            "DeepseekV2ForCausalLM",
            "NoEOSTextStreamer",
            "BasicImageTransform",
        ),
        flops_notes=steps_note(facts),
        memory_notes=(bound_note(facts),),
        references=("unlimitedocr", "deepseekocr"),
    )
