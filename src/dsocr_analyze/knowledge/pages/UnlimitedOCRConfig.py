"""Unlimited-OCR's config."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.config import config_page
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    return config_page(
        facts,
        "unlimitedocr",
        adds="Beside the keys of `DeepseekV2Config` it knows the window:",
        keys={
            "sliding_window_size": "Generated tokens that `infer()` has the decoder keep.",
            "sliding_window": "The same, where the key above is missing, null or 0.",
        },
    )
