"""What a whole list of pages costs: exact totals in memory that does not grow with the list.

Pages with the same crop grid and lengths cost the same. So only distinct workloads are evaluated,
whenever enough have accumulated and at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from dsocr_analyze.archive.document import (
    ArchiveDocument,
    MalformedRows,
    PagesOfGrid,
    PagesOfLength,
    TotalsDocument,
)
from dsocr_analyze.archive.pages import REPORTED_ROWS, Pages
from dsocr_analyze.columns.evaluate import Workloads, evaluate, figures
from dsocr_analyze.kernels import Work
from dsocr_analyze.workload.workload import LARGEST_COUNT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsocr_analyze.archive.document import FilesDocument
    from dsocr_analyze.archive.time_totals import ListTime, ListTimer
    from dsocr_analyze.columns.metadata import CountOpening
    from dsocr_analyze.columns.setting import CountedModel, Setting

__all__ = [
    "Archive",
    "DistinctWorkloads",
    "add_up",
    "bars_of_each",
    "check_keys_fit",
    "distinct_workloads",
    "token_bars",
    "weighted_sum",
]

_MOST_WAITING: Final = 1 << 18
"""Most distinct workloads that are held back to merge with equal ones in later batches."""

_MANY: Final = 1 << 15
"""A batch with more distinct workloads is not held back, since few of them would merge."""

_LENGTH_BITS: Final = LARGEST_COUNT.bit_length()
"""Bits for a number of text tokens or new tokens."""

_KEY_BITS: Final = 63

_LIMB_BITS: Final = 21
_LIMBS: Final = 3
_MOST_ROWS: Final = 2**41
"""Rows for which a sum of 21-bit limbs fits in 63 bits, with one bit to spare."""

_MOST_BARS: Final = 20
_NICE: Final = (1, 2, 5)


class Archive(NamedTuple):
    """What a list of pages costs, and what only its tables and pictures need.

    Attributes:
        document: What it costs.
        settings: Mode, data type and attention of each entry of `document.totals`.
        lengths: Number of pages whose prompt has 0, 1, 2, ... tokens, for each of them.
        time: How the pages are timed; None if they are not.
    """

    document: ArchiveDocument
    settings: Sequence[Setting]
    lengths: Sequence[NDArray[np.int64]]
    time: ListTime | None


class _Totals:
    """What the pages cost under one setting."""

    def __init__(self, model: CountedModel, setting: Setting) -> None:
        self._model, self.setting = model, setting
        # The fields between the setting and the histogram.
        self._keys = setting.keys(model.window_in(setting))
        names = TotalsDocument.__struct_fields__[len(self._keys) : -1]
        self._counts = Counter(dict.fromkeys(names, 0))
        self.lengths = np.zeros(0, np.int64)

    def add(self, distinct: DistinctBatches) -> None:
        """Add the pages of more batches."""
        workloads, batches, pages = distinct
        costs = evaluate(self._model, self.setting, workloads).totals
        lengths = np.asarray(costs.seq_len).astype(np.int64)
        reach = lengths + workloads.max_new_tokens - 1
        is_beyond = reach > self._model.dimensions.max_positions
        self._counts.update({
            "visual_tokens": weighted_sum(costs.visual_tokens, pages),
            "prompt_tokens": weighted_sum(costs.seq_len, pages),
            "new_tokens": weighted_sum(workloads.max_new_tokens, pages),
            **figures("prefill_pass", _summed(costs.prefill, batches)),
            **figures("page", _summed(costs.batch, batches)),
            "batches": int(batches.sum()),
            "pages_beyond_max_position_embeddings": int(pages[is_beyond].sum()),
        })  # fmt: skip
        for name in ("kv_cache_bytes", "peak_activation_bytes"):
            largest = int(np.max(getattr(costs, name)))
            self._counts[f"largest_{name}"] = max(self._counts[f"largest_{name}"], largest)
        # float64 is exact for the sums of one batch
        added = np.bincount(lengths, pages, minlength=len(self.lengths)).astype(np.int64)
        added[: len(self.lengths)] += self.lengths
        self.lengths = added

    def document(self) -> TotalsDocument:
        """The figures."""
        counts: dict[str, Any] = self._keys | self._counts
        bars = tuple(PagesOfLength(*each) for each in token_bars(self.lengths).items())
        return TotalsDocument(**counts, pages_by_prompt_tokens=bars)


def add_up(
    model: CountedModel,
    settings: Sequence[Setting],
    batches: Iterable[Pages],
    opening: CountOpening,
    timer: ListTimer | None = None,
    *,
    batch_size: int = 1,
    files: FilesDocument | None = None,
) -> Archive:
    """Totals over all pages, counted one by one or in batches of pages with equal prompts.

    Args:
        model: The model.
        settings: Ways to run it; all pages are counted under each.
        batches: The pages.
        opening: The model, and how it is counted.
        timer: Also sums their seconds, which do not depend on `batch_size`.
        batch_size: Pages in a full batch; the remainder of each prompt makes a smaller batch.
        files: The files of a folder; None for a list of sizes.

    Raises:
        PageError: The list cannot be read to its end.
        WorkloadError: A column of the list is not numeric, or another argument contradicts it.
        ConfigError: The model has a part without a closed form.
    """
    grids = model.architecture.forms.crop_grids
    totals = [_Totals(model, setting) for setting in settings]
    malformed = MalformedRows(0, ())
    pages_by_code = np.zeros(grids.count, np.int64)

    def workloads() -> Iterator[tuple[Workloads, NDArray[np.float64]]]:
        nonlocal malformed
        for pages in batches:
            reported = (malformed.reported + pages.malformed.reported)[:REPORTED_ROWS]
            malformed = MalformedRows(malformed.rows + pages.malformed.rows, reported)
            if len(pages):
                workloads = pages.workloads(model)
                none = np.empty((0, len(pages)))
                yield workloads, none if timer is None else timer.amounts(pages, workloads)

    for distinct in distinct_workloads(workloads(), grids.count, at_once=batch_size > 1):
        np.add.at(pages_by_code, distinct.workloads.grids, distinct.pages)
        for each in totals:
            each.add(in_batches(distinct, batch_size, are_cut=each.setting.mode.crop_mode))
        if timer is not None:
            timer.add(*distinct)
    pages_counted = int(pages_by_code.sum())
    document = ArchiveDocument(
        **msgspec.structs.asdict(opening),
        rows=pages_counted + malformed.rows,
        pages=pages_counted,
        batch_size=batch_size,
        malformed=malformed,
        pages_by_grid=_pages_by_grid(grids, pages_by_code, settings),
        totals=tuple(each.document() for each in totals),
        time=() if timer is None else timer.documents(),
        files=files,
    )
    lengths = [each.lengths for each in totals]
    return Archive(document, settings, lengths, None if timer is None else timer.time)


def _pages_by_grid(
    grids: Any, pages_by_code: NDArray[np.int64], settings: Sequence[Setting]
) -> tuple[PagesOfGrid, ...]:
    """Pages by crop grid; if no mode cuts pages, every page is (1, 1)."""
    if not any(setting.mode.crop_mode for setting in settings):
        pages = int(pages_by_code.sum())
        return (PagesOfGrid((1, 1), pages),) if pages else ()
    codes = np.flatnonzero(pages_by_code)
    columns, rows = grids.columns_and_rows(codes)
    found = zip(columns.tolist(), rows.tolist(), pages_by_code[codes].tolist(), strict=True)
    return tuple(PagesOfGrid((column, row), pages) for column, row, pages in sorted(found))


def _summed(work: Work, batches: NDArray[np.int64]) -> Work:
    """The work of all batches, from the work of the distinct ones."""
    return Work(*(weighted_sum(counts, batches) for counts in work))


# --- distinct workloads --------------------------------------------------------------------------


class DistinctWorkloads(NamedTuple):
    """Workloads, all different."""

    workloads: Workloads
    pages: NDArray[np.int64]
    """Number of pages that each stands for, `[n]`."""
    amounts: NDArray[np.float64]
    """Sums of each amount over these pages, `[m, n]`."""


class DistinctBatches(NamedTuple):
    """Batches, all different."""

    workloads: Workloads
    batches: NDArray[np.int64]
    """Number of batches that each stands for, `[n]`."""
    pages: NDArray[np.int64]
    """Pages in each of these batches, `[n]`."""


class _Counted(NamedTuple):
    """Workloads as ascending keys, and sums over the pages of each."""

    keys: NDArray[np.int64]
    sums: NDArray[np.float64]
    """Number of pages (exact below 2^53), and each amount: `[1 + m, n]`."""


def distinct_workloads(
    batches: Iterable[tuple[Workloads, NDArray[np.float64]]],
    grid_count: int,
    *,
    at_once: bool = False,
) -> Iterator[DistinctWorkloads]:
    """Distinct workloads, in memory that does not grow with the number of pages.

    A workload may be yielded again in a later part.

    Args:
        batches: Workloads with batch size 1, and m amounts of each to sum over pages, `[m, n]`.
        grid_count: Upper limit (exclusive) of crop grid codes.
        at_once: Whether to yield a single part, in memory that grows with the distinct workloads.
    """
    check_keys_fit(grid_count)
    waiting: list[_Counted] = []
    for workloads, amounts in batches:
        counted = _counted(workloads, amounts, grid_count)
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


def _counted(workloads: Workloads, amounts: NDArray[np.float64], grid_count: int) -> _Counted:
    sums = np.concatenate([np.ones((1, len(workloads.grids))), amounts])
    if isinstance(workloads.text_tokens, int) and isinstance(workloads.max_new_tokens, int):
        # Without sorting: the grids are small numbers.
        by_grid = _added(workloads.grids, sums, grid_count)
        grids = np.flatnonzero(by_grid[0])
        return _Counted(_packed(workloads._replace(grids=grids)), by_grid[:, grids])
    if not len(amounts):  # faster than the place of each in the order
        keys, pages = np.unique(_packed(workloads), return_counts=True)
        return _Counted(keys, pages[np.newaxis].astype(np.float64))
    keys, place = np.unique(_packed(workloads), return_inverse=True)
    return _Counted(keys, _added(place, sums, len(keys)))


def _merged(parts: list[_Counted]) -> _Counted:
    keys, place = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
    sums = np.concatenate([part.sums for part in parts], axis=1)
    return _Counted(keys, _added(place, sums, len(keys)))


def _added(place: NDArray[np.int64], sums: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The sums of what has the same place, `[1 + m, count]`."""
    return np.array([np.bincount(place, each, minlength=count) for each in sums])


def _packed(workloads: Workloads) -> NDArray[np.int64]:
    """Each workload packed into one number, `[n]`: bits of the grid, then of each length."""
    keys: NDArray[np.int64] = (
        ((workloads.grids << _LENGTH_BITS) | workloads.text_tokens) << _LENGTH_BITS
    ) | workloads.max_new_tokens
    return keys


def _unpacked(counted: _Counted) -> DistinctWorkloads:
    keys, sums = counted
    mask = (1 << _LENGTH_BITS) - 1
    workloads = Workloads(keys >> (2 * _LENGTH_BITS), (keys >> _LENGTH_BITS) & mask, keys & mask)
    return DistinctWorkloads(workloads, sums[0].astype(np.int64), sums[1:])


def in_batches(distinct: DistinctWorkloads, batch_size: int, *, are_cut: bool) -> DistinctBatches:
    """Full batches of pages with equal prompts, and one smaller batch for each remainder.

    Args:
        distinct: The pages.
        batch_size: Pages in a full batch.
        are_cut: Whether the mode cuts pages; if not, crop grids make no difference to prompts.
    """
    workloads, pages, _ = distinct
    if batch_size == 1:
        return DistinctBatches(workloads, pages, pages)
    columns = np.array(workloads[:3])
    if not are_cut:
        columns[0] = 0
    prompts, place = np.unique(columns, axis=1, return_inverse=True)
    together = np.bincount(place.ravel(), pages).astype(np.int64)
    full, rest = np.divmod(together, batch_size)
    batches = np.concatenate([full, rest > 0])
    sizes = np.concatenate([np.full_like(full, batch_size), rest])
    some = batches > 0
    batches, sizes = batches[some], sizes[some]
    grids, text_tokens, max_new_tokens = np.tile(prompts, 2)[:, some]
    workloads = Workloads(grids, text_tokens, max_new_tokens, sizes)
    return DistinctBatches(workloads, batches, batches * sizes)


# --- sums and histograms -------------------------------------------------------------------------


def weighted_sum(values: Any, weights: NDArray[np.int64]) -> int:
    """`sum(value * weight)`, exactly.

    int64 values are summed in three limbs of 21 bits each, `v = l0 + 2^21 l1 + 2^42 l2`, whose sums
    fit in int64; Python integers (dtype object) are summed directly.

    Args:
        values: Non-negative, `[n]`; or one Python integer for all.
        weights: Weight of each value, `[n]`; at most 2^41 in total.
    """
    if isinstance(values, int):
        return values * int(weights.sum())
    if values.dtype == object:
        return int((values * weights.astype(object)).sum())
    if int(weights.sum()) > _MOST_ROWS:
        raise AssertionError(f"more than {_MOST_ROWS} rows in one sum")
    mask = (1 << _LIMB_BITS) - 1
    return sum(
        int(np.dot((values >> (_LIMB_BITS * limb)) & mask, weights)) << (_LIMB_BITS * limb)
        for limb in range(_LIMBS)
    )


def token_bars(pages_by_tokens: NDArray[np.int64]) -> dict[str, int]:
    """Pages in at most 20 bins of equal, round width, from the shortest prompt to the longest.

    Args:
        pages_by_tokens: Number of pages whose prompt has 0, 1, 2, ... tokens.
    """
    [bars] = bars_of_each([pages_by_tokens])
    return bars


def bars_of_each(all_pages: Sequence[NDArray[np.int64]]) -> Iterator[dict[str, int]]:
    """Bars for each of several counts, in bins that cover them all; as for `token_bars`."""
    occurring = [np.flatnonzero(pages) for pages in all_pages]
    lengths = np.concatenate(occurring)
    if not len(lengths):
        yield from ({} for _ in all_pages)
        return
    least, most = int(lengths.min()), int(lengths.max())
    width = _bin_width(least, most)
    bins = range(least // width, most // width + 1)
    for lengths, pages in zip(occurring, all_pages, strict=True):
        sums = np.bincount(lengths // width - bins[0], pages[lengths], minlength=len(bins))
        counts = sums.astype(np.int64).tolist()
        yield {
            _bin_label(index * width, width): count
            for index, count in zip(bins, counts, strict=True)
        }


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
