"""All documents: pages, index, catalogue, formulations, corrections."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.errors import KnowledgeError, OutputError
from dsocr_analyze.knowledge.architecture_pages import PAGES
from dsocr_analyze.knowledge.documents.corrections import corrections_page
from dsocr_analyze.knowledge.documents.formulas import formulas_page
from dsocr_analyze.knowledge.documents.index import index
from dsocr_analyze.knowledge.documents.module_catalog import catalogue
from dsocr_analyze.knowledge.documents.module_formulations import formulations
from dsocr_analyze.knowledge.documents.seconds import seconds_page
from dsocr_analyze.knowledge.machinery.chapter import Chapter, checked_chapters
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.render import render_page
from dsocr_analyze.output_files import prepare_directory, write_texts

__all__ = ["documents", "write_documents"]


def documents(
    architecture: Architecture | None = None, config: dict[str, Any] | None = None
) -> dict[str, str]:
    """Every checked document, by its path in the folder.

    Args:
        architecture: The only architecture to document; None for all.
        config: Values to use instead of its published `config.json`, or the default architecture's if
            no architecture is given.

    Raises:
        KnowledgeError: A formula, a closed form and a trace disagree, or a page refers to a page that
            does not exist.
    """
    if architecture is None and config is None:
        chapters = checked_chapters(Facts(ARCHITECTURES[name]) for name in PAGES)
        _check_related(chapters)
    else:
        chapters = checked_chapters([Facts(architecture or DEFAULT, config)])
    names = {page.name for chapter in chapters for page in chapter.pages}
    texts = {
        f"modules/{page.file_name}": render_page(
            page, chapter.checked[page.name], chapter.facts, names
        )
        for chapter in chapters
        for page in chapter.pages
    }
    texts["modules/index.md"] = index(chapters)
    texts["module_catalog.md"] = catalogue(chapters)
    texts["module_formulations.md"] = formulations(chapters)
    first = chapters[0]
    if first.facts.architecture is DEFAULT and first.facts.is_published:
        texts["corrections.md"] = corrections_page(first.pages, first.checked, first.facts)
        texts["seconds.md"] = seconds_page()
        texts["formulas.md"] = formulas_page()
    return {path: f"{_written_from(path)}\n\n{text}" for path, text in texts.items()}


def _written_from(path: str) -> str:
    """The first line of a document: the source file that has its name."""
    name = PurePosixPath(path).stem
    page = name.removeprefix("op-")
    source = f"documents/{name}.py" if page == name else f"pages/{page}.py"
    edited = f"src/dsocr_analyze/knowledge/{source}"
    return f"<!-- Written by `dsocr-analyze docs`; edit {edited} instead. -->"


def _check_related(chapters: Iterable[Chapter]) -> None:
    """Raise if a page refers to a missing page; one architecture may refer to another's."""
    pages = [page for chapter in chapters for page in chapter.pages]
    names = {page.name for page in pages}
    for page in pages:
        missing = sorted(set(page.related) - names)
        if missing:
            raise KnowledgeError(f"{page.name}: no page for {', '.join(missing)}")


def write_documents(texts: dict[str, str], folder: Path) -> list[Path]:
    """Write the documents into `folder`, creating it if it is missing.

    Raises:
        OutputError: The folder cannot be written.
    """
    prepare_directory(folder)
    if (folder / "modules").is_symlink():
        raise OutputError(f"{str(folder / 'modules')!r} is a link; remove it")
    try:
        (folder / "modules").mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {str(folder / 'modules')!r}: {error.strerror}") from error
    return write_texts(folder, texts)
