"""docs/module_formulations.md: the mathematics of every module."""

from __future__ import annotations

from collections.abc import Sequence

from dsocr_analyze.knowledge.machinery.chapter import Chapter, groups_of
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.machinery.render import display, paths_of
from dsocr_analyze.knowledge.references import REFERENCES

__all__ = ["formulations"]


def formulations(chapters: Sequence[Chapter]) -> str:
    """The mathematics of every module, by group."""
    parts = [
        "# Module formulations",
        "The mathematics of every module and its place in the model. The cost of each module is on"
        " its page.",
    ]
    for chapter in chapters:
        parts.append(f"## {chapter.title}")
        for group in groups_of(chapter.pages):
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
