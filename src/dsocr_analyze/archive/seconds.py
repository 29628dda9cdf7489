"""How long many pages take on GPUs, in sweeps and lists."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from dsocr_analyze.architectures import PageRequest
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.archive.evaluate import COST, Floats, Integers, Workloads
from dsocr_analyze.archive.pages import Pages
from dsocr_analyze.archive.setting import CountedModel, Setting, TimeDocument
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.timing import (
    SECONDS_PER_HOUR,
    assumptions,
    cost_per_thousand_pages,
    kernel_seconds,
)
from dsocr_analyze.timing.page_times import ManyPages, PageTimer, PageTimes
from dsocr_analyze.timing.predict import bottleneck
from dsocr_analyze.timing.runtimes import served_notes
from dsocr_analyze.timing.serving import TimedModel
from dsocr_analyze.workload import Mode

METHOD: Final = (
    "each page takes as long as if all pages in flight were like it: in steady state, a GPU's time"
    " per page is 1 over the pages per second; preprocessing is averaged over pages with the same"
    " crop grid and lengths"
)
"""Assumptions beside those on single pages."""


@dataclass(frozen=True)
class TimeRequested:
    """At least one GPU, and assumptions; `lengths` says how many tokens pages generate."""

    profiles: Sequence[Device]
    job: assumptions.Assumptions
    lengths: str

    @property
    def sentences(self) -> tuple[str, ...]:
        """The assumptions in words, without corrections."""
        return tuple(self.job.sentences(self.lengths, self.profiles))

    def sentences_of(self, architecture: Architecture, modes: Iterable[Mode]) -> tuple[str, ...]:
        """The assumptions in words, with `notes`.

        Corrections are from benchmarks on these GPUs.
        """
        return (*self.sentences, *self.notes(architecture, modes))

    def notes(self, architecture: Architecture, modes: Iterable[Mode]) -> tuple[str, ...]:
        """What the server does unlike the model with pages in these modes; and corrections."""
        corrections = (
            self.job.corrections.of(each, self.job.host, architecture.name)
            for each in self.profiles
        )
        return (
            *served_notes(architecture, self.job.host.name, *modes),
            *(said for each in corrections for said in each.sentences()),
        )

    def timers(
        self, model: CountedModel, settings: Sequence[Setting]
    ) -> Iterator[tuple[Setting, PageTimer]]:
        """A timer for pages in each setting, GPU by GPU.

        Raises:
            ConfigError: The model can't be served.
            DeviceError: No times are known for a data type.
        """
        for profile, setting in itertools.product(self.profiles, settings):
            yield setting, PageTimer(timed_model(model, setting, profile), self.job)

    def columns(
        self, timer: PageTimer, mode: Mode, workloads: Workloads, sizes: Integers
    ) -> dict[str, Any]:
        """A page's times, whether it fits and, with a price, its cost, as Arrow data.

        Batch sizes are pages in flight; sizes of pages are in pixels, `[2, n]`.
        """
        prepare = self.job.prepare_seconds_of_pages(timer.model.architecture, mode, *sizes)
        pages = many_pages(timer.model.architecture, mode, workloads, sizes, prepare)
        times = timer.times(pages)
        seconds = {
            "ttft_seconds": times.ttft_seconds,
            "tpot_seconds": times.tpot_seconds,
            "page_seconds": times.page_seconds,
            "pages_per_second": times.pages_per_second,
            "tokens_per_second": times.tokens_per_second,
        }
        columns = {
            "gpu": pa.repeat(timer.model.device.gpu.name, len(workloads.grids)),
            **{name: pa.array(each, mask=np.isnan(each)) for name, each in seconds.items()},
            "fits": pa.array(times.fits, pa.bool_()),
        }
        if (price := timer.assumptions.price_per_hour) is not None:
            columns[COST] = pa.array(cost_per_thousand_pages(price, times.pages_per_second))
        return columns


def timed_model(model: CountedModel, setting: Setting, profile: Device) -> TimedModel:
    """A counted model under a setting, on a device."""
    return TimedModel(
        model.architecture, model.dimensions_in(setting), setting.dtype, setting.flash_attention,
        profile,
    )  # fmt: skip


def many_pages(
    architecture: Architecture, mode: Mode, workloads: Workloads, sizes: Integers, prepare: Floats
) -> ManyPages:
    """Pages of one mode, any of each grid; CPU seconds are `[n]`."""
    codes = workloads.grids * mode.follows_pages
    _, first, kind = np.unique(codes, return_index=True, return_inverse=True)
    kinds = [
        PageRequest(
            architecture=architecture, page=(width, height), base_size=mode.base_size,
            image_size=mode.image_size, crop_mode=mode.crop_mode, text_tokens=1,
        ).workload_of_page
        for width, height in sizes[:, first].T.tolist()
    ]  # fmt: skip
    text_tokens, max_new_tokens, concurrency, seconds = (
        np.broadcast_to(each, len(kind)) for each in (*workloads[1:], prepare)
    )
    return ManyPages(kinds, kind, text_tokens, max_new_tokens, seconds, concurrency)


# --- totals of a list ----------------------------------------------------------------------------


Sum = TypeVar("Sum")


class LoadSums(NamedTuple, Generic[Sum]):
    """What n different pages add up to, or at each of m concurrencies, arrays `[m]`.

    Attributes:
        seconds: Of one GPU.
        cpu_seconds: To prepare the pages.
        least_seconds: Of the GPU if it never waited for the CPU.
        first_token_seconds: Of each page from sending it, waiting included.
        page_seconds: The same to the last token.
        waiting: Pages of which fewer than the concurrency fit.
    """

    pages: Sum
    seconds: Sum
    cpu_seconds: Sum
    least_seconds: Sum
    first_token_seconds: Sum
    page_seconds: Sum
    waiting: Sum


def summed(times: PageTimes, pages: Floats | Integers) -> LoadSums[Floats]:
    """The sums of pages that are timed at m concurrencies, so many of each, `[n]`."""

    def total(values: Any) -> Floats:
        return np.asarray((np.reshape(values, (-1, len(pages))) * pages).sum(axis=1), np.float64)

    return LoadSums(
        total(np.ones(len(times.pages))), total(1 / times.pages_per_second),
        total(times.pages.prepare), total(times.gpu_seconds), total(times.ttft_seconds),
        total(times.page_seconds), total(~times.fits),
    )  # fmt: skip


@dataclass
class _Timed:
    setting: Setting
    timer: PageTimer
    work: kernel_seconds.Duration = field(default_factory=kernel_seconds.Duration)
    sums: Floats = field(default_factory=lambda: np.zeros(len(LoadSums._fields)))
    """`LoadSums` of all pages so far."""


class Preparation:
    """What the CPU does with the pages of a list in some modes; notes a size of each grid.

    Attributes:
        modes: The modes.
        pages: How many it has seen.
    """

    def __init__(
        self,
        architecture: Architecture,
        job: assumptions.Assumptions,
        modes: Iterable[Mode],
        *,
        has_lengths: bool,
    ) -> None:
        self._architecture, self._job, self._has_lengths = architecture, job, has_lengths
        self.modes = list(dict.fromkeys(modes))
        self.pages = 0
        self._sizes = np.ones((2, architecture.forms.model.page_rule.count), np.int64)

    def seconds(self, pages: Pages) -> Floats:
        """CPU seconds of each page in each mode, `[modes, n]`.

        Raises WorkloadError if both the list and options give output lengths.
        """
        if self._has_lengths and not isinstance(pages.workloads.max_new_tokens, int):
            raise WorkloadError(
                "the list has a column max_new_tokens, which gives the output lengths; leave out"
                " new_tokens_from and mean_new_tokens",
                arguments=["new_tokens_from", "mean_new_tokens"],
            )
        self.pages += len(pages)
        self._sizes[:, pages.workloads.grids] = pages.sizes
        prepare = self._job.prepare_seconds_of_pages
        return np.array([prepare(self._architecture, mode, *pages.sizes) for mode in self.modes])

    def sizes(self, workloads: Workloads) -> Integers:
        """Width and height of some page with each grid, in pixels, `[2, n]`."""
        return self._sizes[:, workloads.grids]


class ArchiveTimer:
    """Sums the seconds of a list of pages for every setting and GPU."""

    def __init__(
        self,
        requested: TimeRequested,
        model: CountedModel,
        settings: Sequence[Setting],
        *,
        concurrency: int,
        deadline_hours: float | None = None,
        has_lengths: bool = False,
    ) -> None:
        """Raises what `TimeRequested.timers` does.

        Args:
            requested: The GPUs and assumptions.
            model: The model.
            settings: The settings.
            concurrency: Pages in flight on a GPU; all of them if the list has fewer.
            deadline_hours: When all pages must be done.
            has_lengths: Whether output lengths are given, not just their maximum.
        """
        self.requested, self.concurrency = requested, concurrency
        self.deadline_hours, self.has_lengths = deadline_hours, has_lengths
        self._model, self._job = model, requested.job
        self._timed = [_Timed(*each) for each in requested.timers(model, settings)]
        self.preparation = Preparation(
            model.architecture, requested.job, (each.mode for each in settings),
            has_lengths=has_lengths,
        )  # fmt: skip

    def add(self, workloads: Workloads, pages: Integers, amounts: Floats) -> None:
        """Adds the seconds of more pages: workloads, how many have each, and sums of amounts."""
        sizes, modes = self.preparation.sizes(workloads), self.preparation.modes
        # A list of fewer pages than can be in flight comes at once.
        self.concurrency = min(self.concurrency, self.preparation.pages)
        workloads = workloads._replace(batch_size=self.concurrency)
        for timed in self._timed:
            mode = timed.setting.mode
            prepare = amounts[modes.index(mode)] / pages
            listed = many_pages(self._model.architecture, mode, workloads, sizes, prepare)
            times = timed.timer.times(listed)
            timed.sums += np.ravel(summed(times, pages))
            timed.work = timed.work.plus(times.work(pages))

    def documents(self) -> tuple[TimeDocument, ...]:
        """The figures of every GPU and setting."""
        return tuple(map(self._document, self._timed))

    def _document(self, timed: _Timed) -> TimeDocument:
        sums: LoadSums[float] = LoadSums(*timed.sums.tolist())
        hours = sums.seconds / SECONDS_PER_HOUR
        bound, band = bottleneck(
            sums.seconds, sums.cpu_seconds, sums.least_seconds, timed.work, self._job
        )
        price, deadline = timed.timer.assumptions.price_per_hour, self.deadline_hours
        profile = timed.timer.model.device
        kinds = ", ".join(sorted(each.kind for each in timed.work.kinds if each.extrapolated))
        notes = (
            *kernel_seconds.notes_on_lent(profile.gpu, timed.work.kinds),
            *served_notes(self._model.architecture, self._job.host.name, timed.setting.mode),
            *timed.timer.correction.sentences(),
        )
        wider = f"{profile.gpu.name}: extrapolated from another GPU, with a wider band: {kinds}"
        return TimeDocument(
            profile.gpu.name,
            self._job.runtime,
            self._job.host.name,
            **self._model.keys_in(timed.setting),
            concurrency=self.concurrency,
            gpu_hours=hours,
            low=band.low / SECONDS_PER_HOUR,
            high=band.high / SECONDS_PER_HOUR,
            pages_per_second=sums.pages / sums.seconds if sums.seconds else 0.0,
            cost=None if price is None else price * hours,
            deadline_hours=deadline,
            gpus_for_deadline=None if deadline is None else math.ceil(hours / deadline),
            bound=bound,
            pages_that_wait=int(sums.waiting),
            assumptions=(
                METHOD,
                f"{profile.gpu.name}: kernel times from {profile.source}",
                *([wider] if kinds else ()),
                *self.requested.sentences,
                *notes,
            ),
            notes=notes,
        )
