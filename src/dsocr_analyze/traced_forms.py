"""What seconds and memory are predicted from, of a model that is only traced."""

import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

from msgspec.structs import astuple

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.dtypes import FLOAT32, Dtype
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.figures import BytesAlive, Composition, MemoryFigures
from dsocr_analyze.kernels import Gemm, Kernel
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.trace.passes import PassTraces
from dsocr_analyze.workload import AnyWorkload, Lengths, PageWorkload

_LAYER: Final = re.compile(r"[^0-9]*\.(?P<index>\d+)(?:\..*)?")
"""Path of a numbered module or of one below it."""

_MOST_TRACED: Final = 256
"""Prompts in the largest batch whose prefill pass is traced for its memory; a power of two."""


def traced_model(
    session: DeepSeekOCRSession, prompts: Lengths, jobs: Sequence[Assumptions]
) -> tuple[Architecture, None, PageWorkload, list[Assumptions]]:
    """A described model with its traces in place of closed forms, to predict it in some jobs.

    It has no dimensions, and its prompts are pages without views.

    Raises:
        ConfigError: It does not decode, or a serving engine is to run it.
    """
    architecture, most = copy(session.architecture), prompts.max_new_tokens
    if architecture.decode is None:
        raise ConfigError(
            f"{architecture.title} has no stage with the role 'decode'; seconds and memory are"
            " predicted for models that generate text"
        )
    longest = max((each.lengths(most).longest for each in jobs), default=most)
    forms: Any = TracedForms(session, replace(prompts, max_new_tokens=longest))
    architecture.closed_forms = forms
    page = PageWorkload(
        page=(1, 1), base_size=1, image_size=1, crop_mode=False, grid=(1, 1), views=(),
        visual_tokens=0, text_tokens=prompts.seq_len, batch_size=prompts.batch_size,
        max_new_tokens=most,
    )  # fmt: skip
    return architecture, None, page, [*map(_of_described, jobs)]


def _of_described(job: Assumptions) -> Assumptions:
    """A job whose CPU prepares prompts in no time, unless its seconds are given."""
    if not job.host.is_eager:
        raise ConfigError(
            "a model that a stages file describes is predicted under runtime eager only: which of"
            " its kernels a serving engine fuses is not known"
        )
    return (
        replace(
            job, preprocess_seconds=0.0, preprocess_origin="not predicted for a described model"
        )
        if job.preprocess_seconds is None
        else job
    )


@dataclass(frozen=True, eq=False)
class TracedForms:
    """What `ClosedForms` say, from traces of prompts of one length.

    A batch size runs when it is first asked for; dimensions and other lengths have no effect.
    """

    session: DeepSeekOCRSession
    workload: AnyWorkload

    @cache  # noqa: B019  # of a few batch sizes, as long as predictions are made
    def _traced(self, batch: int) -> tuple[Composition, PassTraces]:
        workload = replace(self.workload, batch_size=batch)
        traces = self.session.trace(workload)
        return self.session.traced(workload, traces), traces

    def compose(self, _: Any, workload: PageWorkload, *__: Any) -> Composition:
        """The figures of a batch."""
        return self._traced(workload.batch_size)[0]

    def step_kernels(self, _: Any, batch: int, cached: int, *__: Any) -> tuple[Kernel, ...]:
        """The records of a step over `cached` tokens; they change evenly within a stretch."""
        traces, number = self._traced(batch)[1], cached - self.workload.seq_len
        steps = dict(zip(traces.step_numbers, traces.decode_steps, strict=True))
        *_, stretch = (each for each in traces.stretches if each[0] <= number)
        first, second = steps[stretch[0]], steps[stretch[min(1, len(stretch) - 1)]]
        pairs = zip(first.kernels, second.kernels, strict=True)
        return tuple(_changed(*pair, number - stretch[0]) for pair in pairs)

    def memory(self, *_: Any) -> MemoryFigures:
        """Bytes that one prompt holds."""
        return self._traced(1)[0].memory

    def prefill_bytes_alive(self, _: Any, workload: PageWorkload, *__: Any) -> BytesAlive:
        """Bytes alive at the peak of the prefill pass, besides weights."""
        return self._of_batch(
            workload.batch_size,
            lambda ran: BytesAlive(ran.memory.inputs_bytes, 0, ran.memory.peak.nbytes, 0),
            _MOST_TRACED,
        )

    def decode_bytes_alive(
        self, _: Any, workload: PageWorkload, dtype: Dtype, __: bool
    ) -> BytesAlive:
        """Bytes alive in the last decode step, besides weights, as closed forms count them."""
        return self._of_batch(workload.batch_size, partial(_last_step, dtype), 2)

    def _of_batch(
        self, batch: int, alive_in: Callable[[Composition], BytesAlive], most: int
    ) -> BytesAlive:
        """Bytes alive at a peak, on a line through those of two traced batches, `most` at most."""
        low = min(1 << (batch.bit_length() - 1), most // 2)
        ran = [self._traced(each)[0] for each in (low, 2 * low if batch > low else low)]
        pairs = zip(*map(astuple, map(alive_in, ran)), strict=True)
        return BytesAlive(*(a + -((a - b) * (batch - low) // low) for a, b in pairs))


def _last_step(dtype: Dtype, figures: Composition) -> BytesAlive:
    """The cache, with one layer twice as it grows, and logits in the model's type and in fp32."""
    memory, (*_, step) = figures.memory, figures.stages.values()
    *_, head = (each for each in step.kernels if isinstance(each.dimensions, Gemm))
    numbered = filter(None, map(_LAYER.fullmatch, step.own))
    layers = 1 + max((int(each["index"]) for each in numbered), default=0)
    cached = memory.kv_cache_bytes + memory.kv_cache_bytes // layers
    logits = head.work.activations * sum({dtype.nbytes, FLOAT32.nbytes})
    return BytesAlive(memory.inputs_bytes, cached, 0, logits)


def _changed(one: Kernel, other: Kernel, times: int) -> Kernel:
    """A record once its change from `one` to `other` has occurred so many times."""
    make: Any = type(one.dimensions)
    sizes = zip(one.dimensions, other.dimensions, strict=True)
    work = one.work.plus(other.work.minus(one.work).times(times))
    return one._replace(dimensions=make(*(a + (b - a) * times for a, b in sizes)), work=work)
