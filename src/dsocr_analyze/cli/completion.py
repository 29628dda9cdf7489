"""Shell completion for the values of options and arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.workload.page import PAPERS

__all__ = [
    "MODES",
    "Completion",
    "all_gpus",
    "all_kinds",
    "all_papers",
    "compared",
    "one_of",
]

Completion: TypeAlias = Callable[[str], list[str]]
"""Returns the values that start with what has been typed."""

MODES: Final = tuple(dict.fromkeys(mode for each in ARCHITECTURES.values() for mode in each.modes))
"""Modes of every architecture."""


def one_of(
    *names: str, find: Callable[[], Iterable[str]] | None = None, is_list: bool = False
) -> Completion:
    """Completes to one of the names, ignoring case; what is typed stays as it is.

    Args:
        *names: The names.
        find: Returns them instead, when they are needed.
        is_list: Whether to complete the last of several comma-separated names, repeating none.
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if is_list else ("", "", incomplete)
        given = before.casefold().split(",")
        return [
            f"{before}{comma}{last}{name[len(last) :]}"
            for name in (find() if find else names)
            if name.casefold().startswith(last.casefold()) and name.casefold() not in given
        ]

    return complete


def _gpus() -> list[str]:
    from dsocr_analyze.hardware.devices import gpu_catalogue

    return list(gpu_catalogue())


def _kinds() -> list[str]:
    from dsocr_analyze.advice.document import kinds_of_document

    # Shells would divide a name with a space.
    return [kind.replace(" ", "-") for kind in kinds_of_document()]


all_gpus: Final = one_of(find=_gpus, is_list=True)
"""GPUs of the catalogue, comma-separated."""

all_kinds: Final = one_of(find=_kinds)
"""Kinds of document with published figures."""

all_papers: Final = one_of(*PAPERS, is_list=True)
"""Named papers, comma-separated if the option takes a list."""

compared: Final = one_of(
    *MODES,
    *ARCHITECTURES,
    *(f"{name}:{mode}" for name, each in ARCHITECTURES.items() for mode in each.modes),
)
"""What can be compared, except saved reports."""
