"""Histograms of an archive: pages by crop grid, and by the length of their prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.archive.totals import Archive

__all__ = ["HISTOGRAMS", "Bar", "Histogram", "grid_bars", "histograms_of", "token_bars"]

HISTOGRAMS: Final = ("grid", "tokens")
"""What pages can be told apart by: their crop grid, or the tokens of their prompt."""

_MOST_BARS: Final = 20
_NICE: Final = (1, 2, 5)


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        label: What the pages have in common.
        pages: How many there are.
    """

    label: str
    pages: int


@dataclass(frozen=True)
class Histogram:
    """Pages by something they have in common.

    Attributes:
        title: By what.
        label: What the bars' labels are, in a word.
        axis: The same with a unit.
        bars: The bars, in order.
    """

    title: str
    label: str
    axis: str
    bars: list[Bar]


def histograms_of(archive: Archive, kind: str) -> list[Histogram]:
    """One histogram of crop grids, or one of prompt lengths for each setting.

    Args:
        archive: A list of pages, added up.
        kind: One of `HISTOGRAMS`.
    """
    if kind == "grid":
        bars = grid_bars(archive.pages_by_grid)
        axis = "crop grid [columns x rows of local views]"
        return [Histogram("Pages by crop grid", "grid", axis, bars)]
    return [
        Histogram(
            f"Pages by tokens of the prompt, mode {totals.setting.mode.name}",
            "tokens",
            "prompt [tokens]",
            token_bars(totals.pages_by_tokens),
        )
        for totals in archive.totals
    ]


def grid_bars(pages_by_grid: Mapping[tuple[int, int], int]) -> list[Bar]:
    """One bar per grid that occurs, `2 x 3`, by number of views; `1 x 1` is a page not cut.

    Args:
        pages_by_grid: Pages by columns and rows.
    """
    ordered = sorted(pages_by_grid.items(), key=lambda item: (item[0][0] * item[0][1], item[0]))
    return [Bar(f"{columns} x {rows}", pages) for (columns, rows), pages in ordered if pages]


def token_bars(pages_by_tokens: NDArray[np.int64]) -> list[Bar]:
    """At most 20 bars of equal, round width from the shortest prompt to the longest.

    Args:
        pages_by_tokens: Pages whose prompt has 0, 1, 2, ... tokens.
    """
    import numpy as np

    lengths = np.flatnonzero(pages_by_tokens)
    if not len(lengths):
        return []
    least, most = int(lengths[0]), int(lengths[-1])
    width = _bin_width(least, most)
    first = least // width
    sums = np.zeros(most // width - first + 1, np.int64)
    np.add.at(sums, lengths // width - first, pages_by_tokens[lengths])
    return [
        Bar(_bin_label((first + index) * width, width), int(pages))
        for index, pages in enumerate(sums)
    ]


def _bin_width(least: int, most: int) -> int:
    """The least of 1, 2, 5, 10, 20, ... that makes at most `_MOST_BARS` bins."""
    power = 1
    while True:
        for digit in _NICE:
            width = digit * power
            if most // width - least // width < _MOST_BARS:
                return width
        power *= 10


def _bin_label(start: int, width: int) -> str:
    return str(start) if width == 1 else f"{start} to {start + width - 1}"
