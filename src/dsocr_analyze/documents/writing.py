"""Fills the computed parts of all documents."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

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
    others = _others(library)
    with _at_once(len(library.architectures)) as submit:
        chapters = [submit(_chapter, library, name, given) for name in library.architectures]
        pages = _filled(
            library, [each for each in others if not _needs_model(library, each)], given
        )
        blocks = dict(given)
        for chapter in (each.result() for each in chapters):
            pages |= chapter.pages
            library.summaries |= chapter.summaries
            blocks |= chapter.blocks
    return pages | _filled(library, _OF_EVERY_MODEL, blocks)


def _others(library: Library) -> list[str]:
    """Documents that are neither pages of modules nor overviews; none for one architecture."""
    texts = library.sources.texts if library.is_whole else {}
    return [
        path
        for path in texts
        if path not in _OF_EVERY_MODEL and not re.match(r"includes/|modules/op-", path)
    ]


def _needs_model(library: Library, path: str) -> bool:
    """Whether a document has figures of the modules."""
    pattern = r"<!-- (=.*?\b(model|page)\b|begin operators|begin workload)"
    return re.search(pattern, library.sources.texts[path]) is not None


@contextmanager
def _at_once(tasks: int) -> Iterator[Callable[..., Future[_Chapter]]]:
    """Submits tasks, to run in forked processes where there are several and the system can fork.

    A forked process has everything that is imported and read already.
    """
    workers = min(tasks, os.cpu_count() or 1)
    if workers == 1 or sys.platform != "linux":
        yield _done
    else:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            yield pool.submit


def _done(task: Callable[..., _Chapter], *inputs: Any) -> Future[_Chapter]:
    """A task's result, computed at once."""
    future: Future[_Chapter] = Future()
    future.set_result(task(*inputs))
    return future


def _chapter(library: Library, architecture: str, given: Mapping[str, str]) -> _Chapter:
    """What is written from an architecture; the default's model has figures for others as well."""
    owned = [name for name, owner in library.owners.items() if owner == architecture]
    paths = [page_file(name) for name in owned]
    if architecture == DEFAULT.name:
        paths += [each for each in _others(library) if _needs_model(library, each)]
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
