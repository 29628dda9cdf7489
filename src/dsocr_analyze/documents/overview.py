"""Computes the parts of documents that are no module's page: index, catalogue and others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from dsocr_analyze.documents.cases import Case
from dsocr_analyze.documents.library import Library, Summary
from dsocr_analyze.documents.model import DocumentedModel
from dsocr_analyze.documents.seconds import TimedPage
from dsocr_analyze.documents.sources import page_file
from dsocr_analyze.documents.templates import evaluated, rows_of, shown
from dsocr_analyze.errors import DocumentError
from dsocr_analyze.kernels import NO_WORK, Work
from dsocr_analyze.tape.formula import ModuleCall
from dsocr_analyze.tape.notation import Relations, written

__all__ = ["Overview"]


class _Operators(NamedTuple):
    """Work of every operator of a case as formulas."""

    rows: list[list[str]]
    case: Case


class Overview:
    """Computes the parts of one document.

    Args:
        library: The modules' pages.
        given: Blocks that are known already, by name and arguments.
        model: The model that expressions may name.
    """

    def __init__(
        self, library: Library, given: Mapping[str, str], model: DocumentedModel | None = None
    ) -> None:
        self.library, self.sources, self._given = library, library.sources, given
        self._names = {
            "model": model,
            "model_of": library.model,
            "page": library.page,
            "this": self,
            "timed": TimedPage(),
        }

    def value(self, expression: str) -> str:
        """The text of a value."""
        return shown(evaluated(expression, self._names))

    def number(self, expression: str, language: str) -> str:
        """A number among fenced lines."""
        return str(evaluated(expression, self._names))

    def block(self, name: str, arguments: str, body: str) -> str:
        """The lines of a block; arguments name an architecture or a page."""
        known = f"{name} {arguments}".strip()
        if known in self._given:
            return self._given[known]
        given: dict[str, Any] = {"arguments": arguments, "rows": rows_of(body)}
        return self.sources.include(name, self._names | given)

    # --- what templates ask for

    def first_two(self, rows: list[list[str]]) -> list[list[str]]:
        """The cells that people write."""
        return [row[:2] for row in rows]

    def of(self, link: str) -> Summary:
        """What there is to say of the page that a link leads to."""
        return self.library.summary(re.findall(r"op-(\w+)\.md", link)[0])

    def summary(self, name: str) -> Summary:
        """What there is to say of a page."""
        return self.library.summary(name)

    def pages_of(self, architecture: str) -> list[str]:
        """The pages that are written from an architecture."""
        return [name for name, owner in self.library.owners.items() if owner == architecture]

    def mathematics_of(self, name: str) -> str:
        """The displayed formulas of a page."""
        return "\n\n".join(re.findall(r"^\$\$\n.*?^\$\$$", self._text(name), re.M | re.S))

    def papers_of(self, name: str) -> str:
        """The papers that a page refers to, by authors and year."""
        keys = re.search(r"^<!-- begin references (.*) -->$", self._text(name), re.M)
        lines = self.sources.references(keys[1]).splitlines() if keys else []
        return "; ".join(line[2:].partition(":")[0] for line in lines) or "none"

    def stages_of(self, name: str) -> str:
        """The stages under which the catalogue lists a module."""
        sections = re.split(r"^### ", self.sources.texts["module_catalog.md"], flags=re.M)
        stages = (each.partition("\n")[0] for each in sections if f"({page_file(name)})" in each)
        return ", ".join(dict.fromkeys(each for each in stages if " " not in each)) or "none"

    def _text(self, name: str) -> str:
        return self.sources.texts[page_file(name)]

    def operators(self, which: str) -> _Operators:
        """Operators of a page's module, or of a child: `PAGE LABEL` or `PAGE.CHILD LABEL`.

        They are those of the page's first case whose label begins with the given one.
        """
        page, label = which.split(" ", 1)
        name, *below = page.split(".")
        cases = (each for each in self.library.page(name).cases if each.label.startswith(label))
        if (case := next(cases, None)) is None:
            raise DocumentError(f"{name} has no case {label!r}")
        for child in below:
            call = next(each.call for each in case.taped.children if each.name == child)
            case = replace(case, taped=call, taped_params=call.params)
        relations = case.part.relations
        rows = [
            [f"`{path}`" if path else "", f"`{operator}`", *_costs(work, relations)]
            for (path, operator), work in _by_module(case.taped).items()
        ]
        return _Operators([*rows, ["", "all", *_costs(case.taped.work, relations)]], case)


def _by_module(call: ModuleCall, path: str = "") -> dict[tuple[str, str], Work]:
    """Work of a call by module below it and operator."""
    found = {(path, operator): work for operator, work in call.own.items()}
    for child in call.children:
        below = _by_module(child.call, ".".join(filter(None, (path, child.name))))
        for key, work in below.items():
            found[key] = found.get(key, NO_WORK).plus(work.times(child.times))
    return found


def _costs(work: Work, relations: Relations) -> list[str]:
    """MACs, other FLOPs and bytes as formulas, nothing for zero."""
    sizes = (work.macs, work.vector_flops, work.bytes_moved)
    return [written(size, relations) if size else "" for size in sizes]
