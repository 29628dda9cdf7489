"""Measurements beside their predictions."""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import compress
from typing import Annotated, Literal, Self

from msgspec import Meta, Struct

from dsocr_analyze.escaping import as_markdown, visible_lines
from dsocr_analyze.figures import Count, Share
from dsocr_analyze.report.opening import PageOpening, model_text
from dsocr_analyze.report.table import (
    Table,
    bytes_text,
    counted,
    markdown_page,
    scaled,
    seconds_text,
)
from dsocr_analyze.timing import Seconds, TimeCorrection
from dsocr_analyze.timing.server_benchmarks.comparison import BenchmarkEntry, BenchmarkFigure

Error = Annotated[float, Meta(ge=-1)]

_TITLES = {
    "pages_per_second": "pages/s",
    "tokens_per_second": "tokens/s",
    "ttft_seconds": "first token",
    "tpot_seconds": "each token after it",
    "request_seconds": "request",
}


class MeasuredBytes(Struct, frozen=True, kw_only=True):
    """Most bytes that the prefill pass held besides weights and inputs.

    Attributes:
        measured: Taken from the device's allocator.
        predicted: Of tensors, under CUDA's kernels, as counted.
        besides: measured - predicted: scratch inside kernels and, on a CPU, tensors that only its
            kernels make or leave out.
    """

    measured: int
    predicted: int
    besides: int


class MeasuredSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of something that ran several times.

    Attributes:
        fastest: The minimum.
        median: The median.
        spread: (maximum - minimum) / median.
        samples: In the order in which they were taken.
        predicted: Predicted seconds; null without a prediction.
        error: predicted / fastest - 1; null without a prediction.
    """

    fastest: Seconds
    median: Seconds
    spread: Seconds
    samples: tuple[Seconds, ...]
    predicted: Seconds | None
    error: float | None

    @classmethod
    def of(cls, samples: Sequence[float], predicted: float | None = None) -> Self:
        """The figures of some samples and their prediction."""
        fastest, median = min(samples), statistics.median(samples)
        return cls(
            fastest=fastest,
            median=median,
            spread=(max(samples) - fastest) / median,
            samples=tuple(samples),
            predicted=predicted,
            error=None if predicted is None else predicted / fastest - 1,
        )


class Measurement(PageOpening, frozen=True, kw_only=True):
    """Real passes of a page on a device.

    Attributes:
        created: When it was measured, in UTC.
        device: Name of the device.
        title: Its name for readers.
        versions: Versions of software that its speed depends on.
        threads: CPU threads.
        dtype: Data type of weights and activations.
        attention: The decoder's attention.
        weights: A checkpoint's, or random: every expert is chosen equally often.
        autocast: Whether passes ran under the autocast of `infer()`.
        repeats: Timed repeats.
        warmups: Untimed repeats before them.
        steps: Decode steps per repeat.
        keeps_memory: Whether the process kept memory that a pass freed.
        profile: Where predictions come from; null without any.
        unpredicted: Why no seconds are predicted; else null.
        stages: Seconds by stage; a decode stage's are of one step.
        prefill: The whole prefill pass.
        page: All passes of the page, or of the batch: the prefill pass and a decode step per
            further token, each taken to be as long as the measured ones; without preprocessing.
        reference: A fixed product before each repeat; its spread shows other load.
        preprocessing: Seconds of one CPU thread per prompt; null if no pages are read.
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
    page: MeasuredSeconds
    reference: MeasuredSeconds
    preprocessing: MeasuredSeconds | None
    peak: MeasuredBytes


def measurement_headline(measurement: Measurement) -> str:
    """The first lines: the seconds of the page, and what ran on what."""
    workload, page = measurement.workload, measurement.page
    what = f"A {workload.unit}"
    if workload.batch_size > 1:
        what = f"A batch of {workload.batch_size:,} prompts"
    predicted, error = _predicted(page)
    beside = "" if page.predicted is None else f", {predicted} predicted ({error})"
    steps = counted(max(0, workload.max_new_tokens - 1), "decode step")
    return (
        f"{what}: {seconds_text(page.fastest)} measured{beside}: its prefill pass and {steps},"
        " without preprocessing\n"
        f"Ran: {model_text(measurement.model)}, {measurement.dtype}, {measurement.attention}"
        f" attention, {workload.title}"
    )


def measurement_tables(measurement: Measurement) -> list[Table]:
    """Seconds and memory, at most 80 columns wide."""
    peak, stages = measurement.peak, measurement.stages
    decode = [*stages][-1] if measurement.workload.max_new_tokens > 1 else None
    timed = {
        **{name if name != decode else f"{name}, one step": stages[name] for name in stages},
        "prefill pass": measurement.prefill,
        "all passes": measurement.page,
        "preprocessing": measurement.preprocessing,
    }
    return [
        Table(
            f"{measurement.title}: seconds, the fastest of {measurement.repeats}",
            ("what", "measured", "median", "spread", "predicted", "error"),
            tuple(
                (name, seconds_text(each.fastest), seconds_text(each.median),
                 f"{100 * each.spread:.1f} %", *_predicted(each))
                for name, each in timed.items() if each is not None
            ),
        ),
        Table(
            "Peak memory of the prefill pass, without weights and inputs",
            ("taken by the process", "tensors, predicted", "scratch and other copies"),
            (tuple(map(bytes_text, (peak.measured, peak.predicted, peak.besides))),),
            label_columns=0,
        ),
    ]  # fmt: skip


def _predicted(seconds: MeasuredSeconds | Compared) -> tuple[str, str]:
    return (
        seconds_text(seconds.predicted),
        "-" if seconds.error is None else f"{100 * seconds.error:+.1f} %",
    )


def measurement_notes(measurement: Measurement) -> list[str]:
    """The conditions of the measurement."""
    chosen = "drawn at random, and every expert is chosen equally often"
    why = measurement.unpredicted
    return [
        "weights: " + (chosen if measurement.weights == "random" else "the checkpoint's"),
        "autocast: "
        + ("under the autocast of infer(), in bfloat16" if measurement.autocast else "none"),
        f"{counted(measurement.warmups, 'warm-up')}, {counted(measurement.repeats, 'repeat')},"
        f" {counted(measurement.steps, 'decode step')} each; all passes with further steps like"
        " these",
        "memory that a pass freed "
        + ("stayed with the process" if measurement.keeps_memory else "went back to the system"),
        f"a fixed product before each repeat varied by {100 * measurement.reference.spread:.0f} %",
        f"no seconds are predicted: {why}" if why else f"predicted from: {measurement.profile}",
    ]


# --- infer() ----------------------------------------------------------------------------------


class Compared(Struct, frozen=True, kw_only=True):
    """A figure, measured and predicted.

    Attributes:
        measured: Measured value.
        predicted: Predicted value; null if unknown.
        error: predicted / measured - 1; null without a prediction.
    """

    measured: Share
    predicted: Share | None
    error: Error | None

    @classmethod
    def of(cls, measured: float, predicted: float | None) -> Self:
        """Both, and their error."""
        error = None if predicted is None or not measured else predicted / measured - 1
        return cls(measured=measured, predicted=predicted, error=error)


class MeasuredStage(Struct, frozen=True, kw_only=True):
    """A stage: a part of the prefill pass or, the last, all decode steps.

    Attributes:
        calls: Passes in which it ran.
        flops: Counted FLOPs.
        bytes_moved: Counted bytes, read and written.
        seconds: Time it took.
        flops_per_second: flops over measured seconds.
        bytes_per_second: bytes_moved over measured seconds.
    """

    calls: Count
    flops: Count
    bytes_moved: Count
    seconds: Compared
    flops_per_second: Share
    bytes_per_second: Share

    @classmethod
    def of(
        cls, calls: int, flops: int, bytes_moved: int, measured: float, predicted: float | None
    ) -> Self:
        """A stage that took `measured` seconds."""
        return cls(
            calls=calls,
            flops=flops,
            bytes_moved=bytes_moved,
            seconds=Compared.of(measured, predicted),
            flops_per_second=flops / measured,
            bytes_per_second=bytes_moved / measured,
        )


class InferenceReport(PageOpening, frozen=True, kw_only=True):
    """One `infer()` call on one image.

    Attributes:
        device: Device it ran on.
        dtype: Data type of weights and activations.
        attention: The decoder's attention, as transformers names it.
        autocast: Data type of the autocast of `infer()`.
        weights: A checkpoint's, or random.
        tokenizer: The model directory's, or a stand-in.
        versions: Versions of this program and its packages.
        image: Path of the image.
        prompt: The prompt.
        stages: By stage, in the architecture's order.
        preprocess_seconds: To prepare pixels and tokens on the CPU.
        first_token_seconds: From the start to the end of the prefill pass.
        next_token_seconds: Per later token, with the work of `generate`; null for a single token.
        infer_seconds: The whole call.
        tokens: Tokens generated.
        tokens_per_second: tokens over infer_seconds.
        weights_bytes: Bytes of all parameters.
        peak_bytes: Most bytes of the prefill pass besides weights and inputs; predicted without
            scratch inside kernels.
        predicted_for: The GPU of predicted seconds; null without any.
        differences: How passes differ from those counted.
        notes: Caveats about the figures.
        text: The text it read.
    """

    device: str
    dtype: str
    attention: str
    autocast: str
    weights: Literal["checkpoint", "random"]
    tokenizer: Literal["directory", "stand-in"]
    versions: Mapping[str, str]
    image: str
    prompt: str
    stages: Mapping[str, MeasuredStage]
    preprocess_seconds: Compared
    first_token_seconds: Compared
    next_token_seconds: Compared | None
    infer_seconds: Compared
    tokens: Count
    tokens_per_second: Share
    weights_bytes: Count
    peak_bytes: Compared
    predicted_for: str | None
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    text: str


def _together(stages: Collection[MeasuredStage]) -> MeasuredStage:
    """All passes; predicted only if every stage is."""
    known = [stage.seconds.predicted for stage in stages if stage.seconds.predicted is not None]
    return MeasuredStage.of(
        max(stage.calls for stage in stages),
        sum(stage.flops for stage in stages),
        sum(stage.bytes_moved for stage in stages),
        sum(stage.seconds.measured for stage in stages),
        sum(known) if len(known) == len(stages) else None,
    )


def inference_headline(report: InferenceReport) -> str:
    """The first lines: what ran, on what, and what is random or a stand-in."""
    trials = (
        "Trial: the weights are random, so the text means nothing",
        "Trial: the tokenizer is a stand-in (one token per byte), so the prompt's tokens differ"
        " from those of the model's own",
    )
    lines = (
        f"Ran: infer() of {model_text(report.model)} on {report.device}, {report.dtype},"
        f" {report.attention} attention, in autocast to {report.autocast}",
        f"Page: {report.workload.title}, {report.tokens} tokens generated",
        *(f"Differs: {line}" for line in report.differences),
        *compress(trials, (report.weights == "random", report.tokenizer == "stand-in")),
    )
    return "\n".join(lines)


def inference_tables(report: InferenceReport) -> list[Table]:
    """Stages, the page, and memory."""
    stages = {
        name if stage.calls == 1 else f"{name}, {stage.calls} steps": stage
        for name, stage in report.stages.items()
    }
    stages["all passes"] = _together(report.stages.values())
    page = {
        "preprocessing": report.preprocess_seconds,
        "first token": report.first_token_seconds,
        "each token after it": report.next_token_seconds,
        "infer() as a whole": report.infer_seconds,
    }
    whose = "no device profile matches" if report.predicted_for is None else report.predicted_for
    taken, tensors = report.peak_bytes.measured, report.peak_bytes.predicted or 0
    return [
        Table(
            "Stages: counted, measured, predicted",
            ("stage", "FLOPs", "bytes", "measured", "predicted", "error", "rate", "bandwidth"),
            tuple(
                (name, scaled(stage.flops), bytes_text(stage.bytes_moved),
                 seconds_text(stage.seconds.measured), *_predicted(stage.seconds),
                 f"{scaled(stage.flops_per_second)}FLOP/s",
                 f"{bytes_text(stage.bytes_per_second)}/s")
                for name, stage in stages.items()
            ),
            emphasized_rows=1,
        ),
        Table(
            f"The page; predicted: {whose}",
            ("what", "measured", "predicted", "error"),
            (
                *((label, seconds_text(each.measured), *_predicted(each))
                  for label, each in page.items() if each is not None),
                ("tokens per second", f"{report.tokens_per_second:.3g}", "-", "-"),
            ),
        ),
        Table(
            "Memory",
            ("what", "taken", "tensors, counted", "scratch and other copies"),
            (
                ("weights", "-", bytes_text(report.weights_bytes), "-"),
                ("peak of the prefill pass without weights and inputs",
                 *map(bytes_text, (taken, tensors, taken - tensors))),
            ),
        ),
    ]  # fmt: skip


def inference_markdown(report: InferenceReport) -> str:
    """The document as Markdown, with the text that was read last."""
    page = markdown_page(
        inference_headline(report), inference_tables(report), {"Notes": report.notes}
    )
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", report.text)), default=0))
    title, text = as_markdown(report.image), visible_lines(report.text)
    return f"# infer() on {title}\n\n{page}\n## Text\n\n{fence}text\n{text}\n{fence}\n"


# --- a server's benchmarks --------------------------------------------------------------------


class BenchmarkReport(PageOpening, frozen=True, kw_only=True):
    """A server's benchmarks and their predictions.

    Attributes:
        benchmarks: One entry per result.
        correction: The correction from these and all kept benchmarks.
        kept: Whether it is kept for later predictions.
    """

    benchmarks: tuple[BenchmarkEntry, ...]
    correction: TimeCorrection | None
    kept: bool


def benchmark_tables(report: BenchmarkReport) -> Iterator[Table]:
    """Predicted and measured figures, one table per benchmark."""
    for entry in report.benchmarks:
        yield Table(
            f"{entry.gpu}, {entry.server} (version {entry.server_version}): predictions and"
            f" {entry.file}, {entry.program}; {entry.requests:,} requests,"
            f" {entry.concurrency:,} at a time, {entry.new_tokens:,.4g} tokens each",
            ("what", "predicted", "measured", "error", "corrected", "error"),
            tuple(
                (_TITLES[each.name], _shown(each, each.predicted), _shown(each, each.measured),
                 f"{100 * each.error:+.1f} %", _shown(each, each.corrected),
                 f"{100 * each.corrected_error:+.1f} %")
                for each in entry.figures
            ),
        )  # fmt: skip


def _shown(figure: BenchmarkFigure, value: float) -> str:
    return seconds_text(value) if figure.name.endswith("_seconds") else f"{value:,.4g}"
