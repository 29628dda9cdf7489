"""The document of `dsocr-analyze measure`: measured figures and their predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from dsocr_analyze.report.opening import PageOpening
from dsocr_analyze.report.quantities import bytes_text
from dsocr_analyze.report.table import Table
from dsocr_analyze.report.time_tables import seconds_text

if TYPE_CHECKING:
    from dsocr_analyze.measuring.samples import Samples

__all__ = [
    "MeasuredBytes",
    "MeasuredSeconds",
    "Measurement",
    "measured_bytes",
    "measured_seconds",
    "measurement_notes",
    "measurement_tables",
]

Seconds = Annotated[float, Meta(ge=0)]


class MeasuredSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of something that ran several times.

    Attributes:
        fastest: The minimum.
        median: The median.
        spread: (maximum - minimum) / median.
        samples: All samples, in the order in which they were taken.
        predicted: Predicted seconds; null without a prediction.
        error: predicted / fastest - 1; null without a prediction.
    """

    fastest: Seconds
    median: Seconds
    spread: Seconds
    samples: tuple[Seconds, ...]
    predicted: Seconds | None
    error: float | None


class MeasuredBytes(Struct, frozen=True, kw_only=True):
    """Most bytes that the prefill pass held in addition to weights and inputs.

    Attributes:
        measured: What the process took from the device's allocator.
        predicted: Of tensors, under CUDA's kernels: from closed forms, or from a trace if there are
            none.
        besides: measured - predicted: scratch inside kernels, and on a CPU the tensors that only
            its kernels make or leave out.
    """

    measured: int
    predicted: int
    besides: int


class Measurement(PageOpening, frozen=True, kw_only=True):
    """Real passes of a page on a device.

    Attributes:
        created: When it was measured, in UTC.
        device: Name of the device.
        title: Name of the device for readers.
        versions: Versions of the software that its speed depends on.
        threads: CPU threads.
        dtype: Data type of weights and activations.
        attention: Implementation of the decoder's attention.
        weights: Whether the weights are a checkpoint's or random; with random ones every expert is
            chosen equally often.
        autocast: Whether passes ran under the autocast of the vendor's `infer()`.
        repeats: Timed repeats.
        warmups: Untimed repeats before them.
        steps: Decode steps per repeat.
        keeps_memory: Whether the process kept the memory that a pass freed.
        profile: Where predicted seconds come from; null if none are predicted.
        unpredicted: Why no seconds are predicted; null if they are.
        stages: Seconds by stage; for the decode stage, of one step.
        prefill: The whole prefill pass.
        reference: A product of fixed size, timed before each repeat; its spread shows how much
            other load disturbed the machine.
        preprocessing: Seconds of one CPU thread on one prompt; null if the model reads no pages.
        peak: Peak memory of the prefill pass.
    """

    created: str
    device: str
    title: str
    versions: Mapping[str, str]
    threads: int
    dtype: str
    attention: str
    weights: Literal["random", "checkpoint"]
    autocast: bool
    repeats: int
    warmups: int
    steps: int
    keeps_memory: bool
    profile: str | None
    unpredicted: str | None
    stages: Mapping[str, MeasuredSeconds]
    prefill: MeasuredSeconds
    reference: MeasuredSeconds
    preprocessing: MeasuredSeconds | None
    peak: MeasuredBytes


def measured_seconds(samples: Samples, predicted: float | None) -> MeasuredSeconds:
    """Samples with a prediction."""
    return MeasuredSeconds(
        fastest=samples.fastest,
        median=samples.median,
        spread=samples.spread,
        samples=samples.seconds,
        predicted=predicted,
        error=None if predicted is None else predicted / samples.fastest - 1,
    )


def measured_bytes(measured: int, predicted: int) -> MeasuredBytes:
    """Measured and predicted bytes."""
    return MeasuredBytes(measured=measured, predicted=predicted, besides=measured - predicted)


def measurement_tables(measurement: Measurement) -> list[Table]:
    """Seconds and memory, at most 80 columns wide."""
    decode = measurement.workload.max_new_tokens > 1
    names = list(measurement.stages)
    rows = [
        _row(f"{name}, one step" if decode and name == names[-1] else name, each)
        for name, each in measurement.stages.items()
    ]
    rows.append(_row("prefill pass", measurement.prefill))
    if measurement.preprocessing is not None:
        rows.append(_row("preprocessing", measurement.preprocessing))
    peak = measurement.peak
    return [
        Table(
            f"{measurement.title}: seconds, the fastest of {measurement.repeats}",
            ("what", "measured", "median", "spread", "predicted", "error"),
            tuple(rows),
        ),
        Table(
            "Peak memory of the prefill pass, without weights and inputs",
            ("taken by the process", "tensors, predicted", "scratch and other copies"),
            (tuple(map(bytes_text, (peak.measured, peak.predicted, peak.besides))),),
            label_columns=0,
        ),
    ]


def _row(name: str, each: MeasuredSeconds) -> tuple[str, ...]:
    return (
        name,
        seconds_text(each.fastest),
        seconds_text(each.median),
        f"{100 * each.spread:.1f} %",
        "-" if each.predicted is None else seconds_text(each.predicted),
        "-" if each.error is None else _signed(each.error),
    )


def _signed(error: float) -> str:
    return f"{100 * error:+.1f} %"


def measurement_notes(measurement: Measurement) -> list[str]:
    """The conditions of the measurement, one sentence each."""
    chosen = "drawn at random, and every expert is chosen equally often"
    if measurement.weights == "checkpoint":
        chosen = "the checkpoint's"
    autocast = "under the autocast of infer(), in bfloat16" if measurement.autocast else "none"
    notes = [
        f"weights: {chosen}",
        f"autocast: {autocast}",
        f"{measurement.warmups} warm-ups, {measurement.repeats} repeats,"
        f" {measurement.steps} decode steps each",
        "memory that a pass freed "
        + ("stayed with the process" if measurement.keeps_memory else "went back to the system"),
        f"a fixed product before each repeat varied by {100 * measurement.reference.spread:.0f} %",
    ]
    if measurement.unpredicted is not None:
        notes.append(f"no seconds are predicted: {measurement.unpredicted}")
    else:
        notes.append(f"predicted from: {measurement.profile}")
    return notes
