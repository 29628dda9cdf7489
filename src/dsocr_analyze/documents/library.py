"""The modules' pages and the models that they are written from."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.documents.model import DocumentedModel
from dsocr_analyze.documents.module_page import ModulePage
from dsocr_analyze.documents.sources import Sources
from dsocr_analyze.documents.templates import shown
from dsocr_analyze.errors import DocumentError
from dsocr_analyze.report.quantities import flops_text

__all__ = ["Library", "Summary"]


class Summary(NamedTuple):
    """What overviews say of a page.

    Attributes:
        params: Parameters of the module in its first case.
        flops: FLOPs of its first case, with the label.
        kinds: Kinds of its operators.
        location: Where it stands in the model.
        summary: What the index says of it.
    """

    params: str
    flops: str
    kinds: str
    location: str
    summary: str


class Library:
    """The pages of all modules.

    Args:
        sources: The documents.
        architecture: The only architecture to document; None for all.
        config: Values to use instead of its published `config.json`.

    Attributes:
        architectures: Names of the architectures, in order.
        owners: The architecture that each page is written from, by page.
        is_whole: Whether all architectures are documented, as published.
        summaries: What overviews say of pages, by name, as far as it is known.
    """

    def __init__(
        self,
        sources: Sources,
        architecture: Architecture | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.sources, self._config = sources, config
        self.is_whole = architecture is None
        self.architectures = [architecture.name] if architecture else list(ARCHITECTURES)
        self.owners = sources.owners(self.architectures)
        self.summaries: dict[str, Summary] = {}
        self._models: dict[tuple[str, bool], DocumentedModel] = {}
        self._pages: dict[tuple[str, bool], ModulePage] = {}

    def model(self, architecture: str, *, is_published: bool = False) -> DocumentedModel:
        """An architecture's model."""
        key = architecture, is_published or self._config is None
        if key not in self._models:
            config = None if key[1] else self._config
            self._models[key] = DocumentedModel(ARCHITECTURES[architecture], config)
        return self._models[key]

    def page(self, name: str, *, is_published: bool = False) -> ModulePage:
        """A module's page, of the published model if the given one has no such module."""
        if name not in self.owners:
            raise DocumentError(f"modules/index.md does not list {name}")
        key = name, is_published or self._config is None
        if key not in self._pages:
            model = self.model(self.owners[name], is_published=is_published)
            self._pages[key] = ModulePage(name, model, self.sources, self.page)
            if not key[1] and name not in model.classes:
                published = self.page(name, is_published=True)
                if name in published.model.classes:
                    published.is_of_given_config = False
                    self._pages[key] = published
        return self._pages[key]

    def summary(self, name: str) -> Summary:
        """What overviews say of a page."""
        if name not in self.summaries:
            page = self.page(name)
            kinds = dict.fromkeys(kind for case in page.cases for kind in case.kinds)
            params = flops = "none"
            if page.cases:
                case = page.cases[0]
                params, flops = shown(case.params), f"{flops_text(case.work.flops)} ({case.label})"
            self.summaries[name] = Summary(
                params,
                flops,
                ", ".join(kinds) or "none",
                page.location,
                self.sources.summary(name),
            )
        return self.summaries[name]

    def of_architectures(self, text: str) -> str:
        """A document without sections of other architectures, and without links to their pages."""
        if self.is_whole:
            return text
        for other in ARCHITECTURES.keys() - self.architectures:
            title = re.escape(ARCHITECTURES[other].title)
            text = re.sub(rf"^## {title}$.*?(?=^## |\Z)", "", text, flags=re.M | re.S)
        return re.sub(
            r"^- \[\w+\]\(op-(\w+)\.md\)\n",
            lambda link: link[0] if link[1] in self.owners else "",
            text,
            flags=re.M,
        )
