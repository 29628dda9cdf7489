"""The distinct workloads of a list of pages, and how many pages each stands for.

Pages with the same crop grid and lengths cost the same. So only distinct workloads are evaluated,
whenever enough have accumulated and at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from dsocr_analyze.columns.evaluate import Workloads
from dsocr_analyze.workload.workload import LARGEST_COUNT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DistinctWorkloads", "Measured", "distinct_workloads"]

_MOST_WAITING: Final = 1 << 18
"""Most distinct workloads that are held back to merge with equal ones in later batches."""

_MANY: Final = 1 << 15
"""A batch with more distinct workloads is not held back, since few of them would merge."""

_LENGTH_BITS: Final = LARGEST_COUNT.bit_length()
"""Bits for a number of text tokens or new tokens."""

_KEY_BITS: Final = 63


class Measured(NamedTuple):
    """Some workloads, and further amounts of each page."""

    workloads: Workloads
    amounts: NDArray[np.float64] | None = None
    """Amounts to sum over pages, `[m, n]`; None for none."""


class DistinctWorkloads(NamedTuple):
    """Workloads, all different."""

    workloads: Workloads
    pages: NDArray[np.int64]
    """Number of pages that each stands for, `[n]`."""
    amounts: NDArray[np.float64] | None = None
    """Sums of each amount over these pages, `[m, n]`."""


class _Counted(NamedTuple):
    """Workloads as ascending keys; other attributes as in `DistinctWorkloads`."""

    keys: NDArray[np.int64]
    pages: NDArray[np.int64]
    amounts: NDArray[np.float64] | None


def distinct_workloads(
    batches: Iterable[Measured], grid_count: int, *, at_once: bool = False
) -> Iterator[DistinctWorkloads]:
    """Distinct workloads, in memory that does not grow with the number of pages.

    A workload may be yielded again in a later part.

    Args:
        batches: Workloads with batch size 1.
        grid_count: Upper limit (exclusive) of crop grid codes.
        at_once: Whether to yield a single part, in memory that grows with the distinct workloads.
    """
    check_keys_fit(grid_count)
    waiting: list[_Counted] = []
    for measured in batches:
        counted = _counted(measured, grid_count)
        if len(counted.keys) > _MANY and not at_once:
            yield _unpacked(counted)
            continue
        waiting.append(counted)
        if sum(len(part.keys) for part in waiting) > _MOST_WAITING:
            waiting = [_merged(waiting)]
            if 2 * len(waiting[0].keys) > _MOST_WAITING and not at_once:
                yield _unpacked(waiting.pop())
    if waiting:
        yield _unpacked(_merged(waiting))


def check_keys_fit(grid_count: int) -> None:
    """Raise AssertionError if a key (a grid and two lengths) does not fit in an int64."""
    bits = (grid_count - 1).bit_length() + 2 * _LENGTH_BITS
    if bits > _KEY_BITS:
        raise AssertionError(
            f"a workload of {grid_count} grids and two lengths up to {LARGEST_COUNT} needs {bits} "
            f"bits, and a key has {_KEY_BITS}"
        )


def _counted(measured: Measured, grid_count: int) -> _Counted:
    import numpy as np

    workloads, amounts = measured
    if isinstance(workloads.text_tokens, int) and isinstance(workloads.max_new_tokens, int):
        by_grid = np.bincount(workloads.grids, minlength=grid_count)
        grids = np.flatnonzero(by_grid)
        keys = _packed(workloads._replace(grids=grids))
        added = _added(amounts, workloads.grids, grid_count)
        return _Counted(keys, by_grid[grids], None if added is None else added[:, grids])
    if amounts is None:
        return _Counted(*np.unique(_packed(workloads), return_counts=True), None)
    keys, place = np.unique(_packed(workloads), return_inverse=True)
    return _Counted(keys, np.bincount(place), _added(amounts, place, len(keys)))


def _merged(parts: list[_Counted]) -> _Counted:
    import numpy as np

    keys, place = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
    pages = np.zeros(len(keys), np.int64)
    np.add.at(pages, place, np.concatenate([part.pages for part in parts]))
    found = [part.amounts for part in parts if part.amounts is not None]
    amounts = np.concatenate(found, axis=1) if found else None
    return _Counted(keys, pages, _added(amounts, place, len(keys)))


def _added(
    amounts: NDArray[np.float64] | None, place: NDArray[np.int64], count: int
) -> NDArray[np.float64] | None:
    """Sums of each amount, `[m, count]`."""
    import numpy as np

    if amounts is None:
        return None
    return np.array([np.bincount(place, each, minlength=count) for each in amounts])


def _packed(workloads: Workloads) -> NDArray[np.int64]:
    """Each workload packed into one number, `[n]`: bits of the grid, then of each length."""
    keys: NDArray[np.int64] = (
        ((workloads.grids << _LENGTH_BITS) | workloads.text_tokens) << _LENGTH_BITS
    ) | workloads.max_new_tokens
    return keys


def _unpacked(counted: _Counted) -> DistinctWorkloads:
    mask = (1 << _LENGTH_BITS) - 1
    workloads = Workloads(
        grids=counted.keys >> (2 * _LENGTH_BITS),
        text_tokens=(counted.keys >> _LENGTH_BITS) & mask,
        max_new_tokens=counted.keys & mask,
    )
    return DistinctWorkloads(workloads, counted.pages, counted.amounts)
