"""The colour of each stage, the same in every picture and in the HTML report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["OUTSIDE", "PALETTE", "stage_colours"]

PALETTE: Final = (
    "#2b66ad", "#a84f12", "#2a7a57", "#9a3b74", "#6353ab", "#7d5f10", "#23728a", "#b03a3a",
    "#5c6670",
)  # fmt: skip
"""Colours dark enough for white text."""

OUTSIDE: Final = "preprocessing, host"
"""Name for the seconds of a page that are in no stage."""

_KNOWN: Final = ("sam", "clip", "projector", "prefill", "decode", OUTSIDE, "encoder")
"""Stages with fixed colours, in the palette's order."""


def stage_colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each stage; stages of other models take the palette's remaining colours.

    Args:
        names: The stages, in order.
    """
    distinct = list(dict.fromkeys(names))
    found = {name: PALETTE[_KNOWN.index(name)] for name in distinct if name in _KNOWN}
    others = [name for name in distinct if name not in _KNOWN]
    free = [colour for colour in PALETTE if colour not in found.values()] or PALETTE
    return found | {name: free[index % len(free)] for index, name in enumerate(others)}
