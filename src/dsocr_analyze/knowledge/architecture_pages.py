"""Which pages an architecture has: one line each, beside its room here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.knowledge.deepseek_ocr import deepseek_ocr_pages
from dsocr_analyze.knowledge.deepseek_ocr_2 import deepseek_ocr_2_pages
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.unlimited_ocr import unlimited_ocr_pages

__all__ = ["PAGES", "pages_of"]

PAGES: Final[Mapping[str, Callable[[Facts], list[Page]]]] = {
    "deepseek-ocr": deepseek_ocr_pages,
    "deepseek-ocr-2": deepseek_ocr_2_pages,
    "unlimited-ocr": unlimited_ocr_pages,
}
"""By the architecture's name: its pages in reading order, those that it shares among them."""


def pages_of(facts: Facts) -> list[Page]:
    """An architecture's pages, in reading order.

    Raises:
        WorkloadError: It has none.
    """
    name = facts.architecture.name
    if name not in PAGES:
        raise WorkloadError(
            f"{name} has no pages; {', '.join(PAGES)} have", arguments=["architecture"]
        )
    return PAGES[name](facts)
