"""Histograms of an archive: pages by crop grid, and by length of their prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.archive.totals import Archive

__all__ = [
    "MOST_PLOTTED",
    "Bar",
    "Histogram",
    "grid_bars",
    "histograms_of",
    "token_bars",
]

MOST_PLOTTED: Final = 10
"""Most modes in one picture."""

_MOST_BARS: Final = 20
_NICE: Final = (1, 2, 5)


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        label: What its pages have in common.
        pages: Number of pages.
    """

    label: str
    pages: int


@dataclass(frozen=True)
class Histogram:
    """Pages grouped by a property.

    Attributes:
        title: What they are grouped by.
        series: The mode; empty if the histogram is the same in every mode.
        label: What the bars' labels are, in one word.
        axis: The same with a unit.
        bars: The bars, in order.
    """

    title: str
    series: str
    label: str
    axis: str
    bars: list[Bar]


def histograms_of(archive: Archive, kind: str) -> list[Histogram]:
    """One histogram of crop grids, or one of prompt lengths per mode, all with the same bins.

    Args:
        archive: A list's totals.
        kind: "grid" or "tokens".
    """
    if kind == "grid":
        bars = grid_bars(archive.pages_by_grid)
        axis = "crop grid [columns x rows of local views]"
        title = "Pages by crop grid"
        if len({totals.setting.mode.crop_mode for totals in archive.totals}) > 1:
            title += " in modes that cut pages; 1 x 1 in the others"
        return [Histogram(title, "", "grid", axis, bars)]
    by_mode = {totals.setting.mode.name: totals.pages_by_tokens for totals in archive.totals}
    title = "Pages by tokens of the prompt"
    if len(by_mode) == 1:
        title += f", mode {next(iter(by_mode))}"
    return [
        Histogram(title, mode, "tokens", "prompt [tokens]", bars)
        for mode, bars in zip(by_mode, _bars_of_each(list(by_mode.values())), strict=True)
    ]


def grid_bars(pages_by_grid: Mapping[tuple[int, int], int]) -> list[Bar]:
    """One bar per occurring grid, such as `2 x 3`, by number of views; `1 x 1` is an uncut page.

    Args:
        pages_by_grid: Pages by columns and rows.
    """
    ordered = sorted(pages_by_grid.items(), key=lambda item: (item[0][0] * item[0][1], item[0]))
    return [Bar(f"{columns} x {rows}", pages) for (columns, rows), pages in ordered if pages]


def token_bars(pages_by_tokens: NDArray[np.int64]) -> list[Bar]:
    """At most 20 bins of equal, round width, from the shortest prompt to the longest.

    Args:
        pages_by_tokens: Number of pages whose prompt has 0, 1, 2, ... tokens.
    """
    [bars] = _bars_of_each([pages_by_tokens])
    return bars


def _bars_of_each(all_pages: Sequence[NDArray[np.int64]]) -> Iterator[list[Bar]]:
    """Bars for each of several counts, in bins that cover them all."""
    import numpy as np

    found = [np.flatnonzero(pages) for pages in all_pages]
    ends = [int(end) for lengths in found if len(lengths) for end in (lengths[0], lengths[-1])]
    if not ends:
        yield from ([] for _ in all_pages)
        return
    least, most = min(ends), max(ends)
    width = _bin_width(least, most)
    first = least // width
    for lengths, pages in zip(found, all_pages, strict=True):
        sums = np.zeros(most // width - first + 1, np.int64)
        np.add.at(sums, lengths // width - first, pages[lengths])
        yield [
            Bar(_bin_label((first + index) * width, width), int(count))
            for index, count in enumerate(sums)
        ]


def _bin_width(least: int, most: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... that gives at most `_MOST_BARS` bins."""
    power = 1
    while True:
        for digit in _NICE:
            width = digit * power
            if most // width - least // width < _MOST_BARS:
                return width
        power *= 10


def _bin_label(start: int, width: int) -> str:
    return str(start) if width == 1 else f"{start} to {start + width - 1}"
