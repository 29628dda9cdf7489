"""Real passes of a page, timed stage by stage, its preprocessing, and their predictions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.figures import StageFigures
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.measuring.machine import allocated_at_most, kept_memory
from dsocr_analyze.measuring.samples import MeasuredSeconds
from dsocr_analyze.measuring.stage_clock import StageClock, Timer, timer_of
from dsocr_analyze.model.forward import blamed_on, running_unwatched
from dsocr_analyze.model.generation import Generation, flash_attention, left_as_it_was
from dsocr_analyze.model.loading import LoadedModel
from dsocr_analyze.model.process_settings import exclusive
from dsocr_analyze.timing.duration import Duration
from dsocr_analyze.timing.eager import eager_pass, eager_step
from dsocr_analyze.timing.runtimes import EAGER
from dsocr_analyze.trace.passes import trace_passes
from dsocr_analyze.trace.summary import stage_figures
from dsocr_analyze.workload import AnyWorkload, PageWorkload

__all__ = [
    "MeasuredPage",
    "Predicted",
    "Protocol",
    "measure_pages",
    "measured_preprocessing",
    "predicted_page",
]

_REFERENCE_SIZE: Final = 1024
"""Side of a square product that shows how busy the machine is otherwise."""


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
            value = getattr(self, name)
            if value < least:
                raise WorkloadError(
                    f"{name} {value} is too small; give {least} or more", arguments=[name]
                )


@dataclass(frozen=True)
class MeasuredPage:
    """Measured passes of a page, or of a batch of pages.

    Attributes:
        stages: By stage, in the architecture's order; of decode, a step.
        reference: Of a product of fixed size before every repeat.
        peak_bytes: Of the prefill pass, without weights and inputs.
    """

    stages: Mapping[str, MeasuredSeconds]
    prefill: MeasuredSeconds
    reference: MeasuredSeconds
    peak_bytes: int


def measure_pages(
    model: LoadedModel,
    workloads: Sequence[AnyWorkload],
    architecture: Architecture,
    protocol: Protocol,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[MeasuredPage]:
    """Run the prefill pass and first decode steps of workloads repeatedly, in turn.

    So a disturbance affects a repeat of each; `on_progress` is called with what starts.

    Raises:
        ModelCodeError: The model's code raised.
        DeviceError: The device ran out of memory.
    """
    timer = timer_of(model.device)
    clock = StageClock(model.module, architecture.stages, timer)
    repeats: list[list[dict[str, float]]] = [[] for _ in workloads]
    reference: list[list[float]] = [[] for _ in workloads]
    device = model.device
    with (
        exclusive(),
        kept_memory(device),
        blamed_on(model.directory, f"failed on {device}", str(device), model.module) as announce,
        left_as_it_was(model.module),
        running_unwatched(device, flash_attention, has_weights=model.has_weights),
        torch.autocast(device.type, torch.bfloat16, enabled=protocol.autocast),
    ):
        for number in range(-protocol.warmups, protocol.repeats):
            name = f"warm-up {number + protocol.warmups + 1} of {protocol.warmups}"
            if number >= 0:
                name = f"repeat {number + 1} of {protocol.repeats}"
            on_progress(name)
            for place, workload in enumerate(workloads):
                busy = _reference_seconds(model, timer)
                seconds = _repeat(model, workload, architecture, clock, protocol.steps, announce)
                if number >= 0:
                    reference[place].append(busy)
                    repeats[place].append(seconds)
        on_progress("memory of the prefill pass")
        peaks = []
        for workload in workloads:
            generation = Generation(model, workload, architecture, lambda: None, announce)
            peaks.append(allocated_at_most(device, generation.prefill))
            del generation  # with its inputs, before the next page's
    return [_measured(architecture, *page) for page in zip(repeats, reference, peaks, strict=True)]


def _measured(
    architecture: Architecture, repeats: list[dict[str, float]], reference: list[float], peak: int
) -> MeasuredPage:
    names = [name for name in architecture.stage_names if name in repeats[0]]
    of_decode = architecture.decode and architecture.decode.name
    return MeasuredPage(
        {name: MeasuredSeconds.of([each[name] for each in repeats]) for name in names},
        MeasuredSeconds.of(
            [sum(each[name] for name in names if name != of_decode) for each in repeats]
        ),
        MeasuredSeconds.of(reference),
        peak,
    )


def _repeat(
    model: LoadedModel,
    workload: AnyWorkload,
    architecture: Architecture,
    clock: StageClock,
    steps: int,
    announce: Callable[[str], None],
) -> dict[str, float]:
    safe_point()
    clock.is_decoding = False
    generation = Generation(model, workload, architecture, clock.begin, announce)
    with clock.attached():
        seconds = generation.prefill().finish().seconds()
        clock.is_decoding = True
        if architecture.decode is not None and workload.max_new_tokens > 1:
            count = min(steps, workload.max_new_tokens - 1)
            name = architecture.decode.name
            total = 0.0
            for number in range(count):
                safe_point()
                total += generation.step(number).finish().seconds()[name]
            seconds[name] = total / count
    return seconds


def _reference_seconds(model: LoadedModel, timer: Timer) -> float:
    """The fastest of a few square products, in float32: many CPUs take seconds for halves."""
    size, device = _REFERENCE_SIZE, model.device
    factor = torch.ones(size, size, device=device, dtype=torch.float32)
    with torch.autocast(device.type, enabled=False):
        return min(timer.time(lambda: factor @ factor) for _ in range(5))


# --- preprocessing ---------------------------------------------------------------------------


def measured_preprocessing(
    workload: PageWorkload, content: tuple[int, int], repeats: int
) -> MeasuredSeconds:
    """Seconds of one CPU thread for the resizes and tensors of `infer()`, on pages of noise.

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
    return MeasuredSeconds.of(found[1:])  # the first one warms up


def _prepare(
    page: Image.Image, workload: PageWorkload, content: tuple[int, int]
) -> list[torch.Tensor]:
    image_size, base_size = workload.image_size, workload.base_size
    if not workload.crop_mode:
        if content == (image_size, image_size):  # stretched, ignoring its aspect ratio
            return [_tensor(page.resize(content))]
        return [_tensor(ImageOps.pad(page, (image_size, image_size), color=(127, 127, 127)))]
    views = [_tensor(ImageOps.pad(page, (base_size, base_size), color=(127, 127, 127)))]
    columns, rows = workload.grid
    if columns * rows > 1:
        large = page.resize((columns * image_size, rows * image_size))
        for row in range(rows):
            for column in range(columns):
                left, top = column * image_size, row * image_size
                tile = large.crop((left, top, left + image_size, top + image_size))
                views.append(_tensor(tile))
    return views


def _tensor(view: Image.Image) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(view)).permute(2, 0, 1).contiguous().to(torch.float32)
    return pixels.div_(255).sub_(0.5).div_(0.5).to(torch.bfloat16)


# --- their prediction ------------------------------------------------------------------------


class Predicted(NamedTuple):
    """Predictions from the kernel records of a page."""

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
    """Predict what `measure_pages` measures of one page; no seconds without a device.

    Under autocast, or without closed forms, the records are from a trace on the device itself.

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
