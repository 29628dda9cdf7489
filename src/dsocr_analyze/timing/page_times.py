"""Seconds of pages on a GPU under a runtime, as columns; one page is a column of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from operator import attrgetter
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.errors import DeviceError, refuse
from dsocr_analyze.hardware.devices import check_features
from dsocr_analyze.hardware.machine import Floats
from dsocr_analyze.kernels import FLOAT32
from dsocr_analyze.tape import Size
from dsocr_analyze.timing import MOST_CONCURRENCY
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.timing.eager import eager_pass, eager_step
from dsocr_analyze.timing.kernel_seconds import (
    Duration,
    Figure,
    mean_step,
    total_duration,
)
from dsocr_analyze.timing.serving import (
    Integers,
    LoopPoint,
    LoopTimes,
    ServedModel,
    TimedModel,
    closed_loop,
    least_gpu_seconds,
    running_counts,
)
from dsocr_analyze.workload import PageWorkload


@dataclass(frozen=True)
class ManyPages:
    """n prompts of one mode, arrays `[n]`; a prompt is a page, or several alike.

    Attributes:
        kinds: One page per crop grid, whose token counts and size are not used.
        kind: Index into `kinds`.
        text_tokens: Prompt tokens that are not visual.
        prepare: CPU seconds before the model runs.
        concurrency: Pages in flight.
    """

    kinds: Sequence[PageWorkload]
    kind: Integers
    text_tokens: Integers
    max_new_tokens: Integers
    prepare: Floats
    concurrency: Integers

    @classmethod
    def alike(cls, page: PageWorkload, prepare: float, concurrency: Sequence[int]) -> Self:
        """The same page with several numbers of pages in flight."""
        n = len(concurrency)
        kind, text, new = np.tile([[0], [page.text_tokens], [page.max_new_tokens]], n)
        return cls([page], kind, text, new, np.full(n, prepare), np.array(concurrency))

    def at_once(self, counts: Integers) -> Self:
        """These pages, at each of m numbers of pages in flight in turn: `[m * n]`."""
        m = len(counts)
        return replace(
            self, kind=np.tile(self.kind, m), text_tokens=np.tile(self.text_tokens, m),
            max_new_tokens=np.tile(self.max_new_tokens, m), prepare=np.tile(self.prepare, m),
            concurrency=np.repeat(counts, len(self)),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def prompt_tokens(self) -> Integers:
        """Tokens of each prompt."""
        visual: Integers = np.array([each.visual_tokens for each in self.kinds])
        return np.asarray(visual[self.kind] + self.text_tokens)

    def workload(self, row: int) -> PageWorkload:
        """The workload of one page."""
        return replace(
            self.kinds[int(self.kind[row])],
            text_tokens=int(self.text_tokens[row]),
            max_new_tokens=int(self.max_new_tokens[row]),
            batch_size=1,
        )


class PageTimer:
    """Times pages on a GPU.

    Raises:
        ConfigError: Serving this model is not supported.
        DeviceError: There are no kernel times for its data type, or the GPU lacks something.
    """

    def __init__(self, model: TimedModel, assumptions: Assumptions) -> None:
        _check_model(model, assumptions)
        self.model, self.assumptions = model, assumptions.on(model.device.gpu.name)
        self.host = assumptions.host.on(model.device)
        self.correction = assumptions.corrections.of(
            model.device, assumptions.host, model.architecture.name
        )
        self.lengths = cache(assumptions.lengths)
        self._served = (
            None if self.host.is_eager else ServedModel(model, self.host, assumptions.precision)
        )

    def assuming(self, assumptions: Assumptions) -> Self:
        """The same with other CPU workers or lengths; kernels are not priced again."""
        timer = copy(self)
        timer.assumptions = assumptions.on(self.model.device.gpu.name)
        timer.lengths = cache(assumptions.lengths)
        return timer

    def times(self, pages: ManyPages) -> PageTimes:
        """Times of the pages.

        Raises:
            ConfigError: The model has a part without a closed form.
            DeviceError: The GPU lacks a data type.
            WorkloadError: Output lengths do not go with a number of new tokens.
        """
        if self._served is None:
            return _EagerTimes(self, pages)
        times = _ServedTimes(self, pages, self._served)
        times.solve()
        return times

    def capacity(self, pages: ManyPages) -> tuple[Integers, Floats]:
        """`fitting` and `gpu_seconds` of their `times`, sooner; raises what that does."""
        if self._served is None:
            times = self.times(pages)
            return times.fitting, times.gpu_seconds
        unsolved = _ServedTimes(self, pages, self._served)
        return unsolved.fitting, unsolved.least_gpu_seconds()


def _check_model(model: TimedModel, assumptions: Assumptions) -> None:
    device, (weights, cache) = model.device, assumptions.precision
    is_cpu, is_eager = device.cpu is not None, assumptions.host.is_eager
    if weights is not None or not is_cpu:
        device.fitted("gemm", device.gpu.tensor_dtype, weights_dtype=weights)
    if cache is not None:
        device.fitted("generation_attention", device.gpu.tensor_dtype, kv_dtype=cache)
    refuse(
        DeviceError,
        (is_cpu and not is_eager,
         "serving engines are not predicted on a CPU; use runtime='eager'"),
        (is_cpu and model.flash_attention,
         "a CPU has no FlashAttention-2; use flash_attention=False"),
        (not is_cpu and model.dtype == FLOAT32,
         "dtype float32: attention was measured in 16 bits only; use bfloat16 or float16"),
        arguments=["runtime", "flash_attention", "dtype"],
    )  # fmt: skip
    if not is_cpu:
        # Serving engines have attention kernels of their own.
        flash_attention = is_eager and model.flash_attention
        check_features(device.gpu, model.dtype, flash_attention=flash_attention)


_LENGTHS = attrgetter("mean", "running", "longest")


class PageAlone(NamedTuple):
    """What a page's seconds are made of.

    Attributes:
        stages: By name; the last is one decode step.
        decode: All decode steps.
    """

    stages: Mapping[str, Duration]
    decode: Duration


class PageTimes(ABC):
    """Times of n pages, arrays `[n]`; seconds are per prompt, at its concurrency.

    Attributes:
        mean: Mean tokens generated; `running` and `longest` are those of `OutputLengths`.
        steps: Mean decode steps: one fewer.
        prompts_per_second: The GPU's throughput if all pages were like this one.
        gpu_seconds: One over the GPU's capacity at this concurrency.
        fitting: Most pages in flight that fit into memory, and that a serving engine runs.
        kv_tokens: Tokens that fit into a serving engine's cache; None under eager.
    """

    ttft_seconds: Floats
    page_seconds: Floats
    prompts_per_second: Floats
    gpu_seconds: Floats
    fitting: Integers
    kv_tokens: Integers | None = None

    def __init__(self, timer: PageTimer, pages: ManyPages) -> None:
        self.timer, self.pages = timer, pages
        distinct, place = np.unique(pages.max_new_tokens, return_inverse=True)
        lengths = map(_LENGTHS, map(timer.lengths, distinct.tolist()))
        figures = np.array([*lengths]).T[:, place]
        self.mean: Floats = figures[0]
        self.steps: Floats = figures[0] - 1
        self.running, self.longest = figures[1:].astype(np.int64)

    @property
    def tpot_seconds(self) -> Floats:
        """Seconds per token after the first; NaN if a page has one token."""
        return np.asarray(np.divide(
            self.page_seconds - self.ttft_seconds, self.steps,
            out=np.full(len(self.steps), np.nan), where=self.steps > 0,
        ))  # fmt: skip

    @property
    def pages_per_second(self) -> Floats:
        """The GPU's throughput if all pages were like this one."""
        pages: Integers = np.array([each.prompt_pages for each in self.pages.kinds])
        return np.asarray(pages[self.pages.kind] * self.prompts_per_second)

    @property
    def tokens_per_second(self) -> Floats:
        """Likewise."""
        return self.mean * self.prompts_per_second

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether the memory suffices."""
        return self.pages.concurrency <= self.fitting

    @property
    @abstractmethod
    def memory_bytes(self) -> Integers:
        """Bytes that so many pages in flight need."""

    @abstractmethod
    def work(self, weights: Integers | Floats) -> Duration:
        """GPU time of all pages together; weights say how often each counts, `[n]`."""

    @property
    @abstractmethod
    def alone(self) -> PageAlone:
        """The first of pages that are alike, alone on the GPU."""


# --- serving ---------------------------------------------------------------------------------

_LOOPS: Final = 2048
"""Pages whose loops are solved at once: some 60 steps are priced for each number of keys."""


class _ServedTimes(PageTimes):
    """Continuous batching: pages join and leave one by one.

    Seconds and rates are known once loops are solved.
    """

    def __init__(self, timer: PageTimer, pages: ManyPages, served: ServedModel) -> None:
        super().__init__(timer, pages)
        self._served, self._prefill = served, np.zeros(len(pages))
        self._prompt, sizes = pages.prompt_tokens, np.zeros((3, len(pages)), np.int64)
        self._fixed_bytes, self.kv_tokens, self.fitting = sizes
        self._passes: list[tuple[Integers, Integers, Mapping[str, Duration]]] = []
        for number in np.flatnonzero(np.bincount(pages.kind)).tolist():
            kind, rows = pages.kinds[number], np.flatnonzero(pages.kind == number)
            distinct, place = np.unique(pages.text_tokens[rows], return_inverse=True)
            is_single = len(pages.kinds) == len(distinct) == 1
            stages, fixed = served.prompts(kind, distinct, is_single=is_single)
            seconds = total_duration(stages.values()).seconds
            self._prefill[rows] = np.broadcast_to(seconds, len(distinct))[place]
            self._fixed_bytes[rows] = np.broadcast_to(fixed, len(distinct))[place]
            self.kv_tokens[rows], self.fitting[rows] = served.capacity(
                kind, self._fixed_bytes[rows], self._prompt[rows], self.longest[rows],
                timer.assumptions.reserved,
            )  # fmt: skip
            self._passes.append((rows, place, stages))
        self._page_bytes: Size = served.page_bytes(self._prompt, self.longest)
        self._keys = served.keys(self._prompt, self.running)

    def _loops(self) -> Iterator[tuple[Integers, Integers, LoopTimes]]:
        """Rows of pages, their clients, of which those that do not fit queue, and loops."""
        pages, assumed = self.pages, self.timer.assumptions
        clients = np.maximum(1, np.minimum(pages.concurrency, self.fitting)).astype(np.int64)
        chunks = self._served.chunks(self._prompt) * self._served.server.mixes_prefill
        order, parts = np.argsort(self._keys, kind="stable"), 1 + len(pages) // _LOOPS
        for rows in np.array_split(order, parts):
            keys, table = np.unique(self._keys[rows], return_inverse=True)
            sequences = running_counts(int(clients[rows].max(initial=1)))
            yield rows, clients[rows], LoopTimes(
                0.0 if assumed.is_offline else pages.prepare[rows], assumed.workers,
                self._prefill[rows], chunks[rows], self.steps[rows], sequences,
                *self._served.steps(keys, sequences), table,
            )  # fmt: skip

    def least_gpu_seconds(self) -> Floats:
        """`gpu_seconds`, which do not depend on the loops' solution."""
        found = np.zeros(len(self.pages))
        for rows, clients, times in self._loops():
            found[rows] = least_gpu_seconds(clients[:, None], times.as_columns())[:, 0]
        return self._corrected(found)

    def _corrected(self, gpu_seconds: Floats) -> Floats:
        if (found := self.timer.correction.found) is None:
            return gpu_seconds
        decoding = gpu_seconds - self._prefill
        return found.first_token * self._prefill + found.per_token * decoding

    def solve(self) -> None:
        """Finds the steady state of every page's clients."""
        pages, assumed, correction = self.pages, self.timer.assumptions, self.timer.correction
        point = LoopPoint(*np.zeros((5, len(pages))))
        for rows, clients, times in self._loops():
            for column, values in zip(point, closed_loop(clients, times), strict=True):
                column[rows] = values
        rate = point.pages_per_second
        page = pages.concurrency / rate
        first_token = point.first_token + (page - point.page)
        if correction.found is not None:
            first, per_token = correction.found.first_token, correction.found.per_token
            decode = per_token * (page - first_token)
            # Little's law gives the throughput, since each client sends its pages one after the
            # other. The CPU needs at least its seconds per page.
            prepare = 0.0 if assumed.is_offline else pages.prepare / assumed.workers
            page = np.maximum(first * first_token + decode, pages.concurrency * prepare)
            first_token, rate = page - decode, pages.concurrency / page
        if assumed.is_offline:
            first_token, page = first_token + pages.prepare, page + pages.prepare
            rate = 1 / (1 / rate + pages.prepare / assumed.workers)
        self.prompts_per_second, self.ttft_seconds, self.page_seconds = rate, first_token, page
        self.gpu_seconds = self._corrected(point.gpu_seconds)
        self._together = np.maximum(1, np.rint(point.running)).astype(np.int64)

    @property
    def memory_bytes(self) -> Integers:
        """Bytes of weights, one prefill pass and all caches at full length."""
        most = self._served.server.most_sequences or MOST_CONCURRENCY
        running = np.minimum(self.pages.concurrency, most)
        return np.asarray(self._fixed_bytes + running * self._page_bytes)

    def work(self, weights: Integers | Floats) -> Duration:
        correction = self.timer.correction
        first = total_duration(
            _weighted(total_duration(stages.values()), place, weights[of_kind])
            for of_kind, place, stages in self._passes
        )
        by_step, place = self._decoding
        steps = np.bincount(place, weights * self.steps / self._together)
        decode = _weighted(by_step, np.arange(len(steps)), steps)
        return correction.corrected(first, "first_token").plus(
            correction.corrected(decode, "per_token")
        )

    @cached_property
    def _decoding(self) -> tuple[Duration, Integers]:
        """Steps that differ in sequences or keys, and the one of every page."""
        width = int(self._keys.max(initial=0)) + 1
        pairs, place = np.unique(self._together * width + self._keys, return_inverse=True)
        return self._served.step(*np.divmod(pairs, width)), place

    @cached_property
    def alone(self) -> PageAlone:
        correction, [(_, _, prefill)] = self.timer.correction, self._passes
        stages = {
            name: correction.corrected(
                _weighted(each, np.zeros(1, np.int64), np.ones(1)), "first_token"
            )
            for name, each in prefill.items()
        }
        first, mean = (self._served.step(1, int(at[0])) for at in (self._prompt + 1, self._keys))
        last = self.timer.model.architecture.stages[-1].name
        return PageAlone(
            {**stages, last: correction.corrected(first, "per_token")},
            correction.corrected(mean.times(float(self.steps[0])), "per_token"),
        )


def _weighted(duration: Duration, place: Integers, weights: Integers | Floats) -> Duration:
    def summed(values: Figure) -> float:
        values = np.atleast_1d(values)
        chosen = values[place] if len(values) > 1 else values[0]
        return float(np.sum(chosen * weights))

    return duration.mapped(summed)


# --- eager -----------------------------------------------------------------------------------


class _EagerTimes(PageTimes):
    """The model's own code: a full batch runs until its longest page has ended.

    Pages share no arrays: the order of launches depends on sizes.
    """

    def __init__(self, timer: PageTimer, pages: ManyPages) -> None:
        super().__init__(timer, pages)
        self._workloads = [*map(pages.workload, range(len(pages)))]
        largest, batch = cache(partial(_largest_batch, timer)), cache(partial(_eager_batch, timer))
        self.fitting = np.array([*map(largest, self._workloads)])
        together = np.maximum(1, np.minimum(pages.concurrency, self.fitting))
        self._batches = [*map(batch, self._workloads, together.tolist())]
        decode = np.array([float(each.decode.seconds) for each, _ in self._batches])
        self.gpu_seconds = np.array([float(work.seconds) for _, work in self._batches])
        # A closed batch: its pages are prepared, run and return together.
        rounds = -(-together // timer.assumptions.workers)
        seconds = rounds * pages.prepare + self.gpu_seconds * together
        self.prompts_per_second = together / seconds
        self.page_seconds = pages.concurrency / self.prompts_per_second
        self.ttft_seconds = self.page_seconds - decode

    @cached_property
    def memory_bytes(self) -> Integers:
        """Peak bytes of a batch: the larger of its prefill and decode peaks."""
        needed = cache(partial(_memory_bytes, self.timer))
        return np.array([*map(needed, self._workloads, self.pages.concurrency.tolist())])

    def work(self, weights: Integers | Floats) -> Duration:
        batches = zip(self._batches, weights.tolist(), strict=True)
        return total_duration(work.times(weight) for (_, work), weight in batches if weight)

    @property
    def alone(self) -> PageAlone:
        return self._batches[0][0]


def _eager_batch(timer: PageTimer, page: PageWorkload, size: int) -> tuple[PageAlone, Duration]:
    """A batch as if it were one page, and a page's share of the GPU's time."""
    model, host = timer.model, timer.host
    composed = model.architecture.forms.compose(
        model.dimensions, replace(page, batch_size=size), model.dtype, model.flash_attention
    )
    records = {name: stage.kernels for name, stage in composed.stages.items()}
    last, step = records.popitem()
    prefill = eager_pass(records, model.device, host)
    if model.device.cpu is None:
        copied = (
            size * host.received_seconds(page.prompt_pages * page.views)
            if page.visual_tokens  # a model that reads no pages receives all of its inputs
            else composed.memory.inputs_bytes / (1e9 * host.link_gb_s)
        )
        prompt, duration = prefill.popitem()
        prefill[prompt] = duration.plus(Duration(host=copied))
    decode = _eager_decode(timer, page, size)
    work = total_duration(prefill.values()).plus(decode).times(1 / size)
    stages = {**prefill, last: eager_step(step, model.device, host, size)}
    return PageAlone(stages, decode), work


def _eager_decode(timer: PageTimer, page: PageWorkload, size: int) -> Duration:
    steps = timer.lengths(page.max_new_tokens).expected_longest(size) - 1
    if not steps:
        return Duration()
    model, first = timer.model, page.seq_len

    def step(cached: int, *, overwrites: bool = False) -> Duration:
        kernels = model.architecture.forms.step_kernels(
            model.dimensions, size, cached, model.dtype, model.flash_attention, overwrites,
        )  # fmt: skip
        return eager_step(kernels, model.device, timer.host, size)

    window = None if model.dimensions is None else model.dimensions.decoder.sliding_window
    growing = steps if window is None else min(steps, window)
    duration = mean_step(step, first, first + max(0, round(growing) - 1)).times(growing)
    if window is None or steps <= window:
        return duration
    return duration.plus(step(first + window - 1, overwrites=True).times(steps - window))


def _largest_batch(timer: PageTimer, page: PageWorkload) -> int:
    from dsocr_analyze.hardware.fit import fit

    model = timer.model
    longest = replace(page, max_new_tokens=timer.lengths(page.max_new_tokens).longest)
    return fit(
        model.device.gpu, model.architecture, model.dimensions, longest, dtype=model.dtype,
        flash_attention=model.flash_attention, reserved=timer.assumptions.reserved,
    ).largest_batch  # fmt: skip


def _memory_bytes(timer: PageTimer, page: PageWorkload, size: int) -> int:
    from dsocr_analyze.hardware.fit import memory_need

    model, lengths = timer.model, timer.lengths(page.max_new_tokens)
    batch = replace(page, batch_size=size, max_new_tokens=lengths.longest)
    return memory_need(
        model.architecture, model.dimensions, batch, dtype=model.dtype,
        flash_attention=model.flash_attention,
    ).total_bytes  # fmt: skip
