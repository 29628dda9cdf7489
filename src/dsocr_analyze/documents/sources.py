"""The documents as people write them, and the texts that they share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.documents.templates import rendered, rows_of
from dsocr_analyze.errors import DocumentError
from dsocr_analyze.input_files import read_text

__all__ = ["SOURCES", "Sources", "page_file"]

_PACKAGE: Final = Path(__file__).parent.parent
_DATA: Final = _PACKAGE / "docs"
SOURCES: Final = _DATA if _DATA.is_dir() else _PACKAGE.parent.parent / "docs"
"""The documents: data of an installed package, or `docs` in a checkout."""

_MOST_BYTES: Final = 1 << 20
_CASES: Final = re.compile(r"^<!-- cases (?P<cases>[^>]*?) -->\n", re.M)


def page_file(name: str) -> str:
    """Path of a module's page."""
    return f"modules/op-{name}.md"


class Sources:
    """The documents of a folder.

    Attributes:
        folder: The folder.
        texts: The documents, by their paths in it.
    """

    def __init__(self, folder: Path = SOURCES) -> None:
        self.folder = folder
        self.texts = {
            path.relative_to(folder).as_posix(): read_text(path, _MOST_BYTES)
            for path in sorted(folder.rglob("*.md"))
        }

    @property
    def is_checkout(self) -> bool:
        """Whether these are the documents of a checkout, and no package data."""
        return _PACKAGE not in self.folder.parents

    def section(self, path: str, heading: str) -> str:
        """What stands under a heading of the second level, given as a pattern."""
        text = self.texts.get(path, "")
        found = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.M | re.S)
        if found is None:
            raise DocumentError(f"{path} has no section that matches {heading!r}")
        return found[1]

    def owners(self, architectures: Iterable[str]) -> dict[str, str]:
        """The architecture that each module's page is written from: the first that lists it."""
        found: dict[str, str] = {}
        for name in architectures:
            section = self.section("modules/index.md", re.escape(ARCHITECTURES[name].title))
            for page in re.findall(r"\(op-(\w+)\.md\)", section):
                found.setdefault(page, name)
        return found

    def paths_of(self, page: str) -> dict[str, str] | None:
        """The module paths that a page names, with their labels; None if it names none.

        `by hand` names no path: what the page shows is never run at one.
        """
        stated = _CASES.search(self.texts[page_file(page)])
        if stated is None:
            return None
        if stated["cases"] == "by hand":
            return {}
        pairs = (each.partition(":") for each in stated["cases"].split(";"))
        return {path.strip(): label.strip() for path, _, label in pairs}

    def include(self, name: str, names: Mapping[str, Any]) -> str:
        """What a template of `includes` makes of some names.

        Raises:
            DocumentError: There is no such template, or it has an expression without a value.
        """
        path = f"includes/{name}.md"
        if path not in self.texts:
            known = ", ".join(sorted(each.stem for each in (self.folder / "includes").iterdir()))
            raise DocumentError(f"there is no block {name!r}; there are {known}")
        return rendered(self.texts[path], names)

    def meanings(self, part: str) -> dict[str, str]:
        """What the symbols of a part of a model mean, in order."""
        section = self.section("modules/symbols.md", rf".*\(`{part}`\)")
        return {name.strip("`"): meaning for name, meaning in rows_of(section)}

    def summary(self, page: str) -> str:
        """What the index says of a module."""
        return self._summaries.get(page, "")

    @cached_property
    def _summaries(self) -> dict[str, str]:
        pattern = r"^\| \[(\w+)\]\([^|]*\| ([^|]*) \|"
        return dict(re.findall(pattern, self.texts["modules/index.md"], re.M))

    def references(self, keys: str) -> str:
        """The lines of the bibliography that have the given arXiv numbers, or other words."""
        lines = re.findall(r"^- .*$", self.texts["references.md"], re.M)
        found = [[line for line in lines if key in line] for key in keys.split(", ")]
        if any(len(matching) != 1 for matching in found):
            raise DocumentError(f"references.md has not one line for each of {keys}")
        return "\n".join(line for (line,) in found)
