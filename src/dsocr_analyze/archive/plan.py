"""How many GPUs, pages at once and CPU workers, and how much money, many pages take."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from dsocr_analyze.archive.evaluate import Floats, Integers
from dsocr_analyze.archive.pages import Pages
from dsocr_analyze.archive.seconds import (
    METHOD,
    LoadSums,
    Preparation,
    TimeRequested,
    many_pages,
    summed,
    timed_model,
)
from dsocr_analyze.archive.setting import CountedModel, CountOpening, Setting, SettingDocument
from dsocr_analyze.archive.totals import distinct_workloads
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.timing import (
    MOST_CONCURRENCY,
    SECONDS_PER_HOUR,
    Interval,
    LoadBound,
    cost_per_thousand_pages,
)
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths, workers_needed
from dsocr_analyze.timing.kernel_seconds import Duration
from dsocr_analyze.timing.page_times import ManyPages, PageTimer, PageTimes
from dsocr_analyze.timing.predict import KNEE, bottleneck, knee, most_within
from dsocr_analyze.timing.runtimes import streaming_notes
from dsocr_analyze.workload import beyond_positions

_MOST_PAGES: Final = 10**15

PointName = Literal["alone", "knee", "first_token", "max"]

# --- what is planned ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goals:
    """What a plan must reach.

    Attributes:
        pages: How many; None for those that are listed.
        deadline_hours: When all must be done; None for one GPU, however long it takes.
        first_token_seconds: The mean time to the first token that is not exceeded; None for any.
        lengths_without_repetition: Of outputs if no page repeated itself to its limit; None if
            none does.
    """

    pages: int | None = None
    deadline_hours: float | None = None
    first_token_seconds: float | None = None
    lengths_without_repetition: Callable[[int], OutputLengths] | None = None

    def __post_init__(self) -> None:
        """Raises WorkloadError for a number of pages or a time that is none."""
        pages: Any = self.pages
        if pages is not None and not (isinstance(pages, int) and 1 <= pages <= _MOST_PAGES):
            raise WorkloadError(
                f"pages {pages!r} is invalid; give a whole number from 1 to 10^15",
                arguments=["pages"],
            )
        for name in ("deadline_hours", "first_token_seconds"):
            time: Any = getattr(self, name)
            if time is not None and not (isinstance(time, int | float) and 0 < time < math.inf):
                raise WorkloadError(
                    f"{name} {time!r} is invalid; give a number above 0", arguments=[name]
                )


@dataclass(frozen=True)
class PlannedPages:
    """n different pages of one mode.

    Attributes:
        pages: One of each, with the mean CPU seconds of those like it.
        counts: How many there are of each, `[n]`.
    """

    pages: ManyPages
    counts: Floats

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[tuple[Pages, Floats]],
        model: CountedModel,
        setting: Setting,
        job: Assumptions,
        *,
        has_lengths: bool = False,
    ) -> Self:
        """The different pages of some batches, in which each stands for so many, `[n]`.

        Raises WorkloadError if there are none, or their lengths are given twice.
        """
        preparation = Preparation(model.architecture, job, [setting.mode], has_lengths=has_lengths)
        amounts = (
            (pages.workloads, np.array([counts, counts * preparation.seconds(pages)[0]]))
            for pages, counts in batches
            if len(pages)
        )
        for workloads, (counts, seconds) in distinct_workloads(amounts, at_once=True):
            pages = many_pages(
                model.architecture, setting.mode, workloads, preparation.sizes(workloads),
                seconds / counts,
            )  # fmt: skip
            return cls(pages, counts)
        raise WorkloadError("there are no pages to plan for; give some")

    def numbering(self, pages: int | None) -> Self:
        """As many pages in all, in the same shares."""
        if pages is None:
            return self
        return replace(self, counts=self.counts * (pages / self.counts.sum()))

    def position_notes(self, model: CountedModel, job: Assumptions) -> Iterator[str]:
        """How many pages exceed the positions that the decoder was trained for, if any do."""
        trained = model.dimensions.decoder.max_position_embeddings
        share = cache(lambda prompt, most: job.lengths(most).share_above(trained + 1 - prompt))
        columns = self.pages.prompt_tokens, self.pages.max_new_tokens, self.counts
        pages = zip(*(each.tolist() for each in columns), strict=True)
        if beyond := round(sum(count * share(prompt, most) for prompt, most, count in pages)):
            yield beyond_positions(beyond, f"{round(self.counts.sum()):,} pages", trained)

    def mean_tokens(self, job: Assumptions) -> float:
        """Tokens that a page generates."""
        distinct, place = np.unique(self.pages.max_new_tokens, return_inverse=True)
        means = np.array([job.lengths(most).mean for most in distinct.tolist()])
        return float(np.average(means[place], weights=self.counts))


# --- its document ---------------------------------------------------------------------------------


class OperatingPoint(Struct, frozen=True, kw_only=True):
    """A GPU with so many pages in flight; seconds are means over all pages.

    Attributes:
        concurrency: Pages in flight.
        pages_per_second: Throughput of one GPU.
        ttft_seconds: Until a page's first token, preprocessing and waiting included.
        page_seconds: From sending a page to its last token.
        memory_bytes: The most memory that so many of any of the pages need.
        bound: What limits the throughput; `workers` are those of the CPU, which prepare pages.
        gpu_hours: Hours of one GPU for all pages.
        gpu_hours_band: Their band.
        gpus: GPUs that finish by the deadline; 1 without one.
        hours: Until these have finished, which takes as long as one page at least.
        cost: Of all pages, in the price's currency; null without a price.
        cost_per_thousand_pages: The same of a thousand pages.
    """

    concurrency: int
    pages_per_second: float
    ttft_seconds: float
    page_seconds: float
    memory_bytes: int
    bound: LoadBound
    gpu_hours: float
    gpu_hours_band: Interval
    gpus: int
    hours: float
    cost: float | None
    cost_per_thousand_pages: float | None


class RepetitionCost(Struct, frozen=True, kw_only=True):
    """What pages cost that repeat themselves to the limit of their tokens.

    Attributes:
        share: Share of such pages.
        tokens: The limit.
        page_seconds: From sending such a page to its last token, at the planned point.
        gpu_hours: Hours of one GPU that would be saved if they ended like the others.
        cost: What these hours cost, in the price's currency; null without a price.
    """

    share: float
    tokens: int
    page_seconds: float
    gpu_hours: float
    cost: float | None


class GpuPlan(Struct, frozen=True, kw_only=True):
    """The plan for one kind of GPU.

    Attributes:
        gpu: Its name.
        workers: CPU workers per GPU.
        largest_concurrency: Most pages at a time that fit in memory, and that the engine runs.
        memory_bytes: Memory of one GPU.
        planned: The point that the plan takes: the knee, or less to keep to the time to the first
            token; null if that is exceeded by a page alone, or no page fits.
        points: By name, those that exist: a page alone, at the knee, the most within the time to
            the first token, the most that fit.
        repetition: What repetition costs; null if no share of pages repeats itself.
    """

    gpu: str
    workers: int
    largest_concurrency: int
    memory_bytes: int
    planned: PointName | None
    points: dict[PointName, OperatingPoint]
    repetition: RepetitionCost | None

    @property
    def point(self) -> OperatingPoint | None:
        """What the plan takes, if anything."""
        return None if self.planned is None else self.points[self.planned]


class PlanDocument(CountOpening, frozen=True, kw_only=True):
    """How many GPUs take some pages by a deadline, and at what cost: predicted, not measured.

    Attributes:
        setting: Mode, types and attention.
        pages: How many pages.
        different_pages: How many differ in crop grid or lengths.
        deadline_hours: When all must be done; null without a deadline.
        first_token_seconds: The mean time to the first token that must not be exceeded, or null.
        runtime: Always `serving`.
        host: The serving engine.
        gpus: One plan per kind of GPU: with prices the cheapest first, else fewest GPU-hours first.
        assumptions: What the predictions assume.
        notes: Those assumptions that make them doubtful, or that correct them.
    """

    setting: SettingDocument
    pages: int
    different_pages: int
    deadline_hours: float | None
    first_token_seconds: float | None
    runtime: str
    host: str
    gpus: tuple[GpuPlan, ...]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]


# --- planning -------------------------------------------------------------------------------------


class _Curve:
    """The pages on a GPU of some CPU workers, at any numbers of pages at once."""

    def __init__(self, timer: PageTimer, planned: PlannedPages) -> None:
        self.timer, self.job = timer, timer.assumptions
        self.pages, self.counts = planned.pages, planned.counts
        self._sums = cache(lambda *counts: summed(self.times(np.array(counts)), self.counts))

    def times(self, counts: Integers) -> PageTimes:
        return self.timer.times(self.pages.at_once(counts))

    def sums(self, counts: Integers) -> LoadSums[Floats]:
        return self._sums(*counts.tolist())

    def pages_per_second(self, counts: Integers) -> Floats:
        sums = self.sums(counts)
        return sums.pages / sums.seconds

    def first_token_seconds(self, counts: Integers) -> Floats:
        sums = self.sums(counts)
        return sums.first_token_seconds / sums.pages

    def points(
        self, counts: Sequence[int], deadline_hours: float | None
    ) -> Iterator[OperatingPoint]:
        """One point per number of pages at once."""
        if not counts:
            return
        times = self.times(np.array(counts))
        rows = np.repeat(np.arange(len(counts)), len(self.counts))
        memory = np.reshape(times.memory_bytes, (len(counts), -1)).max(axis=1).tolist()
        for row, sums in enumerate(np.transpose(summed(times, self.counts)).tolist()):
            work = times.work((rows == row) * np.tile(self.counts, len(counts)))
            yield self._point(counts[row], LoadSums(*sums), work, memory[row], deadline_hours)

    def _point(
        self,
        concurrency: int,
        sums: LoadSums[float],
        work: Duration,
        memory_bytes: int,
        deadline_hours: float | None,
    ) -> OperatingPoint:
        seconds, price = sums.seconds, self.job.price_per_hour
        bound, band = bottleneck(seconds, sums.cpu_seconds, sums.least_seconds, work, self.job)
        hours, rate = seconds / SECONDS_PER_HOUR, sums.pages / seconds
        gpus = 1 if deadline_hours is None else max(1, math.ceil(hours / deadline_hours))
        return OperatingPoint(
            concurrency=concurrency,
            pages_per_second=rate,
            ttft_seconds=sums.first_token_seconds / sums.pages,
            page_seconds=sums.page_seconds / sums.pages,
            memory_bytes=memory_bytes,
            bound=bound,
            gpu_hours=hours,
            gpu_hours_band=Interval(
                low=band.low / SECONDS_PER_HOUR, high=band.high / SECONDS_PER_HOUR
            ),
            gpus=gpus,
            hours=max(hours / gpus, sums.page_seconds / sums.pages / SECONDS_PER_HOUR),
            cost=None if price is None else price * hours,
            cost_per_thousand_pages=None if price is None else cost_per_thousand_pages(price, rate),
        )  # fmt: skip


def _plan_gpu(
    model: CountedModel,
    setting: Setting,
    device: Device,
    job: Assumptions,
    planned: PlannedPages,
    goals: Goals,
) -> GpuPlan:
    """The plan for one kind of GPU.

    Raises:
        ConfigError: The model can't be served.
        DeviceError: No times are known for a data type.
    """
    timer = PageTimer(timed_model(model, setting, device), job)
    pages, counts = planned.pages, planned.counts
    fitting, gpu_seconds = timer.capacity(pages.at_once(np.array([MOST_CONCURRENCY])))
    most = min(int(fitting.min()), MOST_CONCURRENCY)
    if job.plans_workers:
        sums = (float((each * counts).sum()) for each in (pages.prepare, gpu_seconds))
        timer = timer.assuming(replace(job, workers=workers_needed(*sums)))
    curve = _Curve(timer, planned)
    numbers: dict[PointName, int] = {}
    if at_once := min(most, math.ceil(counts.sum())):
        numbers = {"alone": 1, "knee": knee(curve.pages_per_second, at_once)}
        if (limit := goals.first_token_seconds) is not None:
            numbers["first_token"] = most_within(curve.first_token_seconds, limit, at_once)
        numbers["max"] = at_once
    some = {name: number for name, number in numbers.items() if number}
    points = dict(zip(some, curve.points([*some.values()], goals.deadline_hours), strict=True))
    taken: PointName = "knee"
    if numbers.get("first_token", at_once) < numbers.get("knee", 0):
        taken = "first_token"
    repetition = None
    if goals.lengths_without_repetition is not None and taken in points:
        ending = replace(curve.job, lengths=goals.lengths_without_repetition)
        without = _Curve(timer.assuming(ending), planned)
        repetition = _repetition(curve, without, points[taken])
    return GpuPlan(
        gpu=device.gpu.name,
        workers=curve.job.workers,
        largest_concurrency=most,
        memory_bytes=device.gpu.memory_bytes,
        planned=taken if taken in points else None,
        points=points,
        repetition=repetition,
    )


def _rank(plan: GpuPlan) -> tuple[float, float]:
    """The cheapest first, and without prices the one of the fewest hours.

    Behind them, what takes no page in time, the one with the soonest first token first.
    """
    if (point := plan.point) is not None:
        return point.cost or 0.0, point.gpu_hours
    return math.inf, plan.points["alone"].ttft_seconds if plan.points else math.inf


def _repetition(curve: _Curve, without: _Curve, point: OperatingPoint) -> RepetitionCost:
    counts, price = np.array([point.concurrency]), curve.job.price_per_hour
    times = curve.times(counts)
    steps = np.maximum(0, times.longest - 1)
    seconds = times.ttft_seconds + np.nan_to_num(times.tpot_seconds) * steps
    longest = int(times.longest.max())
    hours = point.gpu_hours - float(without.sums(counts).seconds[0]) / SECONDS_PER_HOUR
    return RepetitionCost(
        share=curve.job.lengths(longest).shares[-1],
        tokens=longest,
        page_seconds=float(np.average(seconds, weights=curve.counts)),
        gpu_hours=hours,
        cost=None if price is None else price * hours,
    )


def plan_document(
    model: CountedModel,
    setting: Setting,
    requested: TimeRequested,
    planned: PlannedPages,
    goals: Goals,
    opening: CountOpening,
    leave_out: Callable[[str, DeviceError], None] | None = None,
) -> PlanDocument:
    """The plans for all GPUs.

    If one lacks a data type or a kernel, `leave_out` is called with its title and the reason.

    Raises:
        ConfigError: The model can't be served.
        DeviceError: A GPU lacks something, without `leave_out`; with it, all of them.
    """
    plans: dict[str, GpuPlan] = {}
    for profile in requested.profiles:
        try:
            found = _plan_gpu(model, setting, profile, requested.job, planned, goals)
        except DeviceError as error:
            if leave_out is None:
                raise
            leave_out(profile.gpu.title, error)
        else:
            plans[profile.gpu.name] = found
    if not plans:
        raise DeviceError("no GPU of the catalogue supports these types; give others")
    fastest = max((each.point.pages_per_second for each in plans.values() if each.point), default=0)
    several = len(planned.counts) > 1
    said: dict[str, dict[str, None]] = {}
    for profile in requested.profiles:
        if profile.gpu.name not in plans:
            continue
        job = replace(requested.job, workers=plans[profile.gpu.name].workers)
        one = replace(requested, profiles=[profile], job=job)
        for sentence in (
            *([METHOD] if several else []),
            KNEE,
            f"kernel times from {profile.source}",
            *one.sentences_of(model.architecture, [setting.mode]),
        ):
            said.setdefault(sentence, {})[profile.gpu.name] = None
    return PlanDocument(
        **asdict(opening),
        setting=SettingDocument(**model.keys_in(setting)),
        pages=round(float(planned.counts.sum())),
        different_pages=len(planned.counts),
        deadline_hours=goals.deadline_hours,
        first_token_seconds=goals.first_token_seconds,
        runtime=requested.job.runtime,
        host=requested.job.host.name,
        gpus=tuple(sorted(plans.values(), key=_rank)),
        assumptions=tuple(
            sentence if len(names) == len(plans) else f"{', '.join(names)}: {sentence}"
            for sentence, names in said.items()
        ),
        notes=(
            *requested.notes(model.architecture, [setting.mode]),
            *planned.position_notes(model, requested.job),
            *streaming_notes(fastest * planned.mean_tokens(requested.job)),
        ),
    )
