"""Predict a page's seconds and a GPU's throughput under either runtime.

How many pages at once: the knee, the most within a latency, and the most that fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, TypeAlias

import numpy as np
from msgspec.structs import replace as with_changes
from numpy.typing import NDArray

from dsocr_analyze.errors import ConfigError, DeviceError, WorkloadError
from dsocr_analyze.hardware.machine import Floats
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.timing import (
    MOST_CONCURRENCY,
    Interval,
    LoadBound,
    LoadedGpu,
    TimeAssumptions,
    TimeEntry,
    TimeProfile,
    TimeStage,
    cost_per_thousand_pages,
)
from dsocr_analyze.timing.assumptions import Assumptions, workers_needed
from dsocr_analyze.timing.kernel_seconds import HOST_ERROR, Duration, notes_on_lent, total_duration
from dsocr_analyze.timing.page_times import ManyPages, PageTimer, PageTimes
from dsocr_analyze.timing.runtimes import SERVERS, served_notes, streaming_notes
from dsocr_analyze.timing.serving import Integers, TimedModel, running_counts
from dsocr_analyze.workload import PageWorkload, position_warnings

# --- how many pages at once ------------------------------------------------------------------


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


def _resolved(
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


@dataclass(frozen=True)
class TimeRequest:
    """Predictions of pages in flight, on every GPU under every runtime."""

    profiles: Sequence[Device]
    jobs: Sequence[Assumptions]
    concurrency: Sequence[Concurrency]


def predict(
    model: TimedModel,
    workload: PageWorkload,
    assumptions: Assumptions,
    concurrency: Sequence[Concurrency] = (1,),
) -> TimeEntry:
    """Seconds of a page alone, whatever its `batch_size`, and with numbers of pages in flight.

    Raises:
        ConfigError: The model has a part without a closed form, or serving it is not supported.
        DeviceError: The GPU lacks a data type.
        WorkloadError: A concurrency is below 1.
    """
    entry = entry_of(times_of(model, workload, assumptions, concurrency))
    if not assumptions.host.is_eager or model.architecture.forms.served is None:
        return entry
    served = replace(assumptions, host=SERVERS["vllm"])
    try:
        [page_seconds, *_] = times_of(model, workload, served).page_seconds.tolist()
    except (ConfigError, DeviceError):
        return entry
    return with_changes(entry, served_page_seconds=page_seconds)


def times_of(
    model: TimedModel,
    workload: PageWorkload,
    assumptions: Assumptions,
    concurrency: Sequence[Concurrency] = (1,),
) -> PageTimes:
    """The page alone, then with each number of pages in flight; arguments as in `predict`."""
    for count in concurrency:
        if not isinstance(count, str) and count < 1:
            raise WorkloadError(
                f"concurrency {count} is too small; give 1 or more", arguments=["concurrency"]
            )
    prepare = assumptions.prepare_seconds(model.architecture, workload)
    page, timer = replace(workload, batch_size=1), PageTimer(model, assumptions)

    def times(counts: Sequence[int]) -> PageTimes:
        return timer.times(ManyPages.alike(page, prepare, counts))

    if assumptions.plans_workers:
        _, [least] = timer.capacity(ManyPages.alike(page, prepare, [MOST_CONCURRENCY]))
        timer = timer.assuming(replace(assumptions, workers=workers_needed(prepare, least)))
    return times([1, *_resolved(concurrency, times)])


def entry_of(times: PageTimes) -> TimeEntry:
    """What `predict` says of `times_of` a page."""
    profile, (stages, decode) = times.timer.model.device, times.alone
    kinds = total_duration(stages.values()).kinds
    *prefill, _ = stages.values()
    first, assumptions = total_duration(prefill), _assumptions(times)
    busy_seconds = float(sum([*first.kinds.values(), *decode.kinds.values()]))
    if assumptions.preprocess_estimated:  # a given figure is taken as exact
        prepare = Duration(host=assumptions.preprocess_seconds)
        first = first.plus(times.timer.correction.corrected(prepare, "first_token"))
    ttft, page = float(times.ttft_seconds[0]), float(times.page_seconds[0])
    bands = {"ttft_seconds": first.band(ttft), "page_seconds": first.plus(decode).band(page)}
    step, steps = _step_seconds(times, 0), assumptions.new_tokens_mean - 1
    if step is not None:
        bands["tpot_seconds"] = decode.times(1 / steps).band(step)
    return TimeEntry(
        gpu=profile.gpu.name,
        runtime=times.timer.assumptions.runtime,
        profile=TimeProfile(
            source=profile.source,
            extrapolated=tuple(sorted(kind.kind for kind in kinds if kind.extrapolated)),
            assumed=tuple(sorted(kind.kind for kind in kinds if kind.assumed)),
        ),
        stages=dict(zip(stages, map(_stage, stages.values()), strict=True)),
        ttft_seconds=ttft,
        tpot_seconds=step,
        page_seconds=page,
        bands=bands,
        largest_concurrency=int(times.fitting[0]),
        ridge_flops_per_byte=profile.gpu.ridge_flops_per_byte,
        throughput=tuple(map(partial(_throughput, times, assumptions), range(1, len(times.pages)))),
        assumptions=assumptions,
        busy_share=busy_seconds / page,
        kv_tokens=None if times.kv_tokens is None else int(times.kv_tokens[0]),
    )


def _assumptions(times: PageTimes) -> TimeAssumptions:
    timer, pages = times.timer, times.pages
    assumed, lengths = timer.assumptions, timer.lengths(int(pages.max_new_tokens[0]))
    c, longest = timer.model.dimensions, replace(pages.workload(0), max_new_tokens=lengths.longest)
    notes = (
        *served_notes(timer.model.architecture, timer.host.name, pages.kinds[0]),
        *(() if c is None else position_warnings(longest, c.decoder.max_position_embeddings)),
        *notes_on_lent(timer.model.device.gpu, total_duration(times.alone.stages.values()).kinds),
        *(() if timer.host.is_eager else streaming_notes(float(times.tokens_per_second.max()))),
        *timer.correction.sentences(),
    )
    limits = assumed.limits
    if limits and times.kv_tokens is not None:
        limits = f"{limits}; {timer.host.names[-1]} {times.kv_tokens[0]:,} tokens"
    prepare, device = float(pages.prepare[0]), timer.model.device
    per_prompt = pages.kinds[0].prompt_pages
    generated = lengths.sentence if per_prompt == 1 else lengths.sentence.replace("page", "prompt")
    return TimeAssumptions(
        host=timer.host.name,
        new_tokens_mean=lengths.mean,
        new_tokens_longest=lengths.longest,
        preprocess_seconds=prepare,
        preprocess_estimated=assumed.preprocess_seconds is None,
        workers=assumed.workers,
        offline=assumed.is_offline,
        weights_dtype=assumed.precision.weights,
        kv_dtype=assumed.precision.cache,
        reserved=assumed.reserved,
        price_per_hour=assumed.price_per_hour,
        limits=limits,
        correction=timer.correction.found,
        notes=notes,
        sentences=(
            *assumed.sentences(
                generated, [device], prepare / per_prompt,
                has_sam=timer.model.architecture.stages[0].name == "sam",
                has_experts=c is None or c.decoder.n_routed_experts is not None,
            ),
            *(() if timer.host.is_eager else timer.model.architecture.forms.served.notes),
            *notes,
        ),
    )  # fmt: skip


def _step_seconds(times: PageTimes, row: int) -> float | None:
    return None if np.isnan(seconds := float(times.tpot_seconds[row])) else seconds


def _stage(duration: Duration) -> TimeStage:
    band, seconds = duration.band(), float(duration.seconds)
    return TimeStage(
        seconds=seconds,
        low=band.low,
        high=band.high,
        bound=duration.bound,
        peak_share=float(duration.least_compute) / (seconds or 1.0),  # of a stage that did nothing
        bandwidth_share=float(duration.least_memory) / (seconds or 1.0),
    )


def bottleneck(
    seconds: float, cpu_seconds: float, gpu_seconds: float, work: Duration, job: Assumptions
) -> tuple[LoadBound, Interval]:
    """What bounds the rate of pages that take so long each, and the band of these seconds.

    It is what has the least capacity: the CPU's is a worker's seconds of a page, the GPU's is as
    uncertain as the work. If the CPU's time was given, only a slower GPU makes them longer.
    """
    if cpu_seconds / job.workers <= gpu_seconds:
        return work.bound, Interval.within(seconds, work.error)
    if job.preprocess_seconds is None:
        return "workers", Interval.within(seconds, HOST_ERROR.p90)
    return "workers", Interval(low=seconds, high=max(seconds, gpu_seconds * (1 + work.error)))


def _throughput(times: PageTimes, assumptions: TimeAssumptions, row: int) -> LoadedGpu:
    work = times.work((np.arange(len(times.pages)) == row).astype(np.int64))
    seconds, pages = 1 / float(times.prompts_per_second[row]), times.pages.kinds[0].prompt_pages
    bound, band = bottleneck(
        seconds, assumptions.preprocess_seconds, float(times.gpu_seconds[row]), work,
        times.timer.assumptions,
    )  # fmt: skip
    rate, low, high = pages / seconds, pages / band.high, pages / band.low
    price = assumptions.price_per_hour
    return LoadedGpu(
        concurrency=int(times.pages.concurrency[row]),
        pages_per_second=rate,
        pages_per_second_band=Interval(low=low, high=high),
        tokens_per_second=assumptions.new_tokens_mean / seconds,
        ttft_seconds=float(times.ttft_seconds[row]),
        tpot_seconds=_step_seconds(times, row),
        page_seconds=float(times.page_seconds[row]),
        memory_bytes=int(times.memory_bytes[row]),
        bound=bound,
        fits=bool(times.fits[row]),
        cost_per_thousand_pages=None if price is None else cost_per_thousand_pages(price, rate),
        cost_band=None
        if price is None
        else Interval(
            low=cost_per_thousand_pages(price, high), high=cost_per_thousand_pages(price, low)
        ),
    )
