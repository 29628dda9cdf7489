"""The document that compares a server's benchmarks with their predictions, and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from dsocr_analyze.report.build import workload_document
from dsocr_analyze.report.document import NO_OPTIONS, SCHEMA_VERSION, Options, PageOpening
from dsocr_analyze.report.table import Table
from dsocr_analyze.report.time_tables import seconds_text
from dsocr_analyze.timing.prediction import TimeCorrection, TimeEntry

if TYPE_CHECKING:
    from dsocr_analyze import workload as planned
    from dsocr_analyze.figures.origin import Model
    from dsocr_analyze.timing.correction import KeptBenchmark
    from dsocr_analyze.timing.server_benchmarks.comparison import Compared

__all__ = [
    "BenchmarkEntry",
    "BenchmarkReport",
    "benchmark_entry",
    "benchmark_report",
    "benchmark_tables",
]

Positive = Annotated[float, Meta(gt=0)]

_TITLES = {
    "pages_per_second": "pages/s",
    "tokens_per_second": "tokens/s",
    "ttft_seconds": "first token",
    "tpot_seconds": "each token after it",
    "request_seconds": "request",
}


class BenchmarkFigure(Struct, frozen=True, kw_only=True):
    """A figure that was predicted and measured.

    Attributes:
        name: Name of the figure.
        predicted: Predicted without any correction.
        measured: From the benchmark.
        error: Error of the prediction relative to the measurement.
        corrected: Predicted with the correction from all kept benchmarks, this one included.
        corrected_error: Error of the corrected prediction relative to the measurement.
    """

    name: str
    predicted: float
    measured: float
    error: float
    corrected: float
    corrected_error: float


class BenchmarkEntry(Struct, frozen=True, kw_only=True):
    """One benchmark and its prediction.

    Attributes:
        file: Name of the file.
        program: The benchmark program.
        date: Date as the program wrote it; null if it wrote none.
        gpu: Name of the GPU.
        server: Name of the serving engine.
        server_version: Its version; `unknown` if not given.
        model: The model, as the program calls it; null if it does not say.
        requests: Number of requests answered.
        failed: Number of requests that failed.
        concurrency: Requests in flight at a time.
        steady: Whether every client sent one request after another; if not, the time of the whole
            request is what corrects predictions.
        prompt_tokens: Mean prompt tokens per request, as the program counts them; null if it does
            not.
        new_tokens: Mean tokens generated per request.
        first_token: Measured over predicted time of the first token: its correction factor.
        per_token: Measured over predicted time of each later token: its correction factor.
        figures: Predicted and measured figures.
        doubts: Caveats about the file.
        time: The corrected prediction.
    """

    file: str
    program: str
    date: str | None
    gpu: str
    server: str
    server_version: str
    model: str | None
    requests: int
    failed: int
    concurrency: int
    steady: bool
    prompt_tokens: float | None
    new_tokens: float
    first_token: Positive
    per_token: Positive
    figures: tuple[BenchmarkFigure, ...]
    doubts: tuple[str, ...]
    time: TimeEntry


class BenchmarkReport(PageOpening, frozen=True, kw_only=True):
    """A server's benchmarks and their predictions.

    Attributes:
        benchmarks: One entry per result.
        correction: The correction from them and all benchmarks kept earlier.
        kept: Whether it is kept for later predictions.
    """

    benchmarks: tuple[BenchmarkEntry, ...]
    correction: TimeCorrection | None
    kept: bool


def benchmark_report(
    model: Model,
    workload: planned.Workload,
    entries: Sequence[BenchmarkEntry],
    *,
    kept: bool,
    options: Options = NO_OPTIONS,
) -> BenchmarkReport:
    """The document of some benchmarks.

    Args:
        model: The model.
        workload: The page or pages of a request.
        entries: The benchmarks, one or more.
        kept: Whether their correction is kept for later predictions.
        options: The command line's options.
    """
    return BenchmarkReport(
        schema_version=SCHEMA_VERSION,
        command="time",
        options=options,
        model=model,
        workload=workload_document(workload),
        benchmarks=tuple(entries),
        correction=entries[0].time.assumptions.correction,
        kept=kept,
    )


def benchmark_entry(
    compared: Compared, kept: KeptBenchmark, doubts: Sequence[str], pages: int
) -> BenchmarkEntry:
    """A benchmark's entry in the document.

    Args:
        compared: The benchmark with its prediction.
        kept: What it corrects.
        doubts: Caveats about the file.
        pages: Pages per request.
    """
    benchmark = compared.benchmark
    source, load = benchmark.source, benchmark.load
    return BenchmarkEntry(
        file=source.file,
        program=source.program,
        date=source.date,
        gpu=kept.gpu,
        server=kept.server,
        server_version=kept.version,
        model=benchmark.model,
        requests=load.requests,
        failed=load.failed,
        concurrency=load.concurrency,
        steady=load.is_steady,
        prompt_tokens=load.prompt_tokens,
        new_tokens=load.new_tokens,
        first_token=kept.first_token,
        per_token=kept.per_token,
        figures=tuple(
            BenchmarkFigure(
                name=each.name,
                predicted=each.predicted,
                measured=each.measured,
                error=each.error,
                corrected=each.corrected,
                corrected_error=each.corrected_error,
            )
            for each in compared.figures(pages)
        ),
        doubts=tuple(doubts),
        time=compared.corrected,
    )


def benchmark_tables(report: BenchmarkReport) -> Iterator[Table]:
    """One table per benchmark, of predicted and measured figures."""
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
