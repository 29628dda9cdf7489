"""Predict a page's seconds and a GPU's throughput under either runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.timing import (
    Interval,
    LoadedGpu,
    TimeAssumptions,
    TimeEntry,
    TimeProfile,
    TimeStage,
    cost_per_thousand_pages,
)
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.timing.kernel_seconds import HOST_ERROR, Duration, total_duration
from dsocr_analyze.timing.page_times import ManyPages, PageTimer, PageTimes, TimedModel
from dsocr_analyze.timing.served_modes import served_notes
from dsocr_analyze.workload import PageWorkload

__all__ = ["TimeRequest", "entry_of", "predict", "times_of"]


@dataclass(frozen=True)
class TimeRequest:
    """Predictions of pages in flight, on every GPU under every runtime."""

    profiles: Sequence[Device]
    jobs: Sequence[Assumptions]
    concurrency: Sequence[int]


def predict(
    model: TimedModel,
    workload: PageWorkload,
    assumptions: Assumptions,
    concurrency: Sequence[int] = (1,),
) -> TimeEntry:
    """Seconds of a page alone, whatever its `batch_size`, and with numbers of pages in flight.

    Raises:
        ConfigError: The model has a part without a closed form, or serving it is not supported.
        DeviceError: The GPU lacks a data type.
        WorkloadError: A concurrency is below 1.
    """
    return entry_of(times_of(model, workload, assumptions, concurrency))


def times_of(
    model: TimedModel,
    workload: PageWorkload,
    assumptions: Assumptions,
    concurrency: Sequence[int] = (1,),
) -> PageTimes:
    """The page alone, then with each number of pages in flight; arguments as in `predict`."""
    for count in concurrency:
        if count < 1:
            raise WorkloadError(
                f"concurrency {count} is too small; give 1 or more", arguments=["concurrency"]
            )
    prepare = assumptions.prepare_seconds(model.architecture, workload)
    pages = ManyPages.alike(replace(workload, batch_size=1), prepare, [1, *concurrency])
    return PageTimer(model, assumptions).times(pages)


def entry_of(times: PageTimes) -> TimeEntry:
    """What `predict` says of `times_of` a page."""
    profile, stages, decode = times.timer.model.device, times.stages, times.decode
    kinds = total_duration(stages.values()).kinds
    *prefill, _ = stages.values()
    first, assumptions = total_duration(prefill), _assumptions(times)
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
    )


def _assumptions(times: PageTimes) -> TimeAssumptions:
    timer, pages = times.timer, times.pages
    assumed, lengths = timer.assumptions, timer.lengths(int(pages.max_new_tokens[0]))
    prepare, device = float(pages.prepare[0]), timer.model.device
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
        correction=timer.correction.found,
        sentences=(
            *assumed.sentences(lengths.sentence, [device], prepare),
            *served_notes(timer.model.architecture, timer.host.name, pages.kinds[0]),
            *timer.correction.sentences(),
        ),
    )


def _step_seconds(times: PageTimes, row: int) -> float | None:
    seconds = float(times.tpot_seconds[row])
    return None if np.isnan(seconds) else seconds


def _stage(duration: Duration) -> TimeStage:
    band = duration.band()
    return TimeStage(
        seconds=float(duration.seconds),
        low=band.low,
        high=band.high,
        bound=duration.bound,
        peak_share=float(duration.least_compute / duration.seconds),
        bandwidth_share=float(duration.least_memory / duration.seconds),
    )


def _throughput(times: PageTimes, assumptions: TimeAssumptions, row: int) -> LoadedGpu:
    work = times.work((np.arange(len(times.pages)) == row).astype(np.int64))
    gpu_seconds, price = float(times.gpu_seconds[row]), assumptions.price_per_hour
    # The bottleneck is what has the least capacity. Where that is the CPU, of which the time was
    # given, the rate is lower only if the GPU's capacity is.
    cpu_bound = assumptions.preprocess_seconds / assumptions.workers > gpu_seconds
    value, error = float(times.prompts_per_second[row]), work.error
    prompts = Interval.within(value, error)
    if cpu_bound and assumptions.preprocess_estimated:
        prompts = Interval.within(value, HOST_ERROR.p90)
    elif cpu_bound:
        prompts = Interval(low=min(value, 1 / (gpu_seconds * (1 + error))), high=value)
    pages = times.pages.kinds[0].prompt_pages
    rate, low, high = pages * value, pages * prompts.low, pages * prompts.high
    cost, band = None, None
    if price is not None:
        cost, most, least = map(partial(cost_per_thousand_pages, price), (rate, low, high))
        band = Interval(low=least, high=most)
    return LoadedGpu(
        concurrency=int(times.pages.concurrency[row]),
        pages_per_second=rate,
        pages_per_second_band=Interval(low=low, high=high),
        tokens_per_second=assumptions.new_tokens_mean * value,
        ttft_seconds=float(times.ttft_seconds[row]),
        tpot_seconds=_step_seconds(times, row),
        page_seconds=float(times.page_seconds[row]),
        memory_bytes=int(times.memory_bytes[row]),
        bound="host" if cpu_bound else work.bound,
        fits=bool(times.fits[row]),
        cost_per_thousand_pages=cost,
        cost_band=band,
    )
