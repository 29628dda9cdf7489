"""Every kind of case, and how many of each make a campaign."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from hostile import cases, directories, traced
from hostile.cases import Case

_SUFFIX: Final = "_case"


def _of(room: object) -> dict[str, Callable[[Random], Case]]:
    return {
        name.removesuffix(_SUFFIX).replace("_", "-"): function
        for name, function in vars(room).items()
        if name.endswith(_SUFFIX) and function.__module__ == room.__name__
    }


TRACED: Final = _of(traced)
KINDS: Final = {**_of(cases), **_of(directories), **TRACED}

_ROUNDS_WITHOUT_TRACE: Final = 3
"""Of four: a traced case takes as long as several others."""


def scheduled(kinds: list[str], seed: int) -> Iterator[tuple[str, int]]:
    """Kinds in turn, each with the next seed; traced ones in one round of four."""
    rare = [each for each in kinds if each in TRACED and not TRACED.keys() >= set(kinds)]
    while True:
        for number in range(_ROUNDS_WITHOUT_TRACE + 1):
            for kind in kinds:
                if number == 0 or kind not in rare:
                    yield kind, seed
                    seed += 1
