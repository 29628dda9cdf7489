"""Names that people type: which known one is meant, in any case, and which one may have been."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["did_you_mean", "in_any_case", "near_to"]

_CLOSE: Final = 0.6
"""Least likeness of two names, from 0 to 1, at which one may be a slip for the other."""

_BEHIND: Final = 0.05
"""How far behind the closest name another one is no longer worth a mention."""


def in_any_case(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is, upper and lower case apart; None where it is none.

    One that is spelled the same comes first, and of several that differ in case alone none is
    meant.
    """
    names = tuple(known)
    if name in names:
        return name
    folded = name.strip().casefold()
    found = [each for each in names if each.casefold() == folded]
    return found[0] if len(found) == 1 else None


def near_to(name: str, known: Iterable[str], most: int = 3) -> tuple[str, ...]:
    """The known names closest to one that is not known, the closest first.

    Args:
        name: What was typed.
        known: The names that there are.
        most: How many at most.
    """
    by_folded = {each.casefold(): each for each in known}
    typed = name.strip().casefold()
    close = difflib.get_close_matches(typed, by_folded, n=most, cutoff=_CLOSE)
    likeness = [difflib.SequenceMatcher(a=each, b=typed).ratio() for each in close]
    return tuple(
        by_folded[each]
        for each, ratio in zip(close, likeness, strict=True)
        if ratio > likeness[0] - _BEHIND
    )


def did_you_mean(name: str, known: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """`did you mean A or B? ` for a message that goes on; empty where nothing is close.

    Args:
        name: What was typed.
        known: The names that there are.
        aliases: Other names of some of them, which may have been meant as well.
    """
    others = aliases or {}
    close = near_to(name, [*known, *others])
    meant = list(dict.fromkeys(others.get(each, each) for each in close))
    return f"did you mean {' or '.join(meant)}? " if meant else ""
