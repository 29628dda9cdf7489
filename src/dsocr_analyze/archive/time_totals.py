"""How long a list of pages keeps a GPU busy, and how many GPUs meet a deadline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dsocr_analyze.columns.time_columns import (
    TimeRequested,
    page_timer,
    pages_of_grids,
    preprocessing_of_pages,
)
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.timing.correction import NO_CORRECTION, Correction
from dsocr_analyze.timing.many_pages import ManyPages
from dsocr_analyze.timing.span import Span

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.archive.distinct import DistinctWorkloads
    from dsocr_analyze.archive.pages import Pages
    from dsocr_analyze.columns.counted_model import CountedModel
    from dsocr_analyze.columns.evaluate import Workloads
    from dsocr_analyze.columns.setting import Setting
    from dsocr_analyze.hardware.profile import Profile
    from dsocr_analyze.timing.many_pages import ManyTimes, PageTimer

__all__ = ["ListTime", "ListTimer", "TimeTotals"]

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


@dataclass
class TimeTotals:
    """How long the pages take on one GPU under one setting.

    Attributes:
        setting: Mode, data type and attention.
        profile: The GPU's profile.
        time: How the list is timed.
        correction: Correction from benchmarks of the server on this GPU.
        sliding_window: Whether decode steps use a sliding window; None if the model has none.
        pages: Number of pages.
        gpu_seconds: Seconds of one GPU for all pages.
        cpu_seconds: CPU seconds to prepare all pages for the model.
        pages_that_wait: Pages so large that fewer than the concurrency fit in memory.
        least_gpu_seconds: Seconds of one GPU for all pages if it never waited for the CPU.
        work: GPU work of all pages.
    """

    setting: Setting
    profile: Profile
    time: ListTime
    correction: Correction = NO_CORRECTION
    sliding_window: bool | None = None
    pages: int = 0
    gpu_seconds: float = 0.0
    cpu_seconds: float = 0.0
    pages_that_wait: int = 0
    least_gpu_seconds: float = 0.0
    work: Span = field(default_factory=Span)

    def add(self, times: ManyTimes, pages: NDArray[np.int64], cpu_seconds: float) -> None:
        """Add more pages.

        Args:
            times: Times of some distinct pages, and their `work`.
            pages: Number of pages that each stands for, `[n]`.
            cpu_seconds: CPU work of all these pages.
        """
        self.pages += int(pages.sum())
        self.gpu_seconds += float((pages / times.pages_per_second).sum())
        self.cpu_seconds += cpu_seconds
        self.least_gpu_seconds += float((pages * times.gpu_seconds).sum())
        self.pages_that_wait += int(pages[~times.fits].sum())
        if times.work is not None:
            self.work = self.work.plus(times.work)

    @property
    def gpu(self) -> str:
        """The GPU's name in the catalogue."""
        return self.profile.gpu.name

    @property
    def runtime(self) -> str:
        """`eager` or `serving`."""
        return self.time.requested.job.runtime

    @property
    def gpu_hours(self) -> float:
        """Hours of one GPU for all pages."""
        return self.gpu_seconds / _SECONDS_PER_HOUR

    @property
    def is_cpu_bound(self) -> bool:
        """Whether the CPU takes longer to prepare the pages than the GPU to process them."""
        return self.cpu_seconds / self.time.requested.job.workers > self.least_gpu_seconds

    @property
    def bound(self) -> str:
        """What takes most time: launches, memory, compute or host (preprocessing included)."""
        return "host" if self.is_cpu_bound else self.work.bound

    @property
    def band(self) -> tuple[float, float]:
        """Lower and upper end of the GPU-hours; CPU time is treated as exact."""
        hours, error = self.gpu_hours, self.work.error
        if self.is_cpu_bound:
            least_hours = self.least_gpu_seconds / _SECONDS_PER_HOUR
            return hours, max(hours, least_hours * (1 + error))
        return hours / (1 + error), hours * (1 + error)

    @property
    def pages_per_second(self) -> float:
        """Mean throughput of one GPU."""
        return self.pages / self.gpu_seconds if self.gpu_seconds else 0.0

    @property
    def cost(self) -> float | None:
        """Cost of all pages, in the currency of the price; None without a price."""
        price = self.time.requested.job.price_per_hour
        return None if price is None else price * self.gpu_hours

    @property
    def gpus_for_deadline(self) -> int | None:
        """GPUs, each with its own CPU, needed to meet the deadline; None without one."""
        hours = self.time.deadline_hours
        return None if hours is None else math.ceil(self.gpu_hours / hours)

    @property
    def assumptions(self) -> list[str]:
        """The assumptions, one sentence each."""
        said = [_METHOD, f"{self.gpu}: kernel times from {self.profile.source}"]
        extrapolated = sorted(kind.kind for kind in self.work.kinds if kind.extrapolated)
        if extrapolated:
            kinds = ", ".join(extrapolated)
            said.append(f"{self.gpu}: extrapolated from another GPU, with a wider band: {kinds}")
        return [*said, *self.time.requested.sentences, *self.correction.sentences()]


class ListTimer:
    """Sums the seconds of a list of pages for every setting and GPU."""

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
        import numpy as np

        self._model, self._time = model, time
        job = time.requested.job
        self._timed: list[tuple[PageTimer, TimeTotals]] = []
        for profile in time.requested.profiles:
            for setting in settings:
                timer = page_timer(model, setting, profile, job)
                window = model.window_in(setting)
                totals = TimeTotals(setting, profile, time, timer.correction, window)
                self._timed.append((timer, totals))
        self._modes = list(dict.fromkeys(setting.mode for setting in settings))
        count = model.architecture.forms.crop_grids.count
        self._sizes = np.ones((2, count), np.int64)

    @property
    def totals(self) -> list[TimeTotals]:
        """The sums, by GPU and setting."""
        return [totals for _, totals in self._timed]

    def amounts(self, pages: Pages, workloads: Workloads) -> NDArray[np.float64] | None:
        """CPU seconds of each page in each mode, `[modes, n]`; None if the user gave them.

        Args:
            pages: Some pages of the list.
            workloads: The same pages as workloads.

        Raises:
            WorkloadError: Output lengths are given both in the list and elsewhere.
        """
        import numpy as np

        if self._time.has_lengths and not isinstance(pages.max_new_tokens, int):
            raise WorkloadError(
                "the list has a column max_new_tokens, which gives the output lengths; leave out"
                " new_tokens_from and mean_new_tokens",
                arguments=["new_tokens_from", "mean_new_tokens"],
            )
        self._sizes[:, workloads.grids] = pages.widths, pages.heights  # any page of each grid
        job, architecture = self._time.requested.job, self._model.architecture
        if job.preprocess_seconds is not None:
            return None
        return np.array([
            preprocessing_of_pages(architecture, mode, job, pages.widths, pages.heights)
            for mode in self._modes
        ])  # fmt: skip

    def add(self, distinct: DistinctWorkloads) -> None:
        """Add the seconds of more pages.

        Args:
            distinct: The pages, with amounts from `amounts`.

        Raises:
            DeviceError: The GPU lacks a data type.
            WorkloadError: A number of new tokens is invalid.
        """
        import numpy as np

        workloads, pages, amounts = distinct
        widths, heights = self._sizes[:, workloads.grids]
        n = len(pages)
        concurrency = np.full(n, self._time.concurrency)
        text_tokens = np.broadcast_to(workloads.text_tokens, n)
        max_new_tokens = np.broadcast_to(workloads.max_new_tokens, n)
        given = self._time.requested.job.preprocess_seconds or 0.0
        for timer, totals in self._timed:
            mode = totals.setting.mode
            kinds, kind = pages_of_grids(
                self._model.architecture, mode, workloads.grids, widths, heights
            )
            prepare = np.full(n, given)
            if amounts is not None:
                prepare = amounts[self._modes.index(mode)] / pages
            listed = ManyPages(kinds, kind, text_tokens, max_new_tokens, prepare, concurrency)
            times = timer.times(listed, weights=pages)
            totals.add(times, pages, float((prepare * pages).sum()))
