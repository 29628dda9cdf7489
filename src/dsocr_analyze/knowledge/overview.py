"""The documents beside the pages: index, module catalogue, formulations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsocr_analyze.knowledge.evidence import CheckedCase
from dsocr_analyze.knowledge.facts import Facts, count, scaled
from dsocr_analyze.knowledge.page import Page
from dsocr_analyze.knowledge.references import REFERENCES
from dsocr_analyze.knowledge.render import GENERATED, display, paths_of, table

__all__ = ["catalogue", "formulations", "index"]

Checked = Mapping[str, Sequence[CheckedCase]]


def index(pages: Sequence[Page], checked: Checked, facts: Facts) -> str:
    """The list of all pages, by group."""
    parts = [
        GENERATED,
        "# Modules",
        f"{len(pages)} pages, one for each module of {facts.model_name} that is worth one. Every"
        " figure is made by the program: by a formula, by the closed forms, and by a trace of the"
        " module alone, and a page is written only where they agree exactly.",
        f"The stated workload of every page: {facts.workload_text}.",
        "See also the [module catalogue](../module_catalog.md) and the"
        " [formulations](../module_formulations.md).",
    ]
    for group in dict.fromkeys(page.group for page in pages):
        rows = []
        for page in pages:
            if page.group != group:
                continue
            cases = checked[page.name]
            flops = scaled(cases[0].work.flops, "FLOPs") if cases else "none"
            label = f" ({cases[0].case.label})" if cases else ""
            params = count(cases[0].params) if cases else "none"
            rows.append((f"[{page.name}]({page.file_name})", page.notes, params, flops + label))
        parts += [
            f"## {group}",
            table(("module", "in a line", "parameters of one", "FLOPs of one call"), rows),
        ]
    return "\n\n".join(parts) + "\n"


def catalogue(pages: Sequence[Page], checked: Checked, facts: Facts) -> str:
    """Stage, block, operator families seen in the trace, analytic layer, notes."""
    parts = [
        GENERATED,
        "# Module catalogue",
        "The single source of truth for what is modelled: every block of every stage, the operator"
        " families that its trace shows, the closed form that stands for it, and its page.",
        f"Traced over {facts.workload_text}.",
        "## Stages",
        _stages(facts),
    ]
    for stage in (*facts.session.architecture.stage_names, None):
        rows = []
        for page in pages:
            for owner, block in page.blocks:
                if owner == stage:
                    rows.append(_row(page, block, checked))
            if stage is None and not page.blocks:
                rows.append(_row(page, page.group, checked))
        if rows:
            parts += [
                f"## {stage}" if stage else "## Outside the stages",
                table(("block", "page", "operator families", "analytic layer", "notes"), rows),
            ]
    return "\n\n".join(parts) + "\n"


def _row(page: Page, block: str, checked: Checked) -> tuple[str, ...]:
    layer = page.layer if page.layer.startswith("none") else f"`{page.layer}`"
    link = f"[{page.name}](modules/{page.file_name})"
    return block, link, _families(checked[page.name]), layer, page.notes


def _families(cases: Sequence[CheckedCase]) -> str:
    kinds = dict.fromkeys(kind for item in cases for kind in item.kinds)
    return ", ".join(kinds) or "none"


def _stages(facts: Facts) -> str:
    rows = []
    for stage in facts.session.architecture.stages:
        figures = facts.traced_stages[stage.name]
        prefixes = ", ".join(f"`{prefix}`" for prefix in stage.prefixes)
        operators = ", ".join(f"`{name}`" for name in figures.operators)
        flops = scaled(figures.work.flops, "FLOPs")
        rows.append((stage.name, prefixes, count(figures.params), flops, operators))
    return table(("stage", "module prefixes", "parameters", "FLOPs", "operators seen"), rows)


def formulations(pages: Sequence[Page], facts: Facts) -> str:
    """The mathematics of every module, by stage."""
    parts = [
        GENERATED,
        "# Module formulations",
        "The mathematics behind every module, with where it stands in the model. What each costs"
        " stands on its page.",
    ]
    for group in dict.fromkeys(page.group for page in pages):
        parts.append(f"## {group}")
        for page in pages:
            if page.group == group:
                parts += _formulation(page, facts)
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
    return [f"### {page.name}", "\n".join(facts_of), display(page.mathematics)]
