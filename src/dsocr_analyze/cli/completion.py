"""Shell completion for the values of options and arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.workload.page import PAPERS

__all__ = [
    "Completion",
    "all_gpus",
    "all_kinds",
    "all_modes",
    "all_papers",
    "compared",
    "list_of",
    "list_of_modes",
    "one_of",
]

Completion: TypeAlias = Callable[[str], list[str]]
"""Returns the values that start with what has been typed."""


def one_of(*names: str) -> Completion:
    """Completes to one of the names, ignoring case."""
    return _one(lambda: names)


def list_of(*names: str) -> Completion:
    """Completes the last of several comma-separated names, without repeating any."""
    return _list(lambda: names)


def _one(find: Callable[[], Iterable[str]]) -> Completion:
    def complete(incomplete: str) -> list[str]:
        return _beginning(incomplete, find())

    return complete


def _list(find: Callable[[], Iterable[str]]) -> Completion:
    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.casefold().split(",")
        rest = [name for name in find() if name.casefold() not in given]
        return [f"{before}{comma}{name}" for name in _beginning(last, rest)]

    return complete


def _beginning(typed: str, names: Iterable[str]) -> list[str]:
    """The names that start with what is typed, ignoring case; the typed part stays as it is."""
    return [
        typed + name[len(typed) :] for name in names if name.casefold().startswith(typed.casefold())
    ]


def _modes() -> list[str]:
    return list(dict.fromkeys(mode for each in ARCHITECTURES.values() for mode in each.modes))


def _gpus() -> list[str]:
    from dsocr_analyze.hardware.devices import gpu_catalogue

    return list(gpu_catalogue())


def _kinds() -> list[str]:
    from dsocr_analyze.advice.published import kinds_of_document

    # Shells would divide a name with a space.
    return [kind.replace(" ", "-") for kind in kinds_of_document()]


def _compared() -> list[str]:
    of_architectures = (
        f"{name}:{mode}" for name, each in ARCHITECTURES.items() for mode in each.modes
    )
    return [*_modes(), *ARCHITECTURES, *of_architectures]


all_modes: Completion = _one(_modes)
"""Modes of every architecture."""

list_of_modes: Completion = _list(lambda: ["all", *_modes()])
"""Several modes, comma-separated."""

all_gpus: Completion = _list(_gpus)
"""GPUs of the catalogue, comma-separated."""

all_kinds: Completion = _one(_kinds)
"""Kinds of document with published figures."""

all_papers: Completion = _list(lambda: PAPERS)
"""Named papers, comma-separated if the option takes a list."""

compared: Completion = _one(_compared)
"""What can be compared, except saved reports."""
