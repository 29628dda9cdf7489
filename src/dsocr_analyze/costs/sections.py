"""Modules of a kind, folded: what one of them does, and under which paths it stands.

A total multiplies (twelve layers cost one evaluation), an expansion repeats. Both come from the
same sections, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dsocr_analyze.costs.sums import ModuleWork, combined, joined, scaled, total, under
from dsocr_analyze.work import Work

__all__ = ["Section", "expanded", "sections_total"]


class Section(NamedTuple):
    """Equal modules."""

    paths: tuple[str, ...]
    """Where they stand, relative to the whole model."""
    modules: ModuleWork
    """What one of them and its children do."""


def sections_total(sections: Iterable[Section]) -> Work:
    """Work of all sections."""
    return combined(
        scaled(total(section.modules), len(section.paths)) for section in sections if section.paths
    )


def expanded(sections: Iterable[Section]) -> ModuleWork:
    """Own work of every module by its full path."""
    return joined(
        *(
            under(path, section.modules) if path else section.modules
            for section in sections
            for path in section.paths
        )
    )
