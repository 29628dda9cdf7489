"""Matches typed names against the choices: in any case, or as a likely typo."""

import difflib
from collections.abc import Iterable, Mapping
from os.path import commonprefix
from typing import Final

_CLOSE: Final = 0.6
"""Least similarity of two names, from 0 to 1, at which one may be a typo of the other."""

_BEHIND: Final = 0.05
"""Names whose similarity is this far below that of the closest one are not suggested."""


def in_any_case(name: str, choices: Iterable[str]) -> str | None:
    """The choice equal to `name` in any case; None if there is none.

    An exact match takes precedence; if several names differ only in case, none matches.
    """
    names = tuple(choices)
    if name in names:
        return name
    folded = name.strip().casefold()
    found = [each for each in names if each.casefold() == folded]
    return found[0] if len(found) == 1 else None


def near_to(name: str, choices: Iterable[str], most: int = 3) -> tuple[str, ...]:
    """At most `most` choices that are closest to a name, closest first."""
    by_folded = {each.casefold(): each for each in choices}
    typed = name.strip().casefold()
    close = difflib.get_close_matches(typed, by_folded, n=most, cutoff=_CLOSE)
    likeness = [difflib.SequenceMatcher(a=each, b=typed).ratio() for each in close]
    return tuple(
        by_folded[each]
        for each, ratio in zip(close, likeness, strict=True)
        if ratio > likeness[0] - _BEHIND
    )


def is_slip(typed: str, meant: str) -> bool:
    """Whether a character was added, left out, changed or swapped with its neighbour."""
    start = len(commonprefix((typed, meant)))  # noqa: RUF071  # of characters
    a, b = typed[start:], meant[start:]
    return a[1:] == b or a == b[1:] or a[1:] == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


def did_you_mean(
    name: str, choices: Iterable[str], aliases: Mapping[str, str] | None = None
) -> str:
    """`did you mean A or B? ` for a message; empty if no name or alias is close."""
    others = aliases or {}
    close = near_to(name, [*choices, *others])
    meant = list(dict.fromkeys(others.get(each, each) for each in close))
    return f"did you mean {' or '.join(meant)}? " if meant else ""
