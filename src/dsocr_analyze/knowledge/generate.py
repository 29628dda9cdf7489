"""All documents at once: pages, index, catalogue, formulations, corrections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsocr_analyze.errors import KnowledgeError, OutputError
from dsocr_analyze.knowledge.corrections import corrections_page
from dsocr_analyze.knowledge.decoder import decoder_pages
from dsocr_analyze.knowledge.decoder_parts import decoder_parts
from dsocr_analyze.knowledge.evidence import check
from dsocr_analyze.knowledge.facts import Facts
from dsocr_analyze.knowledge.ocr import model_pages, preprocessing_pages
from dsocr_analyze.knowledge.overview import catalogue, formulations, index
from dsocr_analyze.knowledge.page import Page
from dsocr_analyze.knowledge.render import render_page
from dsocr_analyze.knowledge.seconds import seconds_page
from dsocr_analyze.knowledge.vision_clip import clip_pages, projector_pages
from dsocr_analyze.knowledge.vision_sam import sam_pages
from dsocr_analyze.report.files import prepare_directory, write_texts

__all__ = ["all_pages", "documents", "write_documents"]


def all_pages(facts: Facts) -> list[Page]:
    """Every page, in reading order."""
    return [
        *model_pages(facts),
        *sam_pages(facts),
        *clip_pages(facts),
        *projector_pages(facts),
        *decoder_pages(facts),
        *decoder_parts(facts),
        *preprocessing_pages(facts),
    ]


def documents(config: dict[str, Any] | None = None) -> dict[str, str]:
    """Every document by its path in the folder, checked.

    Args:
        config: Values in place of the published `config.json`.

    Raises:
        KnowledgeError: A formula, a closed form and a trace disagree, or a page names another that
            there is not.
    """
    facts = Facts(config)
    pages = all_pages(facts)
    names = {page.name for page in pages}
    checked = {}
    for page in pages:
        missing = sorted(set(page.related) - names)
        if missing:
            raise KnowledgeError(f"{page.name}: no page for {', '.join(missing)}")
        checked[page.name] = check(page)
    texts = {
        f"modules/{page.file_name}": render_page(page, checked[page.name], facts) for page in pages
    }
    texts["modules/index.md"] = index(pages, checked, facts)
    texts["module_catalog.md"] = catalogue(pages, checked, facts)
    texts["module_formulations.md"] = formulations(pages, facts)
    if facts.is_published:
        texts["corrections.md"] = corrections_page(pages, checked, facts)
        texts["seconds.md"] = seconds_page()
    return texts


def write_documents(texts: dict[str, str], folder: Path) -> list[Path]:
    """Writes the documents into `folder`, which is made where it is missing.

    Raises:
        OutputError: The folder cannot be written.
    """
    prepare_directory(folder)
    try:
        (folder / "modules").mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {str(folder / 'modules')!r}: {error.strerror}") from error
    return write_texts(folder, texts)
