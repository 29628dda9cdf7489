"""What seconds and memory are predicted from, of a model that is only traced."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import astuple

from dsocr_analyze.architectures.any_model import DescribedModel
from dsocr_analyze.architectures.stages import owner_among
from dsocr_analyze.dtypes import FLOAT32, Dtype
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.figures import BytesAlive, Composition, MemoryFigures
from dsocr_analyze.kernels import Gemm, Kernel
from dsocr_analyze.workload import AnyWorkload, Lengths, PageWorkload

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.session import DeepSeekOCRSession
    from dsocr_analyze.timing.assumptions import Assumptions
    from dsocr_analyze.trace.passes import PassTraces

_LAYER: Final = re.compile(r".*?\.(?P<index>\d+)(?:\..*)?")
"""Path of a numbered module or of one below it."""

_MOST_TRACED: Final = 256
"""Prompts in the largest batch whose memory is traced; a power of two."""

MEMORY_ASSUMPTION: Final = (
    f"batches of 1, 2, 4 and on to {_MOST_TRACED} prompts are traced, as far as they fit; the"
    " memory of others is on the line through two of them"
)
"""How the memory of a batch follows from traces, for readers."""


_NOT_PREPARED: Final = "not predicted for a described model"


def of_described(job: Assumptions) -> Assumptions:
    """What is assumed of a described model: the CPU prepares its prompts in no time, unless given.

    Raises ConfigError for a serving engine.
    """
    if job.runtime == "serving":
        raise ConfigError(
            "seconds under a serving engine are not predicted for a model described by a stages"
            " file: which of its kernels an engine fuses is not known; use runtime eager"
        )
    if job.preprocess_seconds is not None:
        return job
    return replace(job, preprocess_seconds=0.0, preprocess_origin=_NOT_PREPARED)


def traced_model(
    session: DeepSeekOCRSession, prompts: Lengths, most_new_tokens: int
) -> tuple[Architecture, None, PageWorkload]:
    """A described model with its traces, no dimensions, and its prompts as pages without views.

    Raises ConfigError if it does not decode.
    """
    architecture, tokens = session.architecture, prompts.seq_len
    assert isinstance(architecture, DescribedModel), "all others read pages"
    forms = TracedForms(session, replace(prompts, max_new_tokens=most_new_tokens))
    page = PageWorkload(
        page=(1, 1), base_size=1, image_size=1, crop_mode=False, grid=(1, 1), views=(),
        visual_tokens=0, text_tokens=tokens, batch_size=prompts.batch_size,
        max_new_tokens=prompts.max_new_tokens,
    )  # fmt: skip
    return replace(architecture, traced=forms), None, page


class TracedForms:
    """A model's traces of prompts of one length, each batch size run when it is first asked for.

    They fulfil `PassForms`; dimensions and other lengths have no effect.
    """

    def __init__(self, session: DeepSeekOCRSession, workload: AnyWorkload) -> None:
        self._session, self._workload = session, workload
        self._traced = cache(self._trace)
        architecture = session.architecture
        if architecture.decode is None:
            raise ConfigError(
                f"{architecture.title} has no stage with the role 'decode', and seconds and memory"
                " are predicted for models that generate text; describe its decode step, too"
            )

    def _trace(self, batch: int) -> tuple[Composition, PassTraces]:
        workload = replace(self._workload, batch_size=batch)
        traces = self._session.trace(workload)
        return self._session.traced(workload, traces), traces

    def compose(
        self, c: Any, workload: PageWorkload, dtype: Dtype, flash_attention: bool
    ) -> Composition:
        """The figures of a batch."""
        return self._traced(workload.batch_size)[0]

    def step_kernels(
        self,
        c: Any,
        batch: int,
        cached: int,
        dtype: Dtype,
        flash_attention: bool,
        overwrites: bool = False,
    ) -> tuple[Kernel, ...]:
        """The records of a step, which change evenly within a stretch of steps."""
        _, traces = self._traced(batch)
        number = cached - self._workload.seq_len
        steps = dict(zip(traces.step_numbers, traces.decode_steps, strict=True))
        *_, stretch = (each for each in traces.stretches if each[0] <= number)
        first, second = steps[stretch[0]], steps[stretch[min(1, len(stretch) - 1)]]
        return tuple(
            _changed(one, other, number - stretch[0])
            for one, other in zip(first.kernels, second.kernels, strict=True)
        )

    def memory(
        self, c: Any, workload: PageWorkload, dtype: Dtype, flash_attention: bool
    ) -> MemoryFigures:
        """Bytes that one prompt holds."""
        return self._traced(1)[0].memory

    def prefill_bytes_alive(
        self, c: Any, workload: PageWorkload, dtype: Dtype, flash_attention: bool
    ) -> BytesAlive:
        """Bytes alive at the peak of the prefill pass, besides weights."""
        peak = partial(self._prefill_peak, dtype=dtype)
        return self._of_batch(workload.batch_size, peak, _MOST_TRACED)

    def decode_bytes_alive(
        self, c: Any, workload: PageWorkload, dtype: Dtype, flash_attention: bool
    ) -> BytesAlive:
        """Bytes alive in the last decode step: as of closed forms, cache and logits."""
        return self._of_batch(workload.batch_size, partial(_last_step, dtype=dtype), 2)

    def _of_batch(
        self, batch: int, alive_in: Callable[[Composition], BytesAlive], most: int
    ) -> BytesAlive:
        """Bytes alive at a peak, on a line through those of two traced batches, `most` at most."""
        low = min(1 << (batch.bit_length() - 1), most // 2)
        below = alive_in(self._traced(low)[0])
        if batch == low:
            return below
        pairs = zip(astuple(below), astuple(alive_in(self._traced(2 * low)[0])), strict=True)
        return BytesAlive(*(a + -((a - b) * (batch - low) // low) for a, b in pairs))

    def _prefill_peak(self, figures: Composition, dtype: Dtype) -> BytesAlive:
        *_, prefill, _ = figures.stages.values()
        memory, peak, layers = figures.memory, figures.memory.peak, _layers(figures)
        owner, layer = owner_among(self._session.architecture.stages, peak.path), _layer(peak.path)
        filled = layers if layer is None else min(layer + 1, layers)
        if owner is not None and owner.role == "vision":
            filled = 0
        cached = filled * memory.prefill_cache_bytes // layers
        head = _head(prefill.kernels)
        logits = _logits_bytes(head, dtype) if peak.path in ("", head.path) else 0
        logits = min(logits, peak.nbytes - cached)
        return BytesAlive(memory.inputs_bytes, cached, peak.nbytes - cached - logits, logits)


def _last_step(figures: Composition, dtype: Dtype) -> BytesAlive:
    *_, step = figures.stages.values()
    memory, logits = figures.memory, _logits_bytes(_head(step.kernels), dtype)
    cached = memory.kv_cache_bytes + memory.kv_cache_bytes // _layers(figures)
    return BytesAlive(memory.inputs_bytes, cached, 0, logits)


def _changed(one: Kernel, other: Kernel, times: int) -> Kernel:
    """A record once its change from `one` to `other` has occurred so many times."""
    make: Any = type(one.dimensions)
    sizes = zip(one.dimensions, other.dimensions, strict=True)
    dimensions = make(*(a + (b - a) * times for a, b in sizes))
    work = one.work.plus(other.work.minus(one.work).times(times))
    return one._replace(dimensions=dimensions, work=work)


def _layer(path: str) -> int | None:
    """Number of the layer of the module at a path, if it is in one."""
    found = _LAYER.fullmatch(path)
    return None if found is None else int(found["index"])


def _layers(figures: Composition) -> int:
    """Layers of the decoder."""
    *_, step = figures.stages.values()
    return 1 + max(filter(None, map(_layer, step.own)), default=0)


def _head(kernels: tuple[Kernel, ...]) -> Kernel:
    """The last product, which yields the logits."""
    *_, head = (each for each in kernels if isinstance(each.dimensions, Gemm))
    return head


def _logits_bytes(head: Kernel, dtype: Dtype) -> int:
    """In the model's type and, unless it is the same, in fp32."""
    return head.work.activations * (dtype.nbytes + (FLOAT32.nbytes if dtype != FLOAT32 else 0))
