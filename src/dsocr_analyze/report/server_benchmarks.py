"""The document of benchmarks of a server beside their predictions, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from dsocr_analyze.report.build import model_document, workload_document
from dsocr_analyze.report.document import SCHEMA_VERSION
from dsocr_analyze.report.opening import NO_OPTIONS, Options, PageOpening
from dsocr_analyze.report.table import Table
from dsocr_analyze.report.time_entry import TimeCorrection, TimeEntry, time_entry
from dsocr_analyze.report.time_tables import seconds_text

if TYPE_CHECKING:
    from dsocr_analyze import workload as planned
    from dsocr_analyze.figures import ModelSource
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
        name: Which.
        predicted: Without any correction.
        measured: As the benchmark has it.
        error: Of the prediction, relative to what was measured.
        corrected: Predicted with all that is kept, this benchmark included.
        corrected_error: The same of the corrected prediction.
    """

    name: str
    predicted: float
    measured: float
    error: float
    corrected: float
    corrected_error: float


class BenchmarkEntry(Struct, frozen=True, kw_only=True):
    """One benchmark beside its prediction.

    Attributes:
        file: Name of the file.
        program: What measured.
        date: When, as the program wrote it; null where it did not.
        gpu: Name of the GPU.
        server: Name of the serving engine.
        server_version: Its version; `unknown` where nobody said it.
        model: Which model ran, as the program calls it; null where it did not say.
        requests: How many were answered.
        failed: How many were not.
        concurrency: Requests under way at a time.
        steady: Whether every client sent request after request; else the whole request corrects.
        prompt_tokens: Of a request on average, as the program counts them; null where it did not.
        new_tokens: That a request generated, on average.
        first_token: Measured over predicted: the factor that it corrects by.
        per_token: The same of each token after the first.
        figures: What was predicted and measured.
        doubts: What a reader should know of the file.
        time: The prediction, corrected.
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
    """Benchmarks of a server beside their predictions.

    Attributes:
        benchmarks: One entry per result.
        correction: What they correct, together with those that were kept before.
        kept: Whether it is kept for later predictions.
    """

    benchmarks: tuple[BenchmarkEntry, ...]
    correction: TimeCorrection | None
    kept: bool


def benchmark_report(
    model: ModelSource,
    workload: planned.Workload,
    entries: Sequence[BenchmarkEntry],
    *,
    kept: bool,
    options: Options = NO_OPTIONS,
) -> BenchmarkReport:
    """The document of some benchmarks.

    Args:
        model: The model.
        workload: The page, or pages, of a request.
        entries: The benchmarks, one or more.
        kept: Whether their correction is kept for later predictions.
        options: Of the command line.
    """
    return BenchmarkReport(
        schema_version=SCHEMA_VERSION,
        command="time",
        options=options,
        model=model_document(model),
        workload=workload_document(workload),
        benchmarks=tuple(entries),
        correction=entries[0].time.assumptions.correction,
        kept=kept,
    )


def benchmark_entry(
    compared: Compared, kept: KeptBenchmark, doubts: Sequence[str], pages: int
) -> BenchmarkEntry:
    """A benchmark as the document has it.

    Args:
        compared: The benchmark beside its prediction.
        kept: What it corrects.
        doubts: What a reader should know of the file.
        pages: Of a request.
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
        time=time_entry(compared.corrected),
    )


def benchmark_tables(report: BenchmarkReport) -> list[Table]:
    """Predicted beside measured, a table for each benchmark."""
    return [_table(each) for each in report.benchmarks]


def _table(entry: BenchmarkEntry) -> Table:
    return Table(
        f"{entry.gpu}, {entry.server} (version {entry.server_version}): predicted beside"
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
