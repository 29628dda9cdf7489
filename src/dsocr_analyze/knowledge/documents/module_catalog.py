"""docs/module_catalog.md: every block of every stage, with its closed form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dsocr_analyze.knowledge.machinery.chapter import Chapter
from dsocr_analyze.knowledge.machinery.evidence import CheckedCase
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.machinery.render import table
from dsocr_analyze.report.quantities import flops_text

__all__ = ["catalogue"]

Checked = Mapping[str, Sequence[CheckedCase]]


def catalogue(chapters: Sequence[Chapter]) -> str:
    """One row per block of every architecture and stage: operators, layer, notes."""
    parts = [
        "# Module catalogue",
        "The single source of truth for what is modelled: every block of every stage, the operator"
        " families in its trace, its closed form, and its page.",
    ]
    for chapter in chapters:
        facts = chapter.facts
        parts += [
            f"## {chapter.title}",
            f"Traced over {facts.workload_text}.",
            "### Stages",
            _stages(facts),
        ]
        for stage in (*facts.architecture.stage_names, None):
            parts += _stage(chapter, stage)
    return "\n\n".join(parts) + "\n"


def _stage(chapter: Chapter, stage: str | None) -> list[str]:
    """The section on one stage; None for blocks outside the stages."""
    rows = [_row(page, block, chapter.checked) for page, block in _blocks(chapter.pages, stage)]
    shared = [
        f"{block} ({_link(page)})" if stage else _link(page)
        for page, block in _blocks(chapter.shared, stage)
    ]
    if not rows and not shared:
        return []
    parts = [f"### {stage}" if stage else "### Outside the stages"]
    if rows:
        header = ("block", "page", "operator families", "closed form", "notes")
        parts.append(table(header, rows))
    if shared:
        parts.append(f"Shared with the models above: {', '.join(shared)}.")
    return parts


def _link(page: Page) -> str:
    return f"[{page.name}](modules/{page.file_name})"


def _blocks(pages: Iterable[Page], stage: str | None) -> list[tuple[Page, str]]:
    if stage is None:
        return [(page, page.group) for page in pages if not page.blocks]
    return [(page, block) for page in pages for owner, block in page.blocks if owner == stage]


def _row(page: Page, block: str, checked: Checked) -> tuple[str, ...]:
    layer = page.layer if page.layer.startswith("none") else f"`{page.layer}`"
    return block, _link(page), _families(checked[page.name]), layer, page.notes


def _families(cases: Sequence[CheckedCase]) -> str:
    kinds = dict.fromkeys(kind for item in cases for kind in item.kinds)
    return ", ".join(kinds) or "none"


def _stages(facts: Facts) -> str:
    rows = []
    for stage in facts.architecture.stages:
        figures = facts.traced_stages[stage.name]
        prefixes = ", ".join(f"`{prefix}`" for prefix in stage.prefixes)
        operators = ", ".join(f"`{name}`" for name in figures.operators)
        flops = flops_text(figures.work.flops)
        rows.append((stage.name, prefixes, count(figures.params), flops, operators))
    return table(("stage", "module prefixes", "parameters", "FLOPs", "operators seen"), rows)
