"""Real passes of a page, timed stage by stage, its preprocessing, and their predictions."""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageOps

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.figures import StageFigures, StageScope
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.kernels import dtype_named, grouped
from dsocr_analyze.measuring.machine import Timer, allocated_at_most, kept_memory, timer_of
from dsocr_analyze.model.forward import blamed_on, running_unwatched
from dsocr_analyze.model.generation import Generation, flash_attention, left_as_it_was
from dsocr_analyze.model.loading import LoadedModel
from dsocr_analyze.model.process_settings import Arguments, Function, Keywords, Value, exclusive
from dsocr_analyze.timing.eager import eager_pass, eager_step
from dsocr_analyze.timing.kernel_seconds import Duration
from dsocr_analyze.timing.runtimes import EAGER
from dsocr_analyze.trace.modules import RunningModules
from dsocr_analyze.trace.passes import stage_figures, trace_passes
from dsocr_analyze.workload import AnyWorkload, PageWorkload, check_count

# --- stages ----------------------------------------------------------------------------------


Laps: TypeAlias = list[tuple[str, Any]]
"""Marks of a pass, each with the stage that begins there."""


class StageClock:
    """Times a model's passes by stage.

    Vision stages get the time of their own modules, the prefill stage the rest of its pass, the
    decode stage all of a step, if the clock `is_decoding`.
    """

    def __init__(self, model: torch.nn.Module, stages: Sequence[StageScope], timer: Timer) -> None:
        self._timer, self._laps = timer, Laps()
        self._of_pass = {stage.role: stage.name for stage in stages}
        self._owners = {
            path: stage.name
            for stage in stages
            if stage.role == "vision"
            for path in stage.prefixes
        }
        paths = ((each, path) for path, each in model.named_modules() if path in self._owners)
        self._modules = RunningModules(grouped(paths))
        self.is_decoding = False

    def attached(self) -> AbstractContextManager[None]:
        """Passes are timed within it."""
        return self._modules.attached(self._run)

    def timed(self, run: Callable[[], object], *, is_decoding: bool) -> dict[str, float]:
        """Seconds by stage of what begins a pass and runs it."""
        safe_point()
        self.is_decoding = is_decoding
        run()
        return self.seconds(self.finish())

    def begin(self) -> None:
        """Start a pass."""
        self._modules.begin([])
        self._laps = []
        self._mark(self._of_pass["decode" if self.is_decoding else "prefill"])

    def finish(self) -> Laps:
        """End a pass once it has been issued."""
        self._mark("")
        return self._laps

    def seconds(self, laps: Laps) -> dict[str, float]:
        """By stage; they add up to the pass."""
        found: dict[str, float] = {}
        for (stage, start), (_, end) in itertools.pairwise(laps):
            found[stage] = found.get(stage, 0.0) + self._timer.seconds(start, end)
        return found

    def _mark(self, stage: str) -> None:
        self._laps.append((stage, self._timer.mark()))

    def _run(
        self,
        _: torch.nn.Module,
        path: str,
        forward: Function,
        args: Arguments,
        kwargs: Keywords,
    ) -> Value:
        stage, within = self._owners[path], self._laps[-1][0] if self._laps else ""
        if self.is_decoding or within in ("", stage):
            return forward(*args, **kwargs)
        self._mark(stage)
        try:
            return forward(*args, **kwargs)
        finally:
            self._mark(within)


# --- passes ----------------------------------------------------------------------------------


_REFERENCE_SIZE: Final = 1024
"""Side of a product that shows how busy the machine is otherwise."""


_MOST_RUNS: Final = 100_000
"""Beyond any that is meant."""


@dataclass(frozen=True)
class Protocol:
    """How to measure: timed repeats of all passes, after untimed ones.

    Attributes:
        steps: Decode steps per repeat; a sample is their mean.
        autocast: Whether passes run under bfloat16 autocast, like `infer()`.

    Raises:
        WorkloadError: A number is out of range.
    """

    repeats: int = 5
    warmups: int = 2
    steps: int = 4
    autocast: bool = False

    def __post_init__(self) -> None:
        for name, least in (("repeats", 1), ("warmups", 0), ("steps", 1)):
            check_count(name, getattr(self, name), least, _MOST_RUNS, "")


@dataclass(frozen=True)
class MeasuredPage:
    """Seconds of repeated passes of a page, or of a batch of pages.

    Attributes:
        stages: By stage; of decode, a step.
        reference: Of a fixed product before every repeat.
        peak_bytes: Of the prefill pass, without weights and inputs.
    """

    stages: Mapping[str, list[float]]
    prefill: list[float]
    reference: list[float]
    peak_bytes: int

    def whole(self, decode: str, tokens: int) -> list[float]:
        """Of the prefill pass and, as each makes a token, all steps of the decode stage, if any."""
        steps = self.stages.get(decode, [0.0] * len(self.prefill))
        return [
            first + (tokens - 1) * each for first, each in zip(self.prefill, steps, strict=True)
        ]


def measure_page(
    model: LoadedModel,
    workload: AnyWorkload,
    architecture: Architecture,
    protocol: Protocol,
    *,
    on_progress: Callable[[str, float], None] = lambda _, __: None,
) -> MeasuredPage:
    """Run a workload's prefill pass and first decode steps repeatedly.

    `on_progress` is called with what begins, and the share of all passes that is done.

    Raises:
        ModelCodeError: The model's code raised.
        DeviceError: The device ran out of memory.
    """
    device, timer = model.device, timer_of(model.device)
    clock = StageClock(model.module, architecture.stages, timer)
    decode = architecture.decode.name if architecture.decode else ""
    steps = min(protocol.steps, workload.max_new_tokens - 1) if decode else 0
    runs = protocol.warmups + protocol.repeats  # and one for its memory
    reference: list[float] = []
    repeats: list[dict[str, float]] = []
    with (
        exclusive(),
        kept_memory(device),
        blamed_on(model.directory, f"failed on {device}", str(device), model.module) as announce,
        left_as_it_was(model.module.modules()),
        running_unwatched(device, flash_attention, has_weights=model.has_weights),
        torch.autocast(device.type, torch.bfloat16, enabled=protocol.autocast),
    ):
        for number in range(1 - protocol.warmups, protocol.repeats + 1):
            on_progress(
                f"repeat {number} of {protocol.repeats}" if number > 0
                else f"warm-up {number + protocol.warmups} of {protocol.warmups}",
                (number + protocol.warmups - 1) / (runs + 1),
            )  # fmt: skip
            reference.append(_reference_seconds(device, timer))
            generation = Generation(model, workload, architecture, clock.begin, announce)
            with clock.attached():
                seconds = clock.timed(generation.prefill, is_decoding=False)
                found = [
                    clock.timed(partial(generation.step, step), is_decoding=True)[decode]
                    for step in range(steps)
                ]
            repeats.append(seconds | ({decode: statistics.fmean(found)} if found else {}))
        on_progress("memory of the prefill pass", runs / (runs + 1))
        generation = Generation(model, workload, architecture, lambda: None, announce)
        peak, _ = allocated_at_most(device, generation.prefill)
    del reference[: protocol.warmups], repeats[: protocol.warmups]
    names = [name for name in architecture.stage_names if name in repeats[0]]
    return MeasuredPage(
        {name: [each[name] for each in repeats] for name in names},
        [sum(each[name] for name in names if name != decode) for each in repeats],
        reference,
        peak,
    )


def _reference_seconds(device: torch.device, timer: Timer) -> float:
    """Of the fastest of a few products, in float32: many CPUs take seconds for halves."""
    factor = torch.ones([_REFERENCE_SIZE] * 2, device=device, dtype=torch.float32)
    with torch.autocast(device.type, enabled=False):
        return min(timer.time(lambda: factor @ factor) for _ in range(5))


# --- preprocessing ---------------------------------------------------------------------------


def measured_preprocessing(
    workload: PageWorkload, content: tuple[int, int], repeats: int
) -> list[float]:
    """Seconds of one CPU thread for the resizes and tensors of `infer()`, on noise.

    `content` is the page's width and height in the global view; the rest is padding.
    """
    width, height = workload.page
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    page = Image.fromarray(noise)
    threads = torch.get_num_threads()
    found = []
    torch.set_num_threads(1)
    try:
        for _ in range(repeats + 1):
            safe_point()
            start = time.perf_counter()
            for _ in range(workload.prompt_pages):
                _prepare(page, workload, content)
            found.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return found[1:]  # the first one warms up


def _prepare(
    page: Image.Image, workload: PageWorkload, content: tuple[int, int]
) -> list[torch.Tensor]:
    side, (columns, rows) = workload.image_size, workload.grid
    if not workload.crop_mode and content == (side, side):  # stretched, ignoring its aspect ratio
        return [_tensor(page.resize(content))]
    view = workload.base_size if workload.crop_mode else side
    views = [ImageOps.pad(page, (view, view), color=(127, 127, 127))]
    if workload.crop_mode and columns * rows > 1:
        large = page.resize((columns * side, rows * side))
        corners = itertools.product(range(0, rows * side, side), range(0, columns * side, side))
        views += [large.crop((left, top, left + side, top + side)) for top, left in corners]
    return [*map(_tensor, views)]


def _tensor(view: Image.Image) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(view)).permute(2, 0, 1).contiguous().to(torch.float32)
    return pixels.div_(255).sub_(0.5).div_(0.5).to(torch.bfloat16)


# --- their prediction ------------------------------------------------------------------------


class Predicted(NamedTuple):
    """From a page's kernel records."""

    stages: Mapping[str, Duration]
    """Empty without a profile of the device."""
    peak_bytes: int
    """Of the prefill pass, without weights and inputs."""


def predicted_page(
    model: LoadedModel,
    workload: AnyWorkload,
    architecture: Architecture,
    protocol: Protocol,
    device: Device | None,
) -> Predicted:
    """Predict what `measure_page` measures; no seconds without a device.

    Under autocast, or without closed forms, by a trace on the device itself.

    Raises:
        DeviceError: The profile lacks the data type.
    """
    forms = None if protocol.autocast else architecture.closed_forms
    if forms is None or not isinstance(workload, PageWorkload):
        stages, peak = _traced(model, workload, architecture, protocol)
    else:
        dtype = dtype_named(str(model.dtype).removeprefix("torch."))
        composed = forms.compose(
            model.directory.dimensions(), workload, dtype, model.attention != "eager"
        )
        stages, peak = composed.stages, composed.memory.peak.nbytes
    spans: dict[str, Duration] = {}
    if device is not None:
        records = {name: stage.kernels for name, stage in stages.items() if stage.kernels}
        decode = "" if architecture.decode is None else architecture.decode.name
        step = records.pop(decode, None)
        host = EAGER.on(device)
        spans = eager_pass(records, device, host)
        if step is not None:
            # A step alone, without the work of `generate` between steps.
            alone = replace(host, step_us=0.0, sequence_us=0.0)
            spans[decode] = eager_step(step, device, alone, workload.batch_size)
    return Predicted(spans, peak)


def _traced(
    model: LoadedModel, workload: AnyWorkload, architecture: Architecture, protocol: Protocol
) -> tuple[Mapping[str, StageFigures], int]:
    with torch.autocast(model.device.type, torch.bfloat16, enabled=protocol.autocast):
        decodes = architecture.decode is not None and workload.max_new_tokens > 1
        traces = trace_passes(model, workload, architecture, step_numbers=[0] if decodes else [])
    nothing: dict[str, dict[str, int]] = {name: {} for name in architecture.stage_names}
    return stage_figures(traces, architecture.stages, nothing), traces.prefill.peak.nbytes
