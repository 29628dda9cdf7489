"""The documentation's pages with a vendor checkout's modules in place of the reference's."""

from __future__ import annotations

import inspect
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from easydict import EasyDict
from transformers.cache_utils import DynamicCache
from vendor_checkout import VENDOR

from dsocr_analyze.knowledge.facts import Facts
from dsocr_analyze.knowledge.generate import all_pages
from dsocr_analyze.knowledge.page import Case, Page
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.trace.alone import FunctionModule, trace_alone
from dsocr_analyze.trace.record import Trace

__all__ = ["VendorFacts", "cases_of", "reference_pages", "traced", "vendor_pages"]


class VendorFacts(Facts):
    """Facts whose modules, classes and functions are the vendor's."""

    def __init__(self) -> None:
        super().__init__()
        self.reference = self.session
        self.session = DeepSeekOCRSession.from_directory(
            ModelDirectory.read(VENDOR), trust_remote_code=True
        )
        self.config = self.session.model.config

    def get(self, name: str) -> Any:
        """As the pages ask for it: what only the reference has is made from what it is like."""
        if name == "KeyValueCache":
            return lambda pairs: DynamicCache.from_legacy_cache(tuple(pairs))
        if name == "BasicImageTransform" and find_spec("torchvision") is None:
            return reference_facts().get(name)  # the vendor's cannot be made
        found = super().get(name)
        added = {
            attribute: getattr(reference_facts().get(name), attribute)
            for attribute in ("VARIANTS", "DEFAULTS")
            if inspect.isclass(found) and hasattr(reference_facts().get(name), attribute)
        }
        return type(name, (found,), added) if added else found

    def make(self, name: str, *args: Any, **kwargs: Any) -> torch.nn.Module:
        """With CLIP's settings as the vendor passes them."""
        settings = self.get("vit_model_cfg")
        args = tuple(EasyDict({**settings, **a}) if isinstance(a, dict) else a for a in args)
        return super().make(name, *args, **kwargs)

    def whole_model(self) -> Any:
        """The vendor's model."""
        return self.session.model


@cache
def reference_facts() -> Facts:
    return Facts()


@cache
def vendor_facts() -> VendorFacts:
    return VendorFacts()


@cache
def reference_pages() -> dict[str, Page]:
    return {page.name: page for page in all_pages(reference_facts())}


@cache
def vendor_pages() -> dict[str, Page]:
    return {page.name: page for page in all_pages(vendor_facts())}


def cases_of(name: str) -> list[tuple[Case, Case]]:
    """Every case of a page: the reference's and the vendor's."""
    pages = reference_pages()[name], vendor_pages()[name]
    return list(zip(*(page.cases for page in pages), strict=True))


def traced(case: Case) -> Trace:
    """A case traced alone, with an attention mask where the vendor's attention asserts one."""
    built = case.build()
    keywords = dict(case.keywords())
    if type(built).__name__ == "DeepseekV2Attention" and keywords["attention_mask"] is None:
        shape = (1, 1, case.values["T"], case.values["K"])
        keywords["attention_mask"] = torch.empty(shape, dtype=torch.bfloat16, device=case.device)
    module = built if isinstance(built, torch.nn.Module) else FunctionModule(built)
    return trace_alone(module, torch.device(case.device), *case.arguments(), **keywords)[0]
