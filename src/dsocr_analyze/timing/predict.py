"""Predict a page's seconds and a GPU's throughput under either runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from dsocr_analyze.architectures.architecture import Architecture, ModelDimensions
from dsocr_analyze.dtypes import FLOAT32, Dtype
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.hardware.devices import check_features
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.timing import (
    Bound,
    Interval,
    LoadedGpu,
    TimeAssumptions,
    TimeEntry,
    TimeProfile,
    TimeStage,
    cost_per_thousand_pages,
)
from dsocr_analyze.timing.assumptions import Assumptions, JobAssumptions
from dsocr_analyze.timing.closed_loop import ServedPages, served_loads
from dsocr_analyze.timing.duration import Duration, mean_step, total_duration
from dsocr_analyze.timing.eager import eager_pass, eager_step
from dsocr_analyze.timing.serving import ServedModel
from dsocr_analyze.workload import PageWorkload

__all__ = [
    "Runtime",
    "TimeRequest",
    "TimedModel",
    "check_model",
    "entry_of",
    "predict",
    "runtime_of",
]


@dataclass(frozen=True)
class TimeRequest:
    """Predictions that are asked for: of pages in flight, on every GPU under every runtime."""

    profiles: Sequence[Device]
    jobs: Sequence[JobAssumptions]
    concurrency: Sequence[int]


@dataclass(frozen=True)
class TimedModel:
    """A model and the device that it runs on.

    `flash_attention` is of the eager runtime's decoder; serving always uses it.
    """

    architecture: Architecture
    dimensions: ModelDimensions
    dtype: Dtype
    flash_attention: bool
    device: Device


def predict(
    model: TimedModel,
    workload: PageWorkload,
    assumptions: Assumptions,
    concurrency: Sequence[int] = (1,),
    *,
    stages: Mapping[str, Sequence[Kernel]] | None = None,
) -> TimeEntry:
    """Seconds of a page, and throughput with numbers of pages in flight, as a report has them.

    The page's `batch_size` and `max_new_tokens` are not used, since concurrency and lengths are
    given. `stages` are kernel records of one page, such as a trace's; by default the closed forms'.

    Raises:
        ConfigError: The model has a part without a closed form, or serving it is not supported.
        DeviceError: The GPU lacks a data type.
        WorkloadError: A concurrency is below 1.
    """
    for count in concurrency:
        if count < 1:
            raise WorkloadError(
                f"concurrency {count} is too small; give 1 or more", arguments=["concurrency"]
            )
    runtime = runtime_of(model, workload, assumptions, stages)
    return entry_of(runtime, concurrency)


def entry_of(runtime: Runtime, concurrency: Sequence[int]) -> TimeEntry:
    """What `predict` says of a runtime."""
    profile = runtime.model.device
    durations, assumptions = runtime.stages, runtime.assumptions
    kinds = total_duration(durations.values()).kinds
    *prefill, _ = durations.values()
    first, decode, steps = total_duration(prefill), runtime.decode, assumptions.steps
    alone = runtime.loaded(1)
    step = alone.step_seconds(steps)
    bands = {
        "ttft_seconds": first.band(alone.first_token),
        "page_seconds": first.plus(decode).band(alone.page),
    }
    if step is not None:
        bands["tpot_seconds"] = decode.times(1 / steps).band(step)
    return TimeEntry(
        gpu=profile.gpu.name,
        runtime=assumptions.runtime,
        profile=TimeProfile(
            source=profile.source,
            extrapolated=tuple(sorted(kind.kind for kind in kinds if kind.extrapolated)),
            assumed=tuple(sorted(kind.kind for kind in kinds if kind.assumed)),
        ),
        stages=dict(zip(durations, map(_stage, durations.values()), strict=True)),
        ttft_seconds=alone.first_token,
        tpot_seconds=step,
        page_seconds=alone.page,
        bands=bands,
        largest_concurrency=runtime.largest_concurrency,
        ridge_flops_per_byte=profile.gpu.ridge_flops_per_byte,
        throughput=tuple(map(partial(_throughput, runtime), concurrency)),
        assumptions=TimeAssumptions(
            host=assumptions.host.name,
            new_tokens_mean=assumptions.lengths.mean,
            new_tokens_longest=assumptions.lengths.longest,
            preprocess_seconds=assumptions.preprocess_seconds,
            preprocess_estimated=assumptions.is_preprocess_estimated,
            workers=assumptions.workers,
            offline=assumptions.is_offline,
            weights_dtype=assumptions.precision.weights,
            kv_dtype=assumptions.precision.cache,
            reserved=assumptions.reserved,
            price_per_hour=assumptions.price_per_hour,
            correction=assumptions.correction.found,
            sentences=tuple(assumptions.sentences()),
        ),
    )


def runtime_of(
    model: TimedModel,
    workload: PageWorkload,
    assumptions: Assumptions,
    stages: Mapping[str, Sequence[Kernel]] | None = None,
) -> Runtime:
    """The runtime that the assumptions name, for one page; arguments and errors as in `predict`."""
    check_model(model, is_eager=assumptions.host.is_eager)
    # The profile may have measured the host's figures.
    assumptions = replace(assumptions, host=assumptions.host.on(model.device))
    one = replace(workload, batch_size=1)
    if assumptions.host.is_eager:
        return _Eager(model, one, assumptions, stages)
    return _Serving(model, one, assumptions)


def check_model(model: TimedModel, *, is_eager: bool) -> None:
    """Checks that there are kernel times for the model's type and that the GPU supports it.

    Serving engines have their own attention kernels.

    Raises:
        DeviceError: The type is float32, the GPU does not support it or FlashAttention-2, or a CPU
            is asked to serve.
    """
    if model.device.cpu is not None:
        if not is_eager:
            raise DeviceError(
                "serving engines are not predicted on a CPU; use runtime eager",
                arguments=["runtime"],
            )
        if model.flash_attention:
            raise DeviceError(
                "a CPU has no FlashAttention-2; use flash_attention=False",
                arguments=["flash_attention"],
            )
        return
    if model.dtype == FLOAT32:
        raise DeviceError(
            "dtype float32: attention was measured in 16 bits only; use bfloat16 or float16",
            arguments=["dtype"],
        )
    check_features(
        model.device.gpu, model.dtype, flash_attention=is_eager and model.flash_attention
    )


class Runtime(ABC):
    """What a runtime predicts for one page and for many.

    Attributes:
        assumptions: With the host figures of the GPU's profile.
        stages: A page's stages, the decode step last.
        decode: All decode steps of a page alone.
    """

    stages: dict[str, Duration]
    decode: Duration

    def __init__(self, model: TimedModel, workload: PageWorkload, assumptions: Assumptions) -> None:
        self.model, self.workload, self.assumptions = model, workload, assumptions
        # Of each vision call for all pages of a prompt.
        self.views = workload.prompt_pages * workload.views

    @cached_property
    @abstractmethod
    def largest_concurrency(self) -> int:
        """Most concurrent pages that fit into memory."""

    @abstractmethod
    def memory_bytes(self, concurrency: int) -> int:
        """Bytes that this many concurrent pages need."""

    @abstractmethod
    def loaded(self, concurrency: int) -> _Load:
        """The steady state with this many concurrent pages."""


class _Load(NamedTuple):
    """A GPU in steady state; seconds are per page."""

    pages_per_second: float
    first_token: float
    page: float
    work: Duration
    """GPU time of one page."""
    gpu_seconds: float
    """Least seconds of the GPU per page at this concurrency: one over its capacity."""

    def step_seconds(self, steps: float) -> float | None:
        """Seconds per token after the first, over a page's mean decode steps; None without any."""
        return (self.page - self.first_token) / steps if steps else None


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


def _throughput(runtime: Runtime, concurrency: int) -> LoadedGpu:
    """Throughput with `concurrency` prompts in flight."""
    assumptions, price = runtime.assumptions, runtime.assumptions.price_per_hour
    load = runtime.loaded(concurrency)
    # The bottleneck is what has the least capacity. The CPU's time is given, so where it is the
    # CPU, the rate is lower only if the GPU's capacity is.
    cpu_bound = assumptions.preprocess_seconds / assumptions.workers > load.gpu_seconds
    bound: Bound = "host" if cpu_bound else load.work.bound
    value, error = load.pages_per_second, load.work.error
    prompts = Interval.within(value, error)
    if cpu_bound:
        prompts = Interval(low=min(value, 1 / (load.gpu_seconds * (1 + error))), high=value)
    pages = runtime.workload.prompt_pages
    rate, low, high = pages * value, pages * prompts.low, pages * prompts.high
    cost, band = None, None
    if price is not None:
        cost, most, least = map(partial(cost_per_thousand_pages, price), (rate, low, high))
        band = Interval(low=least, high=most)
    return LoadedGpu(
        concurrency=concurrency,
        pages_per_second=rate,
        pages_per_second_band=Interval(low=low, high=high),
        tokens_per_second=assumptions.lengths.mean * value,
        ttft_seconds=load.first_token,
        tpot_seconds=load.step_seconds(assumptions.steps),
        page_seconds=load.page,
        memory_bytes=runtime.memory_bytes(concurrency),
        bound=bound,
        fits=concurrency <= runtime.largest_concurrency,
        cost_per_thousand_pages=cost,
        cost_band=band,
    )


# --- serving ---------------------------------------------------------------------------------


class _Serving(Runtime):
    """Continuous batching: pages join and leave the batch one by one."""

    def __init__(self, model: TimedModel, workload: PageWorkload, assumptions: Assumptions) -> None:
        super().__init__(model, workload, assumptions)
        self.served = ServedModel(
            model.architecture, model.dimensions, model.dtype, model.device, assumptions.host,
            assumptions.precision,
        )  # fmt: skip
        T = workload.seq_len
        self.prefill = self.served.prefill(self.views, T, workload.visual_tokens)
        correction = assumptions.correction
        self.keys = self.served.keys(T, assumptions.lengths.running)
        decode = self.served.step(1, self.keys).times(assumptions.steps)
        self.decode = correction.decode(decode)
        corrected = map(correction.prefill, self.prefill.values())
        self.stages = dict(zip(self.prefill, corrected, strict=True))
        step = self.served.step(1, T + 1)
        self.stages[model.architecture.stages[-1].name] = correction.decode(step)
        self.fixed_bytes: int = self.served.fixed_bytes(workload)
        self.page_bytes: int = self.served.page_bytes(T, assumptions.lengths.longest)

    @cached_property
    def largest_concurrency(self) -> int:
        """Most pages whose caches fit next to the weights and a prefill pass."""
        reserved = self.assumptions.reserved
        return int(self.served.fitting(self.fixed_bytes, self.page_bytes, reserved))

    def memory_bytes(self, concurrency: int) -> int:
        """Bytes of weights, one prefill pass and all pages' caches at full length."""
        return self.fixed_bytes + concurrency * self.page_bytes

    def loaded(self, concurrency: int) -> _Load:
        """Closed loop of this many clients; those that do not fit into memory queue."""
        assumptions, correction = self.assumptions, self.assumptions.correction
        first = total_duration(self.prefill.values())
        pages = ServedPages(*map(np.atleast_1d, (
            self.workload.seq_len, first.seconds, self.keys, assumptions.steps,
            assumptions.preprocess_seconds, concurrency, self.largest_concurrency,
        )))  # fmt: skip
        loads = served_loads(
            self.served, pages, workers=assumptions.workers, is_offline=assumptions.is_offline,
            correction=correction,
        )  # fmt: skip
        rate, first_token, page, together, gpu_seconds = map(np.ndarray.item, loads)
        steps = self.served.step(together, self.keys).times(assumptions.steps / together)
        work = correction.prefill(first).plus(correction.decode(steps))
        return _Load(rate, first_token, page, work, gpu_seconds)


# --- eager -----------------------------------------------------------------------------------


class _Eager(Runtime):
    """The model's own code: a full batch runs until its longest page has ended."""

    def __init__(
        self,
        model: TimedModel,
        workload: PageWorkload,
        assumptions: Assumptions,
        stages: Mapping[str, Sequence[Kernel]] | None,
    ) -> None:
        super().__init__(model, workload, assumptions)
        self.stages = self._stages(stages or self._records(1), 1)
        self.decode = self._decode(1)

    def _records(self, batch: int) -> Mapping[str, Sequence[Kernel]]:
        model = self.model
        composed = model.architecture.forms.compose(
            model.dimensions, replace(self.workload, batch_size=batch), model.dtype,
            model.flash_attention,
        )  # fmt: skip
        return {name: stage.kernels for name, stage in composed.stages.items()}

    def _stages(self, records: Mapping[str, Sequence[Kernel]], batch: int) -> dict[str, Duration]:
        *prefill, decode = records
        host = self.assumptions.host
        durations = eager_pass({name: records[name] for name in prefill}, self.model.device, host)
        if self.model.device.cpu is None:
            copied = Duration(host=batch * host.copy_seconds(self.views))
            durations[prefill[0]] = durations[prefill[0]].plus(copied)
        durations[decode] = eager_step(records[decode], self.model.device, host, batch)
        return durations

    def _decode(self, batch: int) -> Duration:
        """All decode steps of a batch."""
        steps = self.assumptions.lengths.expected_longest(batch) - 1
        if not steps:
            return Duration()
        model, first = self.model, self.workload.seq_len

        def step(cached: int, *, overwrites: bool = False) -> Duration:
            kernels = model.architecture.forms.step_kernels(
                model.dimensions, batch, cached, model.dtype, model.flash_attention, overwrites,
            )  # fmt: skip
            return eager_step(kernels, model.device, self.assumptions.host, batch)

        window = model.dimensions.decoder.sliding_window
        growing = steps if window is None else min(steps, window)
        duration = mean_step(step, first, first + max(0, round(growing) - 1)).times(growing)
        if window is not None and steps > window:
            duration = duration.plus(
                step(first + window - 1, overwrites=True).times(steps - window)
            )
        return duration

    @cached_property
    def largest_concurrency(self) -> int:
        """Largest batch that fits into memory."""
        from dsocr_analyze.hardware.fit import fit

        model = self.model
        longest = replace(self.workload, max_new_tokens=self.assumptions.lengths.longest)
        return fit(
            model.device.gpu, model.architecture, model.dimensions, longest, dtype=model.dtype,
            flash_attention=model.flash_attention, reserved=self.assumptions.reserved,
        ).largest_batch  # fmt: skip

    def memory_bytes(self, concurrency: int) -> int:
        """Peak bytes of a batch: the larger of its prefill and decode peaks."""
        from dsocr_analyze.hardware.fit import memory_need

        model = self.model
        batch = replace(
            self.workload,
            batch_size=concurrency,
            max_new_tokens=self.assumptions.lengths.longest,
        )
        return memory_need(
            model.architecture, model.dimensions, batch, dtype=model.dtype,
            flash_attention=model.flash_attention,
        ).total_bytes  # fmt: skip

    def loaded(self, concurrency: int) -> _Load:
        """Batches run one after the other, each prepared by the CPU before it runs."""
        batch = max(1, min(concurrency, self.largest_concurrency))
        stages = self.stages if batch == 1 else self._stages(self._records(batch), batch)
        *prefill, _ = stages.values()
        first = total_duration(prefill)
        decode = self.decode if batch == 1 else self._decode(batch)
        work = first.plus(decode).times(1 / batch)
        prepared = self.assumptions.preprocess_seconds
        rounds = -(-batch // self.assumptions.workers)
        gpu = float(work.seconds) * batch
        # A closed batch: its pages are prepared, run and return together.
        seconds = rounds * prepared + gpu
        rate = batch / seconds
        page = concurrency / rate
        return _Load(rate, page - float(decode.seconds), page, work, float(work.seconds))
