"""DeepSeek-OCR-2's config."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.config import config_page
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    return config_page(facts, "deepseekocr2")
