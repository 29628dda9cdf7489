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
        adds="In addition to the keys of `DeepseekV2Config` it has the window:",
        keys={
            "sliding_window_size": "Generated tokens that the decoder keeps during `infer()`.",
            "sliding_window": "The same, if the key above is missing, null or 0.",
        },
    )
