"""Kernels in real passes: the time of each operator while a shallow reference network runs.

There, a kernel finds caches and memory as the previous operators left them. The pages are not those
of the published modes.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.measuring.cpu_samples import MeasuredKernel
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.generation import Generation, left_as_it_was
from dsocr_analyze.model.loading import LoadedModel, load_model
from dsocr_analyze.model.process_settings import exclusive
from dsocr_analyze.model.torch_calls import Arguments, Keywords, Result
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder

__all__ = ["PageOfPass", "TimedPasses", "reduced_network", "shallow_network"]

_STEPS: Final = 3
"""Decode steps after each prefill pass."""


class PageOfPass(NamedTuple):
    """A page whose kernels are measured."""

    base_size: int
    """Side of the global view, pixels."""
    image_size: int = 0
    """Side of a tile, pixels; 0 for no tiles."""
    page: tuple[int, int] = (1000, 1400)
    """Width and height in pixels, which decide the number of tiles."""
    is_held_out: bool = False
    """Whether its kernels measure the error of a fit."""


_PAGES: Final = (
    PageOfPass(448),
    PageOfPass(704, is_held_out=True),
    PageOfPass(832),
    PageOfPass(704, 448, (1800, 900)),
    PageOfPass(576),
    PageOfPass(960),
    PageOfPass(896, 384, (1200, 1800), is_held_out=True),
    PageOfPass(832, 704, (1800, 900)),
)
"""The last ones are left out if there is too little time."""


def reduced_network(
    dtype: torch.dtype, changes: Mapping[str, Any], *, sam_layers: int, clip_layers: int
) -> LoadedModel:
    """The reference network with other sizes of its decoder and fewer layers of its encoders."""
    directory = ModelDirectory.read(DEFAULT.reference)
    config = copy.deepcopy({**directory.config, **changes})
    width = config["vision_config"]["width"]
    width["sam_vit_b"] |= {"layers": sam_layers, "global_attn_indexes": [sam_layers - 1]}
    width["clip-l-14-224"] |= {"layers": clip_layers}
    return load_model(directory.with_config(config), device=torch.device("cpu"), dtype=dtype)


def shallow_network(dtype: torch.dtype) -> LoadedModel:
    """The published widths with fewer layers, experts and words: 1.9 GB in float32.

    The first layers of a stage take up to 50 % longer, so there are enough for a median.
    """
    sizes = {"num_hidden_layers": 4, "n_routed_experts": 16, "vocab_size": 32_768}
    return reduced_network(dtype, sizes, sam_layers=4, clip_layers=8)


class TimedPasses:
    """Runs the passes of some pages repeatedly and times their operators."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._fastest: dict[PageOfPass, _Run] = {}
        """Of every page, the fastest run of each stage so far."""

    def run(self, deadline: float, on_progress: Callable[[str], None] = lambda _: None) -> None:
        """Run the pages in turn until the deadline of the monotonic clock, which ends a pass.

        The first time, pages that are not reached in half of the time are left out.
        """
        began = time.monotonic()
        if not self._fastest:
            for page in _PAGES:
                half = (began + deadline) / 2 if self._fastest else deadline
                if not self._run(page, half, on_progress):
                    break
        while self._fastest and all(
            self._run(page, deadline, on_progress) for page in tuple(self._fastest)
        ):
            pass

    def _run(self, page: PageOfPass, deadline: float, on_progress: Callable[[str], None]) -> bool:
        on_progress(f"kernels in passes, a page of {page.base_size} pixels")
        found = _timed(self._model, page, deadline)
        if found is None:
            return False
        before = self._fastest.get(page, found)
        self._fastest[page] = {
            stage: min(before[stage], run, key=_seconds_of) for stage, run in found.items()
        }
        return True

    def kernels(self) -> list[MeasuredKernel]:
        """Operators that are single kernels, from each stage's fastest run, as `measure` takes it.

        Equal ones of a page are merged into their mean.
        """
        found = []
        for page, run in self._fastest.items():
            equal: dict[Kernel, list[float]] = defaultdict(list)
            for operators in run.values():
                for kernels, seconds in operators:
                    if len(kernels) == 1 and kernels[0].calls == 1:
                        equal[kernels[0]._replace(path="", stage="")].append(seconds)
            found += [
                MeasuredKernel(kernel, statistics.fmean(seconds), page.is_held_out, len(seconds))
                for kernel, seconds in equal.items()
            ]
        return found


_Timed = tuple[tuple[Kernel, ...], float]
_Run = dict[str, list[_Timed]]
"""Kernels and seconds of each operator, by stage; all decode steps are one."""


def _seconds_of(operators: list[_Timed]) -> float:
    return sum(seconds for _, seconds in operators)


class _TimeIsUp(Exception):  # noqa: N818 - no error
    """The deadline came before the end of a pass."""


def _timed(model: LoadedModel, page: PageOfPass, deadline: float) -> _Run | None:
    safe_point()
    workload = DEFAULT.plan(
        page=page.page, base_size=page.base_size, image_size=page.image_size or page.base_size,
        crop_mode=bool(page.image_size), max_new_tokens=_STEPS + 1,
    )  # fmt: skip
    recorder = Recorder(model.module)
    clock = _OperatorClock(recorder, deadline)

    def begin() -> Trace:
        clock.finish()
        trace = recorder.begin()
        clock.begin(trace)
        return trace

    try:
        with exclusive(), left_as_it_was(model.module), running(model.device), clock:
            with recorder:
                generation = Generation(model, workload, DEFAULT, begin)
                traces = [generation.prefill(), *map(generation.step, range(_STEPS))]
            clock.finish()
    except _TimeIsUp:
        return None
    found: _Run = defaultdict(list)
    for trace, timed in clock.passes:
        # Operators between passes, which make their inputs, are not in any kept trace.
        if any(trace is kept for kept in traces):
            for kernels, seconds in timed:
                stage = _stage_of(kernels[0]) if trace is traces[0] else "decode"
                found[stage].append((kernels, seconds))
    return found


def _stage_of(kernel: Kernel) -> str:
    owner = DEFAULT.owner_of(kernel.path)
    vision = {stage.name for stage in DEFAULT.stages if stage.role == "vision"}
    return owner if owner in vision else "prefill"


class _OperatorClock(TorchDispatchMode):
    """Runs below a recorder and times each operator that it books; raises `_TimeIsUp`.

    `passes` are traces with the kernels and seconds of each operator that has kernels.
    """

    def __init__(self, recorder: Recorder, deadline: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated in torch
        self._recorder, self._deadline = recorder, deadline
        self._seen = 0
        self._seconds = 0.0
        self._was_whole = False
        self.passes: list[tuple[Trace, list[_Timed]]] = []

    def begin(self, trace: Trace) -> None:
        self.passes.append((trace, []))
        self._seen, self._seconds = 0, 0.0

    def finish(self) -> None:
        if self.passes:
            trace, timed = self.passes[-1]
            booked = trace.kernels[self._seen :]
            self._seen += len(booked)
            if booked:
                timed.append((tuple(booked), self._seconds))
        self._seconds = 0.0

    def __torch_dispatch__(
        self,
        func: Callable[..., Result],
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Result:
        if time.monotonic() >= self._deadline:
            raise _TimeIsUp
        is_booked = bool(self.passes) and len(self.passes[-1][0].kernels) > self._seen
        if is_booked or self._was_whole:
            self.finish()
        self._was_whole = not self._recorder.inside_operator
        start = time.perf_counter()
        output = func(*args, **(kwargs or {}))
        self._seconds += time.perf_counter() - start
        return output
