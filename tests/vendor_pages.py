"""The documentation's pages with a vendor checkout's model in place of the reference's."""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

import pytest
from transformers.cache_utils import DynamicCache
from vendor_checkout import (
    VENDOR,
    VENDOR_OCR2,
    VENDOR_UNLIMITED,
    needs_vendor,
    needs_vendor_ocr2,
    needs_vendor_unlimited,
)

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.documents.library import Library, ModulePage
from dsocr_analyze.documents.markdown import Sources, rows_of
from dsocr_analyze.documents.model import DocumentedModel
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession

__all__ = ["PAGES", "described_in", "reference", "vendor"]

CHECKOUTS = {
    "deepseek-ocr": (VENDOR, needs_vendor),
    "deepseek-ocr-2": (VENDOR_OCR2, needs_vendor_ocr2),
    "unlimited-ocr": (VENDOR_UNLIMITED, needs_vendor_unlimited),
}


class VendorModel(DocumentedModel):
    """A model whose modules, classes, functions and config are the vendor's."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        directory = ModelDirectory.read(CHECKOUTS[architecture.name][0])
        self.directory, self.dimensions = directory, directory.dimensions()
        self.session = DeepSeekOCRSession.from_directory(directory, trust_remote_code=True)
        # The recorder finds tensors and the cache by the names of what a module takes.
        for name in filter(self.paths, ("Qwen2MLP", "SlidingWindowLlamaAttention")):
            named = inspect.signature(reference(architecture.name).page(name).subject.forward)
            self.get(name).forward.__signature__ = named
        # A constructor that hands on whatever it gets is like the one above it.
        flash = self.get("DeepseekV2FlashAttention2")
        flash.__init__.__signature__ = inspect.signature(flash.__base__.__init__)

    def get(self, name: str) -> Any:
        """A class or function of the vendor's files, or that they take from transformers."""
        if name == "KeyValueCache":
            return DynamicCache.from_legacy_cache
        classes = {type(each).__name__: type(each) for each in self.session.model.modules()}
        return super().get(name) or classes.get(name)


class VendorLibrary(Library):
    """Documents with a vendor's figures, values and config; code is shown as the reference's."""

    @cache  # noqa: B019  # a library lives as long as the process
    def model(self, architecture: str) -> DocumentedModel:
        """An architecture's model."""
        return VendorModel(ARCHITECTURES[architecture])

    @cache  # noqa: B019
    def page(self, name: str) -> ModulePage:
        """A module's page."""
        page = super().page(name)
        own = reference(page.model.architecture.name).page(name)
        page.subject, page.file = own.subject, own.file
        return page


@cache
def reference(architecture: str = DEFAULT.name) -> Library:
    """An architecture's documents."""
    return Library(Sources(), ARCHITECTURES[architecture])


@cache
def vendor(architecture: str = DEFAULT.name) -> VendorLibrary:
    """The same documents, of the vendor's model."""
    return VendorLibrary(Sources(), ARCHITECTURES[architecture])


PAGES = [
    pytest.param(architecture, name, marks=mark, id=f"{architecture}-{name}")
    for architecture, (_, mark) in CHECKOUTS.items()
    for name in reference(architecture).owners
]
"""Every page of each architecture, those that it shares with others included."""


def described_in(page: ModulePage) -> dict[str, tuple[str, str]]:
    """Default and value of each parameter and key that a page describes; empty for no default."""
    marked = r"<!-- begin parameters -->(.*?)<!-- end parameters -->"
    (body,) = re.findall(marked, page.text, re.S)
    rows = page.parameters(rows_of(body))
    return {name.strip("`"): (default.strip("`"), value) for name, _, default, value in rows}
