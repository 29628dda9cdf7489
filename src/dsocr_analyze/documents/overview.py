"""Computes the parts of documents that are no module's page: index, catalogue and others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.documents import seconds
from dsocr_analyze.documents.expressions import evaluated, shown
from dsocr_analyze.documents.library import Library
from dsocr_analyze.documents.model import DocumentedModel
from dsocr_analyze.documents.module_page import stated_workload
from dsocr_analyze.documents.sources import page_file
from dsocr_analyze.documents.tables import rows_of, table
from dsocr_analyze.errors import DocumentError
from dsocr_analyze.kernels import NO_WORK, Work
from dsocr_analyze.report.quantities import flops_text
from dsocr_analyze.tape.formula import ModuleCall
from dsocr_analyze.tape.notation import Relations, written

__all__ = ["Overview"]


class Overview:
    """Computes the parts of one document.

    Args:
        library: The modules' pages.
        given: Further blocks, by name and arguments.
    """

    def __init__(self, library: Library, given: Mapping[str, str]) -> None:
        self._library, self._given = library, given

    def value(self, expression: str) -> str:
        """The text of a value; `model` is DeepSeek-OCR's."""
        return shown(evaluated(expression, self._names))

    def number(self, expression: str, language: str) -> str:
        """A number among fenced lines."""
        return str(evaluated(expression, self._names))

    @property
    def _names(self) -> dict[str, Any]:
        return {"model": self._library.model(DEFAULT.name), "page": self._library.page}

    def block(self, name: str, arguments: str, body: str) -> str:
        """The lines of a block; arguments name an architecture or a page."""
        library, rows = self._library, rows_of(body)
        blocks: Mapping[str, Callable[[], str]] = {
            "blocks": lambda: self._blocks(rows),
            "formulations": lambda: self._formulations(arguments),
            "include": lambda: library.sources.include(arguments),
            "modules": lambda: self._modules(rows),
            "operators": lambda: self._operators(*arguments.split(" ", 1)),
            "stages": lambda: _stage_table(library.model(arguments)),
            "workload": lambda: stated_workload(library.model(arguments), library.sources),
            **seconds.BLOCKS,
        }
        known = f"{name} {arguments}".strip()
        if known in self._given:
            return self._given[known]
        if name not in blocks:
            raise DocumentError(f"there is no block {name!r}; there are {', '.join(blocks)}")
        return blocks[name]()

    def _modules(self, rows: list[list[str]]) -> str:
        """The index: link and summary are kept."""
        found = [self._library.summary(_page_of(row[0])) for row in rows]
        filled = [
            (*row[:2], each.params, each.flops) for row, each in zip(rows, found, strict=True)
        ]
        return table(("module", "summary", "parameters", "FLOPs of one call"), filled)

    def _blocks(self, rows: list[list[str]]) -> str:
        """The catalogue: names of blocks and links are kept."""
        library, names = self._library, [_page_of(row[1]) for row in rows]
        filled = [
            (*row[:2], library.summary(name).kinds, library.sources.summary(name))
            for row, name in zip(rows, names, strict=True)
        ]
        return table(("block", "page", "operator families", "notes"), filled)

    def _formulations(self, architecture: str) -> str:
        """The mathematics of every module that is written from an architecture."""
        parts, sources = [], self._library.sources
        for name, owner in self._library.owners.items():
            if owner != architecture:
                continue
            text = sources.texts[page_file(name)]
            keys = re.search(r"^<!-- begin references (.*) -->$", text, re.M)
            lines = sources.references(keys[1]).splitlines() if keys else []
            papers = "; ".join(line.removeprefix("- ").partition(":")[0] for line in lines)
            facts = (
                f"[{name}]({page_file(name)}): {sources.summary(name)}",
                self._library.summary(name).location,
                f"Stages: {', '.join(self._stages_of(name)) or 'none'}",
                f"References: {papers or 'none'}",
            )
            mathematics = re.findall(r"^\$\$\n.*?^\$\$$", text, re.M | re.S)
            parts += [f"### {name}", "\n".join(f"- {fact}" for fact in facts), *mathematics]
        return "\n\n".join(parts)

    def _stages_of(self, name: str) -> list[str]:
        """The stages under which the catalogue lists a module."""
        sections = re.split(r"^### ", self._library.sources.texts["module_catalog.md"], flags=re.M)
        stages = (each.partition("\n")[0] for each in sections if f"({page_file(name)})" in each)
        return [each for each in dict.fromkeys(stages) if each != "Outside the stages"]

    def _operators(self, page: str, label: str) -> str:
        """Work of every operator of a page's module, or of a child (`PAGE.CHILD`), as formulas.

        It is that of the page's first case whose label begins with the given one.
        """
        name, *below = page.split(".")
        cases = (each for each in self._library.page(name).cases if each.label.startswith(label))
        if (case := next(cases, None)) is None:
            raise DocumentError(f"{name} has no case {label!r}")
        for child in below:
            call = next(each.call for each in case.taped.children if each.name == child)
            case = replace(case, taped=call, taped_params=call.params)
        rows = [
            (f"`{path}`" if path else "", f"`{operator}`", *_costs(work, case.part.relations))
            for (path, operator), work in _by_module(case.taped).items()
        ]
        total = ("", "all", *_costs(case.taped.work, case.part.relations))
        figures = table(("module", "operator", "MACs", "FLOPs", "bytes"), [*rows, total])
        held = f" These hold for {case.conditions}." if case.conditions else ""
        alive = f"Most bytes alive: `{case.formulas['peak bytes']}`.{held}"
        return f"{figures}\n\nParameters: `{case.formulas['parameters']}`. {alive}"


def _stage_table(model: DocumentedModel) -> str:
    """Figures of every stage, with its operators by their work."""
    rows = []
    for stage in model.architecture.stages:
        found = model.stages[stage.name]
        prefixes = ", ".join(f"`{prefix}`" for prefix in stage.prefixes)
        operators = ", ".join(f"`{name}`" for name in found.operators)
        figures = shown(found.params), flops_text(found.work.flops)
        rows.append((stage.name, prefixes, *figures, operators))
    return table(("stage", "module prefixes", "parameters", "FLOPs", "operators seen"), rows)


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


def _page_of(link: str) -> str:
    return str(re.findall(r"op-(\w+)\.md", link)[0])
