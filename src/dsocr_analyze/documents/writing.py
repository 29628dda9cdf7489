"""Fills the computed parts of all documents."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Final, NamedTuple

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.documents.library import Library, Summary
from dsocr_analyze.documents.markers import Filled, filled
from dsocr_analyze.documents.model import DocumentedModel
from dsocr_analyze.documents.overview import Overview
from dsocr_analyze.documents.sources import page_file
from dsocr_analyze.errors import DocumentError

__all__ = ["filled_documents"]

_OVERVIEWS: Final = ("module_catalog.md", "module_formulations.md", "modules/index.md")
"""Documents on the modules of all architectures."""

_OF_EVERY_MODEL: Final = (*_OVERVIEWS, "modules/symbols.md", "references.md")
"""Documents besides the modules' pages that are written for a single architecture or config."""


class _Chapter(NamedTuple):
    """What is written from one architecture's model: pages, and what overviews say of it."""

    pages: dict[str, Filled]
    summaries: dict[str, Summary]
    blocks: dict[str, str]


def filled_documents(library: Library, given: Mapping[str, str]) -> dict[str, Filled]:
    """Every document with its computed parts, by path.

    Args:
        library: The modules' pages.
        given: Blocks that are known already, by name.

    Raises:
        DocumentError: The tape and the trace disagree on a figure, or a page asks for what there is
            not; the message names the page.
    """
    listed = {page_file(name) for name in library.owners}
    unlisted = {path for path in library.sources.texts if "/op-" in path} - listed
    if library.is_whole and unlisted:
        raise DocumentError(f"modules/index.md does not list {', '.join(sorted(unlisted))}")
    pages: dict[str, Filled] = {}
    blocks = dict(given)
    for chapter in _chapters(library, given):
        pages |= chapter.pages
        library.summaries |= chapter.summaries
        blocks |= chapter.blocks
    return pages | _filled(library, _OF_EVERY_MODEL, blocks)


def _chapters(library: Library, given: Mapping[str, str]) -> list[_Chapter]:
    """One chapter per architecture; several at once where a process can be forked."""
    names = library.architectures
    workers = min(len(names), os.cpu_count() or 1)
    if workers == 1 or sys.platform != "linux":
        return [_chapter(library, name, given) for name in names]
    # A forked process has everything that is imported and read already.
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, fork) as pool:
        return list(pool.map(_chapter, [library] * len(names), names, [given] * len(names)))


def _chapter(library: Library, architecture: str, given: Mapping[str, str]) -> _Chapter:
    owned = [name for name, owner in library.owners.items() if owner == architecture]
    paths = [page_file(name) for name in owned]
    if library.is_whole and architecture == DEFAULT.name:
        others = (each for each in library.sources.texts if each not in _OF_EVERY_MODEL)
        paths += [each for each in others if not re.match(r"includes/|modules/op-", each)]
    model = library.model(architecture)
    return _Chapter(
        _filled(library, paths, given, model),
        {name: library.summary(name) for name in owned},
        {
            f"{block} {architecture}": library.sources.include(block, {"model": model})
            for block in ("workload", "stages")
        },
    )


def _filled(
    library: Library,
    paths: Iterable[str],
    given: Mapping[str, str],
    model: DocumentedModel | None = None,
) -> dict[str, Filled]:
    """Documents with their computed parts."""
    found = {}
    for path in paths:
        page = re.fullmatch(r"modules/op-(\w+)\.md", path)
        try:
            if path not in library.sources.texts:
                raise DocumentError("modules/index.md lists a page that there is not")
            source = library.page(page[1]) if page else Overview(library, given, model)
            found[path] = filled(library.of_architectures(library.sources.texts[path]), source)
        except DocumentError as error:
            raise DocumentError(f"{path}: {error}") from error
    return found
