"""What `time --from-benchmark` does: predictions beside what was measured on a server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

from dsocr_analyze.analysis import check_precision
from dsocr_analyze.architectures import PageRequest
from dsocr_analyze.cli import kept_files, options, printing
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.errors import BenchmarkError, WorkloadError
from dsocr_analyze.escaping import visible
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.report import measured, opening, time_tables
from dsocr_analyze.timing.correction import Corrections
from dsocr_analyze.timing.page_times import TimedModel
from dsocr_analyze.timing.predict import TimeRequest
from dsocr_analyze.timing.runtimes import server_named
from dsocr_analyze.timing.server_benchmarks import comparison, reading

__all__ = ["compare", "measured_in"]

_NOT_BESIDE: Final = {
    **dict.fromkeys(
        ("concurrency", "max_new_tokens", "new_tokens_from", "mean_new_tokens", "share_at_limit"),
        "the file gives it",
    ),
    **dict.fromkeys(("offline", "price", "plot", "corrections"), "it has no effect there"),
}
"""Options to leave out beside a benchmark, and why."""


def measured_in(
    context: typer.Context, files: Sequence[Path]
) -> tuple[list[reading.ServerBenchmark], str, str]:
    """The benchmarks in some files, their server and its version.

    Raises:
        BenchmarkError: A file is no benchmark, or they differ in engine or version.
        WorkloadError: Options contradict them.
    """
    given, asked = options.given_options(context), context.params
    gpus = options.gpu_names(asked["gpu"], asked["named_gpus"])
    if len(gpus) != 1:
        raise WorkloadError(
            "--from-benchmark needs the one GPU that was measured, as in: dsocr-analyze time"
            f" h100-sxm --from-benchmark FILE; {len(gpus)} are named"
        )
    if asked["runtime"] != "serving":
        raise WorkloadError(
            f"--from-benchmark is of a serving engine; leave out --runtime {asked['runtime']}"
        )
    if name := next((each for each in given if each in _NOT_BESIDE), None):
        raise WorkloadError(f"leave out {given[name]} with --from-benchmark: {_NOT_BESIDE[name]}")
    benchmarks = [each for file in files for each in reading.read_benchmarks(file)]
    server = asked["server"]
    if "server" not in given:
        server = comparison.server_of(benchmarks[0], server)
    server = server_named(server).name
    for each in benchmarks:
        comparison.check_engine(each, server)
    version, *others = dict.fromkeys(
        comparison.version_of(each, asked["server_version"]) for each in benchmarks
    )
    if others:
        raise BenchmarkError(
            f"the benchmarks are of several versions ({', '.join([version, *others])}); give those"
            " of one version at a time, and server_version for files that do not contain it",
            arguments=["server_version"],
        )
    return benchmarks, server, version


def compare(
    context: typer.Context,
    benchmarks: Sequence[reading.ServerBenchmark],
    version: str,
    request: TimeRequest,
    directory: ModelDirectory,
    asked: PageRequest,
) -> None:
    """Prints predictions on one GPU beside what was measured; keeps corrections if asked.

    Raises:
        BenchmarkError: A benchmark is of another model, or too far from its prediction.
        OutputError: The corrections cannot be kept.
    """
    [device], [job], architecture = request.profiles, request.jobs, directory.architecture
    check_precision(device, job.precision)
    dtype = dtype_named(asked.dtype)
    model = TimedModel(architecture, directory.dimensions(), dtype, False, device)
    predictor = comparison.Predictor(model, asked.workload_of_page, job)
    named = not {"model", "arch"}.isdisjoint(options.given_options(context))
    notes = [comparison.check_model(each, architecture, is_given=named) for each in benchmarks]
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = [predictor.kept(each, version, when) for each in benchmarks]
    known = Corrections(tuple(kept_files.kept_benchmarks()), version).with_these(kept)
    entries = tuple(
        predictor.entry(each, record, known, note)
        for each, record, note in zip(benchmarks, kept, notes, strict=True)
    )
    is_kept = bool(context.params["keep"])
    report = measured.BenchmarkReport(
        schema_version=opening.SCHEMA_VERSION,
        command="time",
        options=options.options_used(context),
        model=directory.source(architecture.name),
        workload=opening.workload_document(asked.workload),
        benchmarks=entries,
        correction=entries[0].time.assumptions.correction,
        kept=is_kept,
    )
    where = "corrections not kept"
    if is_kept:
        context.obj.begin_writing()
        where = f"corrections kept in {visible(str(kept_files.keep(kept)))}"
    doubts = [f"{each.file}: {doubt}" for each in entries for doubt in each.doubts]
    printing.emit(context, report, printing.Said(
        time_tables.headline(report.model, report.workload),
        list(measured.benchmark_tables(report)),
        [
            printing.Lines("Notes", [*doubts, where]),
            printing.assumptions(time_tables.time_notes(each.time for each in entries)),
        ],
    ))  # fmt: skip
