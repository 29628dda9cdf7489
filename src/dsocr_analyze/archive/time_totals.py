"""How long a list of pages keeps a GPU busy, and how many GPUs meet a deadline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from dsocr_analyze.archive.document import TimeDocument
from dsocr_analyze.columns.time_columns import (
    TimeRequested,
    page_timer,
    pages_of_grids,
    preprocessing_of_pages,
)
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.timing.duration import Duration
from dsocr_analyze.timing.many_pages import ManyPages, PageTimer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsocr_analyze.archive.pages import Pages
    from dsocr_analyze.columns.evaluate import Workloads
    from dsocr_analyze.columns.setting import CountedModel, Setting

__all__ = ["ListTime", "ListTimer"]

_SECONDS_PER_HOUR: Final = 3600.0

_METHOD: Final = (
    "each page takes as long as if all pages in flight were like it: in steady state, a GPU's time"
    " per page is 1 over the pages per second; preprocessing is averaged over pages with the same"
    " crop grid and lengths"
)
"""Assumption about a list, in addition to those about a page."""


@dataclass(frozen=True)
class ListTime:
    """How a list of pages is to be timed.

    Attributes:
        requested: GPUs, and how pages are timed on them.
        concurrency: Pages in flight at a time on a GPU.
        deadline_hours: Hours in which the list must be done; None for no deadline.
        has_lengths: Whether output lengths are given, not just their maximum.
    """

    requested: TimeRequested
    concurrency: int
    deadline_hours: float | None = None
    has_lengths: bool = False

    def timer(self, model: CountedModel, settings: Sequence[Setting]) -> ListTimer:
        """A timer for these ways to run a model; raises the errors of `ListTimer`."""
        return ListTimer(model, settings, self)


@dataclass
class _Timed:
    """What the pages take on one GPU under one setting.

    Attributes:
        setting: Mode, data type and attention.
        timer: Times pages there.
        sums: Of all pages: their number, seconds of one GPU, CPU seconds to prepare them, seconds
            of the GPU if it never waited for the CPU, and pages so large that fewer than the
            concurrency fit in memory.
        work: GPU work of all pages.
    """

    setting: Setting
    timer: PageTimer
    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros(5))
    work: Duration = field(default_factory=Duration)


class ListTimer:
    """Sums the seconds of a list of pages for every setting and GPU.

    Attributes:
        time: How the list is timed.
    """

    def __init__(self, model: CountedModel, settings: Sequence[Setting], time: ListTime) -> None:
        """Set up a timer.

        Args:
            model: The model.
            settings: Ways to run it.
            time: How the list is to be timed.

        Raises:
            ConfigError: The model can't be served.
            DeviceError: No times are known for a data type.
        """
        self._model, self.time = model, time
        self._job = time.requested.job
        self._timed = [
            _Timed(setting, page_timer(model, setting, profile, self._job))
            for profile in time.requested.profiles
            for setting in settings
        ]
        self._modes = list(dict.fromkeys(setting.mode for setting in settings))
        self._sizes = np.ones((2, model.architecture.forms.crop_grids.count), np.int64)

    def amounts(self, pages: Pages, workloads: Workloads) -> NDArray[np.float64]:
        """CPU seconds of each page in each mode, `[modes, n]`; `[0, n]` if the user gave them.

        Args:
            pages: Some pages of the list.
            workloads: The same pages as workloads.

        Raises:
            WorkloadError: Output lengths are given both in the list and elsewhere.
        """
        if self.time.has_lengths and not isinstance(pages.max_new_tokens, int):
            raise WorkloadError(
                "the list has a column max_new_tokens, which gives the output lengths; leave out"
                " new_tokens_from and mean_new_tokens",
                arguments=["new_tokens_from", "mean_new_tokens"],
            )
        self._sizes[:, workloads.grids] = pages.widths, pages.heights  # any page of each grid
        if self._job.preprocess_seconds is not None:
            return np.empty((0, len(pages)))
        architecture = self._model.architecture
        return np.array([
            preprocessing_of_pages(architecture, mode, self._job, pages.widths, pages.heights)
            for mode in self._modes
        ])  # fmt: skip

    def add(
        self, workloads: Workloads, pages: NDArray[np.int64], amounts: NDArray[np.float64]
    ) -> None:
        """Add the seconds of more pages.

        Args:
            workloads: Some workloads, all different.
            pages: Number of pages that each stands for, `[n]`.
            amounts: Sums over these pages of what `amounts` returns for each.

        Raises:
            DeviceError: The GPU lacks a data type.
            WorkloadError: A number of new tokens is invalid.
        """
        widths, heights = self._sizes[:, workloads.grids]
        text_tokens, max_new_tokens = np.array(workloads[1:3])
        concurrency = np.full(len(pages), self.time.concurrency)
        for timed in self._timed:
            mode = timed.setting.mode
            kinds, kind = pages_of_grids(
                self._model.architecture, mode, workloads.grids, widths, heights
            )
            prepare = np.full(len(pages), self._job.preprocess_seconds or 0.0)
            if len(amounts):
                prepare = amounts[self._modes.index(mode)] / pages
            listed = ManyPages(kinds, kind, text_tokens, max_new_tokens, prepare, concurrency)
            times = timed.timer.times(listed, weights=pages)
            timed.sums += (
                pages.sum(), (pages / times.pages_per_second).sum(), (prepare * pages).sum(),
                (pages * times.gpu_seconds).sum(), pages[~times.fits].sum(),
            )  # fmt: skip
            if times.work is not None:
                timed.work = timed.work.plus(times.work)

    def documents(self) -> tuple[TimeDocument, ...]:
        """The seconds, by GPU and setting."""
        return tuple(map(self._document, self._timed))

    def _document(self, timed: _Timed) -> TimeDocument:
        pages, seconds, cpu_seconds, least_seconds, waiting = timed.sums.tolist()
        hours, error = seconds / _SECONDS_PER_HOUR, timed.work.error
        bound: str = timed.work.bound
        low, high = hours / (1 + error), hours * (1 + error)
        if cpu_seconds / self._job.workers > least_seconds:  # preprocessing is treated as exact
            bound = "host"
            low, high = hours, max(hours, least_seconds / _SECONDS_PER_HOUR * (1 + error))
        price, deadline = self._job.price_per_hour, self.time.deadline_hours
        return TimeDocument(
            gpu=timed.timer.model.device.name,
            runtime=self._job.runtime,
            **timed.setting.keys(self._model.window_in(timed.setting)),
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
            assumptions=tuple(self._assumptions(timed)),
        )

    def _assumptions(self, timed: _Timed) -> Iterator[str]:
        """The assumptions, one sentence each."""
        profile = timed.timer.model.device.profile
        yield _METHOD
        yield f"{profile.gpu.name}: kernel times from {profile.source}"
        kinds = ", ".join(sorted(each.kind for each in timed.work.kinds if each.extrapolated))
        if kinds:
            yield (f"{profile.gpu.name}: extrapolated from another GPU, with a wider band: {kinds}")
        yield from self.time.requested.sentences
        yield from timed.timer.correction.sentences()
