"""The documents beside the pages: index, module catalogue, formulations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dsocr_analyze.knowledge.chapter import Chapter
from dsocr_analyze.knowledge.evidence import CheckedCase
from dsocr_analyze.knowledge.facts import Facts, count, scaled
from dsocr_analyze.knowledge.page import Page
from dsocr_analyze.knowledge.references import REFERENCES
from dsocr_analyze.knowledge.render import GENERATED, display, paths_of, table

__all__ = ["catalogue", "formulations", "index"]

Checked = Mapping[str, Sequence[CheckedCase]]


def index(chapters: Sequence[Chapter]) -> str:
    """The list of all pages, by architecture and group."""
    pages = sum(len(chapter.pages) for chapter in chapters)
    parts = [
        GENERATED,
        "# Modules",
        f"{pages} pages, one for each module of {_models(chapters)} that is worth one. Every"
        " figure is made by the program: by a formula, by the closed forms, and by a trace of the"
        " module alone, and a page is written only where they agree exactly. In a trace of many"
        " layers, equal calls of alike modules are recorded once, as in the main job.",
        "See also the [module catalogue](../module_catalog.md) and the"
        " [formulations](../module_formulations.md).",
    ]
    for chapter in chapters:
        parts += [
            f"## {chapter.title}",
            f"The stated workload of its pages: {chapter.facts.workload_text}.",
        ]
        for group in _groups(chapter.pages):
            rows = [
                _index_row(page, chapter.checked[page.name])
                for page in chapter.pages
                if page.group == group
            ]
            header = ("module", "in a line", "parameters of one", "FLOPs of one call")
            parts += [f"### {group}", table(header, rows)]
        if chapter.shared:
            parts += ["### What it shares with the models above", _shared_groups(chapter.shared)]
    return "\n\n".join(parts) + "\n"


def _models(chapters: Sequence[Chapter]) -> str:
    *first, last = (chapter.facts.model_name for chapter in chapters)
    return f"{', '.join(first)} and {last}" if first else last


def _groups(pages: Iterable[Page]) -> list[str]:
    return list(dict.fromkeys(page.group for page in pages))


def _index_row(page: Page, cases: Sequence[CheckedCase]) -> tuple[str, ...]:
    flops = scaled(cases[0].work.flops, "FLOPs") if cases else "none"
    label = f" ({cases[0].case.label})" if cases else ""
    params = count(cases[0].params) if cases else "none"
    return f"[{page.name}]({page.file_name})", page.notes, params, flops + label


def _shared_groups(pages: Sequence[Page]) -> str:
    lines = []
    for group in _groups(pages):
        links = (f"[{page.name}]({page.file_name})" for page in pages if page.group == group)
        lines.append(f"- {group}: {', '.join(links)}")
    return "\n".join(lines)


def catalogue(chapters: Sequence[Chapter]) -> str:
    """By architecture: stage, block, operator families in the trace, analytic layer, notes."""
    parts = [
        GENERATED,
        "# Module catalogue",
        "The single source of truth for what is modelled: every block of every stage, the operator"
        " families that its trace shows, the closed form that stands for it, and its page.",
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
    """The part on one stage; None for what belongs to none."""
    rows = [_row(page, block, chapter.checked) for page, block in _blocks(chapter.pages, stage)]
    shared = [
        f"{block} ({_link(page)})" if stage else _link(page)
        for page, block in _blocks(chapter.shared, stage)
    ]
    if not rows and not shared:
        return []
    parts = [f"### {stage}" if stage else "### Outside the stages"]
    if rows:
        header = ("block", "page", "operator families", "analytic layer", "notes")
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
        flops = scaled(figures.work.flops, "FLOPs")
        rows.append((stage.name, prefixes, count(figures.params), flops, operators))
    return table(("stage", "module prefixes", "parameters", "FLOPs", "operators seen"), rows)


def formulations(chapters: Sequence[Chapter]) -> str:
    """The mathematics of every module, by group."""
    parts = [
        GENERATED,
        "# Module formulations",
        "The mathematics behind every module, with where it stands in the model. What each costs"
        " stands on its page.",
    ]
    for chapter in chapters:
        parts.append(f"## {chapter.title}")
        for group in _groups(chapter.pages):
            parts.append(f"### {group}")
            for page in chapter.pages:
                if page.group == group:
                    parts += _formulation(page, chapter.facts)
    pages = [page for chapter in chapters for page in chapter.pages]
    keys = dict.fromkeys(key for page in pages for key in page.references)
    parts += [
        "## References",
        "\n".join(f"- {REFERENCES[key].as_markdown()}" for key in sorted(keys)),
        "\n".join(
            (
                "- PyTorch: [Linear](https://pytorch.org/docs/stable/generated/torch.nn.Linear.html),"
                " [Conv2d](https://pytorch.org/docs/stable/generated/torch.nn.Conv2d.html),"
                " [LayerNorm](https://pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html),"
                " [Embedding](https://pytorch.org/docs/stable/generated/torch.nn.Embedding.html)",
            )
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _formulation(page: Page, facts: Facts) -> list[str]:
    stages = ", ".join(dict.fromkeys(stage for stage, _ in page.blocks)) or "none"
    paths = ", ".join(f"`{path}`" for path in paths_of(page, facts))
    facts_of = [
        f"- Stage: {stages}",
        f"- Module: [{page.name}](modules/{page.file_name})",
        f"- Hierarchy path: {paths or 'not a module of this model'}",
        f"- Notes: {page.notes}",
    ]
    if page.references:
        sources = "; ".join(
            f"{REFERENCES[key].authors} {REFERENCES[key].year}" for key in page.references
        )
        facts_of.append(f"- References: {sources}")
    return [f"#### {page.name}", "\n".join(facts_of), display(page.mathematics)]
