"""Times of many pages, as columns; for each page the same as `predict` returns for it alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.tape import Size
from dsocr_analyze.timing.assumptions import JobAssumptions
from dsocr_analyze.timing.closed_loop import ServedPages, served_loads
from dsocr_analyze.timing.duration import Duration, Figure, total_duration
from dsocr_analyze.timing.predict import TimedModel, check_model, runtime_of
from dsocr_analyze.timing.serving import ServedModel
from dsocr_analyze.workload import PageWorkload

__all__ = ["ManyPages", "ManyTimes", "PageTimer"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class ManyPages:
    """n pages of one mode, arrays `[n]`.

    Attributes:
        kinds: One page per crop grid; its token counts and its size are not used.
        kind: Index into `kinds`.
        text_tokens: Prompt tokens that are not visual.
        max_new_tokens: Tokens that it may generate.
        prepare: CPU seconds before the model runs.
        concurrency: Pages in flight.
    """

    kinds: Sequence[PageWorkload]
    kind: Integers
    text_tokens: Integers
    max_new_tokens: Integers
    prepare: Floats
    concurrency: Integers

    def __len__(self) -> int:
        return len(self.kind)

    def workload(self, row: int) -> PageWorkload:
        """The workload of one page."""
        return replace(
            self.kinds[int(self.kind[row])],
            text_tokens=int(self.text_tokens[row]),
            max_new_tokens=int(self.max_new_tokens[row]),
            batch_size=1,
        )


@dataclass(frozen=True)
class ManyTimes:
    """Times of n pages, arrays `[n]`; seconds are per page, at its concurrency.

    Attributes:
        ttft_seconds: To the first token.
        tpot_seconds: Per token after the first; NaN if a page has one token.
        page_seconds: To the last token.
        pages_per_second: The GPU's throughput if all pages were like this one.
        tokens_per_second: Likewise.
        fits: Whether the memory suffices.
        gpu_seconds: Least seconds of the GPU per page: one over its capacity at this concurrency.
        work: GPU time of all pages together, weighted; None without weights.
    """

    ttft_seconds: Floats
    tpot_seconds: Floats
    page_seconds: Floats
    pages_per_second: Floats
    tokens_per_second: Floats
    fits: NDArray[np.bool_]
    gpu_seconds: Floats
    work: Duration | None = None


class PageTimer:
    """Times pages on a GPU and caches what they have in common.

    Raises:
        ConfigError: Serving this model is not supported.
        DeviceError: There are no kernel times for its data type, or the GPU lacks something.
    """

    def __init__(self, model: TimedModel, job: JobAssumptions) -> None:
        check_model(model, is_eager=job.host.is_eager)
        self.model, self.job = model, job
        self.correction = job.corrections.of(model.device, job.host, model.architecture.name)
        self._lengths = cache(job.lengths)
        self._served: ServedModel | None = None
        if not job.host.is_eager:
            self._served = ServedModel(
                model.architecture, model.dimensions, model.dtype, model.device, job.host,
                job.precision,
            )  # fmt: skip

    def times(self, pages: ManyPages, *, weights: Integers | None = None) -> ManyTimes:
        """Times of the pages; with weights, how often each counts in `work`, `[n]`.

        Raises:
            ConfigError: The model has a part without a closed form.
            DeviceError: The GPU lacks a data type.
            WorkloadError: A number of new tokens is out of range.
        """
        if self._served is None:
            return self._eager(pages, weights)
        return self._serving(self._served, pages, weights)

    # --- serving -----------------------------------------------------------------------------

    def _serving(
        self, served: ServedModel, pages: ManyPages, weights: Integers | None
    ) -> ManyTimes:
        job, n = self.job, len(pages)
        mean, generated, longest = self._lengths_of(pages.max_new_tokens)
        visual = np.array([each.visual_tokens for each in pages.kinds], np.int64)
        T = visual[pages.kind] + pages.text_tokens
        prefill, fixed = np.zeros(n), np.zeros(n)
        passes = []
        for number, kind in enumerate(pages.kinds):
            rows = np.flatnonzero(pages.kind == number)
            if not len(rows):
                continue
            found: tuple[Integers, Integers] = np.unique(T[rows], return_inverse=True)
            prompts, place = found
            stages = served.prefill(kind.views, prompts, kind.visual_tokens)
            duration = total_duration(stages.values())
            prefill[rows] = np.broadcast_to(duration.seconds, len(prompts))[place]
            text: Size = prompts - kind.visual_tokens
            fixed[rows] = served.fixed_bytes(replace(kind, text_tokens=text, batch_size=1))[place]
            if weights is not None:
                passes.append(_weighted(duration, place, weights[rows]))
        steps = mean - 1
        fitting = served.fitting(fixed, served.page_bytes(T, longest), job.reserved)
        keys = served.keys(T, generated)
        asked = ServedPages(T, prefill, keys, steps, pages.prepare, pages.concurrency, fitting)
        loads = served_loads(
            served, asked, workers=job.workers, is_offline=job.is_offline,
            correction=self.correction,
        )  # fmt: skip
        first, page, work = loads.first_token, loads.page, None
        if weights is not None:
            by_step = _distinct_steps(
                served, loads.together, keys, weights * steps / loads.together
            )
            prefilled = self.correction.prefill(total_duration(passes))
            work = prefilled.plus(self.correction.decode(by_step))
        no_step = np.full(n, np.nan)
        return ManyTimes(
            first, np.divide(page - first, steps, out=no_step, where=steps > 0), page,
            loads.pages_per_second, mean * loads.pages_per_second, pages.concurrency <= fitting,
            loads.gpu_seconds, work,
        )  # fmt: skip

    def _lengths_of(self, limits: Integers) -> tuple[Floats, Integers, Integers]:
        """Mean, running and longest lengths, `[n]`; see `OutputLengths`."""
        distinct, place = np.unique(limits, return_inverse=True)
        found = [self._lengths(limit) for limit in distinct.tolist()]
        return (
            np.array([each.mean for each in found])[place],
            np.array([each.running for each in found], np.int64)[place],
            np.array([each.longest for each in found], np.int64)[place],
        )

    # --- eager -------------------------------------------------------------------------------

    def _eager(self, pages: ManyPages, weights: Integers | None) -> ManyTimes:
        """One prediction per distinct page, for all its concurrencies.

        They share no array `[kernels, n]`: the order of launches depends on the sizes of kernels.
        """
        rows_of: dict[tuple[float, ...], list[int]] = {}
        columns = (pages.kind, pages.text_tokens, pages.max_new_tokens, pages.prepare)
        for row, key in enumerate(zip(*(each.tolist() for each in columns), strict=True)):
            rows_of.setdefault(key, []).append(row)
        figures = np.zeros((6, len(pages)))
        fits = np.zeros(len(pages), bool)
        durations = []
        for (*_, prepare), rows in rows_of.items():
            workload = pages.workload(rows[0])
            concurrency = sorted({int(pages.concurrency[row]) for row in rows})
            assumptions = self.job.of(
                self.model.architecture,
                workload,
                profile=self.model.device,
                prepare=prepare,
            )
            runtime = runtime_of(self.model, workload, assumptions)
            loads = {each: runtime.loaded(each) for each in concurrency}
            for row in rows:
                together = int(pages.concurrency[row])
                load = loads[together]
                step, prompts = load.step_seconds(assumptions.steps), load.pages_per_second
                figures[:, row] = [
                    load.first_token, np.nan if step is None else step, load.page,
                    workload.prompt_pages * prompts, assumptions.lengths.mean * prompts,
                    float(load.work.seconds),
                ]  # fmt: skip
                fits[row] = together <= runtime.largest_concurrency
                if weights is not None:
                    durations.append(load.work.times(int(weights[row])))
        ttft, tpot_seconds, page, rate, tokens, gpu_seconds = figures
        work = None if weights is None else total_duration(durations)
        return ManyTimes(ttft, tpot_seconds, page, rate, tokens, fits, gpu_seconds, work)


def _distinct_steps(
    served: ServedModel, together: Integers, keys: Integers, weights: Floats
) -> Duration:
    """Decode steps of `together` sequences over `keys` keys each, weighted by `weights`."""
    width = int(keys.max()) + 1
    pairs, place = np.unique(together * width + keys, return_inverse=True)
    B, K = np.divmod(pairs, width)
    duration = served.step(B, K)
    return _weighted(duration, np.arange(len(pairs)), np.bincount(place, weights))


def _weighted(duration: Duration, place: Integers, weights: Integers | Floats) -> Duration:
    """The weighted sum of some of a duration's workloads, as floats."""

    def summed(values: Figure) -> float:
        values = np.atleast_1d(values)
        chosen = values[place] if len(values) > 1 else values[0]
        return float(np.sum(chosen * weights))

    return duration.mapped(summed)
