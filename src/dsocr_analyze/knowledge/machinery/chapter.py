"""The pages of one architecture: its own, and those that it shares."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsocr_analyze.errors import KnowledgeError
from dsocr_analyze.knowledge.architecture_pages import pages_of
from dsocr_analyze.knowledge.machinery.evidence import CheckedCase, check
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page

__all__ = ["Chapter", "checked_chapters", "groups_of"]


@dataclass(frozen=True)
class Chapter:
    """One architecture.

    Attributes:
        facts: The model.
        pages: Pages written from it, in reading order.
        shared: Pages of modules already in an earlier chapter; these are not written again.
        checked: Cases of `pages`, by name of the page.
    """

    facts: Facts
    pages: Sequence[Page]
    shared: Sequence[Page]
    checked: Mapping[str, Sequence[CheckedCase]]

    @property
    def title(self) -> str:
        """Heading of the chapter."""
        return self.facts.architecture.title


def checked_chapters(models: Iterable[Facts]) -> list[Chapter]:
    """One chapter per model; a module of several models has a page only in the first.

    Raises:
        KnowledgeError: Pages with the same name describe different modules; or see `check`.
        ModelCodeError: A model does not run the stated page.
    """
    written: dict[str, Page] = {}
    chapters = []
    for facts in models:
        _ = facts.traces  # says what is wrong with a model that does not run, before its parts do
        own: list[Page] = []
        shared: list[Page] = []
        for page in pages_of(facts):
            known = written.get(page.name)
            if known is not None and not _is_same(page.subject, known.subject):
                raise KnowledgeError(
                    f"{page.name} of {facts.architecture.title} is another module than the one that"
                    " has a page; give its page an `own_name`"
                )
            (own if known is None else shared).append(page)
        chapters.append(Chapter(facts, own, shared, {page.name: check(page) for page in own}))
        written |= {page.name: page for page in own}
    return chapters


def groups_of(pages: Iterable[Page]) -> list[str]:
    """Groups of the pages, in order of first appearance."""
    return list(dict.fromkeys(page.group for page in pages))


def _is_same(subject: Any, known: Any) -> bool:
    """Whether both have the same definition in the source, or the first inherits from the second.

    A file is imported once for each model that builds on it, so identity is not enough.
    """
    refined = subject.__mro__ if inspect.isclass(subject) else (subject,)
    return _place(known) in map(_place, refined)


def _place(subject: Any) -> tuple[str | None, str]:
    if subject.__module__ == "builtins":
        return None, subject.__qualname__
    return inspect.getsourcefile(subject), subject.__qualname__
