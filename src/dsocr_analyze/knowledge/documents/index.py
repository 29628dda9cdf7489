"""docs/modules/index.md: the list of all pages."""

from __future__ import annotations

from collections.abc import Sequence

from dsocr_analyze.knowledge.machinery.chapter import Chapter, groups_of
from dsocr_analyze.knowledge.machinery.evidence import CheckedCase
from dsocr_analyze.knowledge.machinery.facts import count
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.machinery.render import table
from dsocr_analyze.report.quantities import flops_text

__all__ = ["index"]


def index(chapters: Sequence[Chapter]) -> str:
    """The list of all pages, by architecture and group."""
    pages = sum(len(chapter.pages) for chapter in chapters)
    parts = [
        "# Modules",
        f"{pages} pages, one for each notable module of {_models(chapters)}. The program computes"
        " every figure three ways: by a formula, by the closed forms, and by a trace of the module"
        " alone. A page is written only if they agree exactly. In a trace of many layers, identical"
        " calls of identical modules are recorded once, as in the main command.",
        "See also the [module catalogue](../module_catalog.md) and the"
        " [formulations](../module_formulations.md).",
    ]
    for chapter in chapters:
        parts += [
            f"## {chapter.title}",
            f"The workload stated on its pages: {chapter.facts.workload_text}.",
        ]
        for group in groups_of(chapter.pages):
            rows = [
                _index_row(page, chapter.checked[page.name])
                for page in chapter.pages
                if page.group == group
            ]
            header = ("module", "summary", "parameters", "FLOPs of one call")
            parts += [f"### {group}", table(header, rows)]
        if chapter.shared:
            parts += ["### Shared with the models above", _sharedgroups_of(chapter.shared)]
    return "\n\n".join(parts) + "\n"


def _models(chapters: Sequence[Chapter]) -> str:
    *first, last = (chapter.facts.model_name for chapter in chapters)
    return f"{', '.join(first)} and {last}" if first else last


def _index_row(page: Page, cases: Sequence[CheckedCase]) -> tuple[str, ...]:
    flops = flops_text(cases[0].work.flops) if cases else "none"
    label = f" ({cases[0].case.label})" if cases else ""
    params = count(cases[0].params) if cases else "none"
    return f"[{page.name}]({page.file_name})", page.notes, params, flops + label


def _sharedgroups_of(pages: Sequence[Page]) -> str:
    lines = []
    for group in groups_of(pages):
        links = (f"[{page.name}]({page.file_name})" for page in pages if page.group == group)
        lines.append(f"- {group}: {', '.join(links)}")
    return "\n".join(lines)
