"""How many pages at once: the knee, the most within a latency, and the most that fit."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.hardware.kernel_times import Floats
from dsocr_analyze.timing import MOST_CONCURRENCY
from dsocr_analyze.timing.page_times import PageTimes
from dsocr_analyze.timing.serving import Integers, running_counts

KNEE_SHARE: Final = 0.9
KNEE: Final = (
    f"the knee is the fewest pages at once with {100 * KNEE_SHARE:g} % of the most pages per second"
)

Concurrency: TypeAlias = int | Literal["knee", "max"]
"""Pages in flight, or a name of their number: at the knee, or the most that fit."""

Rates: TypeAlias = Callable[[Integers], Floats]
"""Of numbers of pages at once, ascending, `[m]`: a figure of each."""


def knee(pages_per_second: Rates, most: int) -> int:
    """The fewest pages at once, up to `most`, with `KNEE_SHARE` of the best throughput."""
    grid = _grid(most)
    rates = pages_per_second(grid)
    goal = KNEE_SHARE * rates.max()
    return _first(rates >= goal, grid, lambda counts: pages_per_second(counts) >= goal)


def most_within(seconds: Rates, limit: float, most: int) -> int:
    """The most pages at once, up to `most`, before the seconds exceed a limit; 0 if one does."""
    grid = _grid(most)
    return _first(seconds(grid) > limit, grid, lambda counts: seconds(counts) > limit) - 1


def resolved(
    concurrency: Sequence[Concurrency], timed: Callable[[Sequence[int]], PageTimes]
) -> list[int]:
    """The distinct numbers of pages at once, where `timed` times so many pages that are alike.

    If not even one page fits, names stand for 1.
    """
    named: dict[str, int] = {}
    if any(isinstance(each, str) for each in concurrency):
        named["max"] = most = min(max(1, int(timed([1]).fitting[0])), MOST_CONCURRENCY)
        if "knee" in concurrency:
            named["knee"] = knee(lambda counts: timed(counts.tolist()).prompts_per_second, most)
    counts = [named[each] if isinstance(each, str) else each for each in concurrency]
    return list(dict.fromkeys(counts))


def _grid(most: int) -> Integers:
    counts = running_counts(most)
    return np.append(counts[(counts > 0) & (counts < most)], most)


def _first(
    on_grid: NDArray[np.bool_], grid: Integers, holds: Callable[[Integers], NDArray[np.bool_]]
) -> int:
    """The first count for which something holds up to the grid's first; else one beyond it."""
    if not on_grid.any():
        return int(grid[-1]) + 1
    index = int(on_grid.argmax())
    before = int(grid[index - 1]) if index else 0
    between = np.arange(before + 1, int(grid[index]))
    if not len(between):
        return before + 1
    # The grid's own holds in any case, also if it would not once more because of rounding.
    return before + 1 + int(np.append(holds(between), True).argmax())
