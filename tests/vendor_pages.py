"""The documentation's pages with a vendor checkout's modules in place of the reference's."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from easydict import EasyDict
from transformers.cache_utils import DynamicCache
from vendor_checkout import VENDOR, VENDOR_OCR2, VENDOR_UNLIMITED

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.knowledge.architecture_pages import pages_of
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Case, Page
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.single_module import FunctionModule, trace_module

__all__ = ["VendorFacts", "cases_of", "names_in_index", "reference_pages", "traced", "vendor_pages"]

INDEX = Path(__file__).parent.parent / "docs" / "modules" / "index.md"
CHECKOUTS = {
    "deepseek-ocr": VENDOR,
    "deepseek-ocr-2": VENDOR_OCR2,
    "unlimited-ocr": VENDOR_UNLIMITED,
}


def names_in_index(architecture: str) -> list[str]:
    """Names of the pages that are written of an architecture, without what it shares."""
    title = ARCHITECTURES[architecture].title
    (section,) = re.findall(
        rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", INDEX.read_text("utf-8"), re.M | re.S
    )
    return re.findall(r"^\| \[\w+\]\(op-(\w+)\.md\)", section, re.M)


class VendorFacts(Facts):
    """Facts whose modules, classes and functions are the vendor's."""

    def __init__(self, architecture: str = DEFAULT.name) -> None:
        super().__init__(ARCHITECTURES[architecture])
        self.reference = reference_facts(architecture)
        self.session = DeepSeekOCRSession.from_directory(
            ModelDirectory.read(CHECKOUTS[architecture]), trust_remote_code=True
        )
        self.config = self.session.model.config

    def get(self, name: str) -> Any:
        """As the pages ask for it: what only the reference has is made from what it is like."""
        if name == "KeyValueCache":
            return _cache_of
        if name == "BasicImageTransform" and find_spec("torchvision") is None:
            return self.reference.get(name)  # the vendor's cannot be made
        found = super().get(name)
        added = {
            attribute: getattr(self.reference.get(name), attribute)
            for attribute in ("VARIANTS", "DEFAULTS")
            if inspect.isclass(found) and hasattr(self.reference.get(name), attribute)
        }
        return type(name, (found,), added) if added else found

    def make(self, name: str, *args: Any, **kwargs: Any) -> torch.nn.Module:
        """With CLIP's settings as the vendor passes them."""
        settings = self.get("vit_model_cfg") if any(isinstance(a, dict) for a in args) else {}
        args = tuple(EasyDict({**settings, **a}) if isinstance(a, dict) else a for a in args)
        return super().make(name, *args, **kwargs)

    def whole_model(self) -> Any:
        """The vendor's model."""
        return self.session.model


def _cache_of(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()) -> DynamicCache:
    return DynamicCache.from_legacy_cache(tuple(pairs))


@cache
def reference_facts(architecture: str = DEFAULT.name) -> Facts:
    return Facts(ARCHITECTURES[architecture])


@cache
def vendor_facts(architecture: str = DEFAULT.name) -> VendorFacts:
    return VendorFacts(architecture)


@cache
def reference_pages(architecture: str = DEFAULT.name) -> dict[str, Page]:
    return {page.name: page for page in pages_of(reference_facts(architecture))}


@cache
def vendor_pages(architecture: str = DEFAULT.name) -> dict[str, Page]:
    return {page.name: page for page in pages_of(vendor_facts(architecture))}


def cases_of(name: str, architecture: str = DEFAULT.name) -> list[tuple[Case, Case]]:
    """Every case of a page: the reference's and the vendor's."""
    pages = reference_pages(architecture)[name], vendor_pages(architecture)[name]
    return list(zip(*(page.cases for page in pages), strict=True))


def traced(case: Case) -> Trace:
    """A case traced alone, with an attention mask where the vendor's attention asserts one."""
    built = case.build()
    keywords = dict(case.keywords())
    if type(built).__name__ == "DeepseekV2Attention" and keywords["attention_mask"] is None:
        shape = (1, 1, case.values["T"], case.values["K"])
        keywords["attention_mask"] = torch.empty(shape, dtype=torch.bfloat16, device=case.device)
    module = built if isinstance(built, torch.nn.Module) else FunctionModule(built)
    return trace_module(module, torch.device(case.device), *case.arguments(), **keywords)[0]
