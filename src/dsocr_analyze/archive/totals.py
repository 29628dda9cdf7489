"""What a whole list of pages costs, and how long it keeps a GPU busy.

Pages with the same crop grid and lengths cost the same, so only distinct workloads are evaluated,
whenever enough have accumulated: totals are exact, in memory that does not grow with the list.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.archive import document as written
from dsocr_analyze.archive import evaluate
from dsocr_analyze.archive.evaluate import Integers, TimeRequested, Workloads
from dsocr_analyze.archive.pages import REPORTED_ROWS, Pages
from dsocr_analyze.archive.setting import CountedModel, CountOpening, Setting
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.kernels import Work
from dsocr_analyze.workload import LARGEST_COUNT

if TYPE_CHECKING:
    from dsocr_analyze.timing.duration import Duration
    from dsocr_analyze.timing.page_times import PageTimer

__all__ = [
    "Archive",
    "ArchiveTimeRequest",
    "ArchiveTimer",
    "DistinctWorkloads",
    "add_up",
    "bars_of_each",
    "distinct_workloads",
    "weighted_sum",
]

Floats = NDArray[np.float64]

_MOST_WAITING: Final = 1 << 18
"""Most distinct workloads that are held back to merge with equal ones in later batches."""

_MANY: Final = 1 << 15
"""A batch with more distinct workloads is not held back, since few of them would merge."""

_LENGTH_BITS: Final = LARGEST_COUNT.bit_length()
"""Bits for a number of text tokens or new tokens."""

_LIMB_BITS: Final = 21
"""A sum of 2^41 such parts of numbers fits in 63 bits, with one bit to spare."""

_MOST_BARS: Final = 20

_SECONDS_PER_HOUR: Final = 3600.0

_METHOD: Final = (
    "each page takes as long as if all pages in flight were like it: in steady state, a GPU's time"
    " per page is 1 over the pages per second; preprocessing is averaged over pages with the same"
    " crop grid and lengths"
)
"""Assumption about a list, in addition to those about a page."""


class Archive(NamedTuple):
    """What a list of pages costs, and what only its tables and pictures need."""

    document: written.ArchiveDocument
    settings: Sequence[Setting]
    """Those of `document.totals`."""
    lengths: Sequence[Integers]
    """For each of them, numbers of pages whose prompt has 0, 1, 2, ... tokens."""
    time: ArchiveTimeRequest | None
    ends: Mapping[str, Sequence[int]]
    """Smallest and largest of each of the pages' sizes and lengths; one number if equal."""


class _Totals:
    """What the pages cost under one setting."""

    def __init__(self, model: CountedModel, setting: Setting) -> None:
        self._model, self.setting = model, setting
        self._counts = Counter(dict.fromkeys(written.TotalsDocument.__struct_fields__, 0))
        self.lengths = np.zeros(0, np.int64)

    def add(self, workloads: Workloads, batches: Integers) -> None:
        """Add the pages of some batches, all different, with how many each stands for, `[n]`."""
        costs = evaluate.evaluate(self._model, self.setting, workloads)
        pages, lengths = batches * workloads.batch_size, np.asarray(costs.seq_len, np.int64)
        prefill, whole = (
            Work(*(weighted_sum(counts, batches) for counts in work))
            for work in (costs.prefill, costs.batch)
        )
        trained = self._model.dimensions.decoder.max_position_embeddings
        is_beyond = lengths + workloads.max_new_tokens - 1 > trained
        self._counts.update({
            "visual_tokens": weighted_sum(costs.visual_tokens, pages),
            "prompt_tokens": weighted_sum(costs.seq_len, pages),
            "new_tokens": weighted_sum(workloads.max_new_tokens, pages),
            **evaluate.figures("prefill_pass", prefill),
            **evaluate.figures("page", whole),
            "batches": int(batches.sum()),
            "pages_beyond_max_position_embeddings": int(pages[is_beyond].sum()),
        })  # fmt: skip
        for name in ("largest_kv_cache_bytes", "largest_peak_activation_bytes"):
            largest = int(np.max(getattr(costs, name.removeprefix("largest_"))))
            self._counts[name] = max(self._counts[name], largest)
        # float64 is exact for the sums of one batch
        added = np.bincount(lengths, pages, minlength=len(self.lengths)).astype(np.int64)
        added[: len(self.lengths)] += self.lengths
        self.lengths = added

    def document(self) -> written.TotalsDocument:
        """The figures."""
        [bars] = bars_of_each([self.lengths])
        return written.TotalsDocument(**{
            **self._counts,
            **self._model.keys_in(self.setting),
            "pages_by_prompt_tokens": tuple(written.PagesOfLength(*each) for each in bars.items()),
        })  # fmt: skip


def add_up(
    model: CountedModel,
    settings: Sequence[Setting],
    batches: Iterable[Pages],
    opening: CountOpening,
    timer: ArchiveTimer | None = None,
    *,
    batch_size: int = 1,
    files: written.FilesDocument | None = None,
) -> Archive:
    """Totals over all pages under each setting, and their seconds if there is a timer.

    Pages with equal prompts are counted in batches of `batch_size`, the remainder of each prompt in
    a smaller one; seconds do not depend on it. `files` are those of a folder.

    Raises:
        PageError: The list cannot be read to its end.
        WorkloadError: A column of the list is not numeric, or another argument contradicts it.
        ConfigError: The model has a part without a closed form.
    """
    grids: Any = model.architecture.forms.crop_grids
    are_cut = any(setting.mode.crop_mode for setting in settings)
    totals = [_Totals(model, setting) for setting in settings]
    malformed: list[written.MalformedRows] = []
    pages_by_code = np.zeros(grids.count, np.int64)
    ends: dict[str, list[int]] = {}

    def workloads() -> Iterator[tuple[Workloads, Floats]]:
        for pages in batches:
            malformed.append(pages.malformed)
            if not len(pages):
                continue
            for name, values in pages.numbers.items():
                seen = {int(np.min(values)), int(np.max(values)), *ends.get(name, ())}
                ends[name] = sorted({min(seen), max(seen)})
            workloads, none = pages.workloads(model), np.empty((0, len(pages)))
            yield workloads, none if timer is None else timer.amounts(pages, workloads)

    for distinct in distinct_workloads(workloads(), at_once=batch_size > 1):
        np.add.at(pages_by_code, distinct.workloads.grids * are_cut, distinct.pages)
        for each in totals:
            each.add(*_in_batches(distinct, batch_size, are_cut=each.setting.mode.crop_mode))
        if timer is not None:
            timer.add(*distinct)
    pages_counted = int(pages_by_code.sum())
    bad_rows = sum(each.rows for each in malformed)
    reported = itertools.chain.from_iterable(each.reported for each in malformed)
    document = written.ArchiveDocument(
        **msgspec.structs.asdict(opening),
        rows=pages_counted + bad_rows,
        pages=pages_counted,
        batch_size=batch_size,
        malformed=written.MalformedRows(bad_rows, (*itertools.islice(reported, REPORTED_ROWS),)),
        # In order of codes, which is that of columns and rows; 0 if no mode cuts pages.
        pages_by_grid=tuple(
            written.PagesOfGrid(grids.columns_and_rows(code) if code else (1, 1), count)
            for code, count in enumerate(pages_by_code.tolist())
            if count
        ),
        totals=tuple(each.document() for each in totals),
        time=() if timer is None else tuple(map(timer.document, timer.timed)),
        files=files,
    )
    return Archive(
        document,
        settings,
        lengths=[each.lengths for each in totals],
        time=None if timer is None else timer.time,
        ends=ends,
    )


# --- distinct workloads --------------------------------------------------------------------------


class DistinctWorkloads(NamedTuple):
    """Workloads, all different."""

    workloads: Workloads
    pages: Integers
    """Number of pages that each stands for, `[n]`."""
    amounts: Floats
    """Sums of each amount over these pages, `[m, n]`."""


_Counted = tuple[Integers, Floats]
"""Workloads as ascending keys, `[n]`, and sums over the pages of each, `[1 + m, n]`: number of
pages (exact below 2^53), and each amount."""


def distinct_workloads(
    batches: Iterable[tuple[Workloads, Floats]], *, at_once: bool = False
) -> Iterator[DistinctWorkloads]:
    """Distinct workloads, in memory that does not grow with the number of pages.

    A workload may be yielded again in a later part.

    Args:
        batches: Workloads with batch size 1, and m amounts of each to sum over pages, `[m, n]`.
        at_once: Whether to yield a single part, in memory that grows with the distinct workloads.
    """
    waiting: list[_Counted] = []
    for workloads, amounts in batches:
        ones = np.ones((1, len(workloads.grids)))
        counted = _merged([(_packed(workloads), np.concatenate([ones, amounts]))])
        if len(counted[0]) > _MANY and not at_once:
            yield _distinct(*counted)
            continue
        waiting.append(counted)
        if sum(len(keys) for keys, _ in waiting) > _MOST_WAITING:
            waiting = [_merged(waiting)]
            if 2 * len(waiting[0][0]) > _MOST_WAITING and not at_once:
                yield _distinct(*waiting.pop())
    if waiting:
        yield _distinct(*_merged(waiting))


def _merged(parts: Iterable[_Counted]) -> _Counted:
    """The sums of equal keys."""
    all_keys, all_sums = zip(*parts, strict=True)
    keys, place = np.unique(np.concatenate(all_keys), return_inverse=True)
    sums = np.concatenate(all_sums, axis=1)
    return keys, np.array([np.bincount(place, each, minlength=len(keys)) for each in sums])


def _packed(workloads: Workloads) -> Integers:
    """Each workload in one number, `[n]`: bits of the grid (see `CropRule.count`), then lengths."""
    keys: Integers = (
        ((workloads.grids << _LENGTH_BITS) | workloads.text_tokens) << _LENGTH_BITS
    ) | workloads.max_new_tokens
    return keys


def _unpacked(keys: Integers) -> Workloads:
    mask = (1 << _LENGTH_BITS) - 1
    return Workloads(keys >> (2 * _LENGTH_BITS), (keys >> _LENGTH_BITS) & mask, keys & mask)


def _distinct(keys: Integers, sums: Floats) -> DistinctWorkloads:
    return DistinctWorkloads(_unpacked(keys), sums[0].astype(np.int64), sums[1:])


def _in_batches(
    distinct: DistinctWorkloads, batch_size: int, *, are_cut: bool
) -> tuple[Workloads, Integers]:
    """Full and smaller batches, all different, and how many each stands for, `[n]`."""
    workloads, pages, _ = distinct
    if batch_size == 1:
        return workloads, pages
    alike = workloads._replace(grids=workloads.grids * are_cut)  # uncut, all prompts are equal
    keys, [together] = _merged([(_packed(alike), np.array([pages], np.float64))])
    full, rest = np.divmod(together.astype(np.int64), batch_size)
    batches = np.concatenate([full, rest > 0])
    sizes = np.concatenate([np.full_like(full, batch_size), rest])
    some = batches > 0
    return _unpacked(np.tile(keys, 2)[some])._replace(batch_size=sizes[some]), batches[some]


# --- sums and histograms -------------------------------------------------------------------------


def weighted_sum(values: Any, weights: Integers) -> int:
    """`sum(value * weight)`, exactly, for values `[n]` or one value, none negative.

    They are summed in three parts, `v = l0 + 2^21 l1 + 2^42 l2`, whose sums fit in int64 if the
    values do and weights are at most 2^41 in total; others are Python integers (dtype object).
    """
    values, mask = np.broadcast_to(values, weights.shape), (1 << _LIMB_BITS) - 1
    limbs = (values & mask, (values >> _LIMB_BITS) & mask, values >> 2 * _LIMB_BITS)
    return sum(int(np.dot(limb, weights)) << _LIMB_BITS * k for k, limb in enumerate(limbs))


def bars_of_each(all_pages: Sequence[Integers]) -> list[dict[str, int]]:
    """Bars for each of several counts of pages whose prompt has 0, 1, 2, ... tokens.

    All are in the same at most 20 bins of equal, round width.
    """
    occurring = [np.flatnonzero(pages) for pages in all_pages]
    lengths = np.concatenate(occurring)
    if not len(lengths):
        return [{} for _ in all_pages]
    least, most = int(lengths.min()), int(lengths.max())
    widths = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    width = next(each for each in widths if most // each - least // each < _MOST_BARS)
    starts = range(least // width * width, most + 1, width)
    labels = [str(at) if width == 1 else f"{at} to {at + width - 1}" for at in starts]
    sums = (
        np.bincount((each - starts[0]) // width, pages[each], minlength=len(starts))
        for each, pages in zip(occurring, all_pages, strict=True)
    )
    return [dict(zip(labels, each.astype(np.int64).tolist(), strict=True)) for each in sums]


# --- seconds -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArchiveTimeRequest:
    """How a list of pages is to be timed."""

    requested: TimeRequested
    concurrency: int
    """Pages in flight at a time on a GPU."""
    deadline_hours: float | None = None
    has_lengths: bool = False
    """Whether output lengths are given, not just their maximum."""


@dataclass
class _Timed:
    """What the pages take on one GPU under one setting."""

    setting: Setting
    timer: PageTimer
    work: Duration
    sums: Floats = field(default_factory=lambda: np.zeros(5))
    """Of all pages: their number, seconds of one GPU, CPU seconds to prepare them, seconds of the
    GPU if it never waited for the CPU, and pages so large that fewer than the concurrency fit in
    memory."""


class ArchiveTimer:
    """Sums the seconds of a list of pages for every setting and GPU, in `timed`."""

    def __init__(
        self, model: CountedModel, settings: Sequence[Setting], time: ArchiveTimeRequest
    ) -> None:
        """Set up a timer.

        Raises:
            ConfigError: The model can't be served.
            DeviceError: No times are known for a data type.
        """
        from dsocr_analyze.timing.duration import Duration

        self._model, self.time, self._job = model, time, time.requested.job
        self.timed = [
            _Timed(setting, timer, Duration())
            for setting, timer in time.requested.timers(model, settings)
        ]
        self._modes = list(dict.fromkeys(setting.mode for setting in settings))
        self._sizes = np.ones((2, model.architecture.forms.crop_grids.count), np.int64)

    def amounts(self, pages: Pages, workloads: Workloads) -> Floats:
        """CPU seconds of each page in each mode, `[modes, n]`; `[0, n]` if the user gave them.

        Raises:
            WorkloadError: Output lengths are given both in the list and elsewhere.
        """
        from dsocr_analyze.timing.assumptions import estimated_preprocessing_of_pages

        if self.time.has_lengths and not isinstance(pages.max_new_tokens, int):
            raise WorkloadError(
                "the list has a column max_new_tokens, which gives the output lengths; leave out"
                " new_tokens_from and mean_new_tokens",
                arguments=["new_tokens_from", "mean_new_tokens"],
            )
        self._sizes[:, workloads.grids] = pages.sizes  # any page of each grid
        if self._job.preprocess_seconds is not None:
            return np.empty((0, len(pages)))
        return np.array([
            estimated_preprocessing_of_pages(self._model.architecture, mode, *pages.sizes)
            for mode in self._modes
        ])  # fmt: skip

    def add(self, workloads: Workloads, pages: Integers, amounts: Floats) -> None:
        """Add the seconds of more pages; arguments as in `DistinctWorkloads`.

        Raises:
            DeviceError: The GPU lacks a data type.
            WorkloadError: A number of new tokens is invalid.
        """
        architecture, sizes = self._model.architecture, self._sizes[:, workloads.grids]
        workloads = workloads._replace(batch_size=self.time.concurrency)
        for timed in self.timed:
            mode = timed.setting.mode
            prepare: Any = self._job.preprocess_seconds
            if prepare is None:
                prepare = amounts[self._modes.index(mode)] / pages
            times = timed.timer.times(
                evaluate.many_pages(architecture, mode, workloads, sizes, prepare)
            )
            timed.sums += (
                pages.sum(), (pages / times.pages_per_second).sum(), (prepare * pages).sum(),
                (pages * times.gpu_seconds).sum(), pages[~times.fits].sum(),
            )  # fmt: skip
            timed.work = timed.work.plus(times.work(pages))

    def document(self, timed: _Timed) -> written.TimeDocument:
        """The figures of one of `timed`."""
        pages, seconds, cpu_seconds, least_seconds, waiting = timed.sums.tolist()
        hours, error = seconds / _SECONDS_PER_HOUR, timed.work.error
        bound: str = timed.work.bound
        low, high = hours / (1 + error), hours * (1 + error)
        if cpu_seconds / self._job.workers > least_seconds:  # preprocessing is treated as exact
            bound = "host"
            low, high = hours, max(hours, least_seconds / _SECONDS_PER_HOUR * (1 + error))
        price, deadline = self._job.price_per_hour, self.time.deadline_hours
        profile = timed.timer.model.device
        kinds = ", ".join(sorted(each.kind for each in timed.work.kinds if each.extrapolated))
        wider = f"{profile.gpu.name}: extrapolated from another GPU, with a wider band: {kinds}"
        return written.TimeDocument(
            gpu=profile.gpu.name,
            runtime=self._job.runtime,
            **self._model.keys_in(timed.setting),
            concurrency=self.time.concurrency,
            gpu_hours=hours,
            low=low,
            high=high,
            pages_per_second=pages / seconds if seconds else 0.0,
            cost=None if price is None else price * hours,
            deadline_hours=deadline,
            gpus_for_deadline=None if deadline is None else math.ceil(hours / deadline),
            bound=bound,
            pages_that_wait=int(waiting),
            assumptions=(
                _METHOD,
                f"{profile.gpu.name}: kernel times from {profile.source}",
                *([wider] if kinds else ()),
                *self.time.requested.sentences,
                *timed.timer.correction.sentences(),
            ),
        )
