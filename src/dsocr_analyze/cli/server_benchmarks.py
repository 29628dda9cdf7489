"""`dsocr-analyze time --from-benchmark`: predictions compared with a server's benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze import analysis
from dsocr_analyze.cli import (
    completion,
    kept_files,
    options,
    printing,
)
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.errors import BenchmarkError, WorkloadError
from dsocr_analyze.escaping import visible

if TYPE_CHECKING:
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.timing.server_benchmarks.benchmark import ServerBenchmark
    from dsocr_analyze.workload import Workload

__all__ = ["FilesOption", "KeepOption", "MeasuredServer", "benchmarks_given", "show"]

FilesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--from-benchmark",
        metavar="FILE",
        help="Compare with a server's benchmark on the one named GPU, and correct later predictions"
        " by it: a result of vllm bench serve, sglang.bench_serving, genai-perf or AIPerf. May be"
        " given several times.",
    ),
]
KeepOption = Annotated[
    int,
    typer.Option(
        "--keep",
        metavar="0|1",
        autocompletion=completion.one_of("0", "1"),
        help="Whether to keep the correction of --from-benchmark for later predictions.",
    ),
]

_NOT_BESIDE: Final = {
    "concurrency": "the file gives it",
    "max_new_tokens": "the file gives it",
    "new_tokens_from": "the file gives it",
    "mean_new_tokens": "the file gives it",
    "share_at_limit": "the file gives it",
    "offline": "it has no effect there",
    "price": "it has no effect there",
    "plot": "it has no effect there",
    "corrections": "it has no effect there",
}
"""Options that contradict a benchmark or would have no effect, and why to leave them out."""


@dataclass(frozen=True)
class MeasuredServer:
    """The given benchmarks and their server.

    Attributes:
        benchmarks: One or more benchmarks.
        server: Name of the serving engine.
        version: Its version.
        is_kept: Whether to keep their correction.
    """

    benchmarks: Sequence[ServerBenchmark]
    server: str
    version: str
    is_kept: bool


def benchmarks_given(
    context: typer.Context, files: Sequence[Path] | None, *, keep: int
) -> MeasuredServer | None:
    """The benchmarks in the files; None if there are no files.

    Args:
        context: The command's context, with its other options.
        files: The files.
        keep: Value of `--keep`.

    Raises:
        BenchmarkError: A file is not a benchmark, or they differ in engine or version.
        WorkloadError: Other options contradict them.
    """
    is_kept, given = options.switch("--keep", keep), options.given_options(context)
    if not files:
        if "keep" in given:
            raise WorkloadError(f"--keep {keep} is for --from-benchmark FILE; leave it out")
        return None
    gpus = options.gpu_names(context.params["gpu"], context.params["named_gpus"])
    if len(gpus) != 1:
        raise WorkloadError(
            "--from-benchmark needs the one GPU that was measured, as in: dsocr-analyze time"
            f" h100-sxm --from-benchmark FILE; {len(gpus)} are named"
        )
    if context.params["runtime"] != "serving":
        raise WorkloadError(
            f"--from-benchmark is of a serving engine; leave out --runtime"
            f" {context.params['runtime']}"
        )
    if name := next((each for each in given if each in _NOT_BESIDE), None):
        raise WorkloadError(f"leave out {given[name]} with --from-benchmark: {_NOT_BESIDE[name]}")
    from dsocr_analyze.timing.runtimes import server_named
    from dsocr_analyze.timing.server_benchmarks import comparison, reading

    benchmarks = [each for file in files for each in reading.read_benchmarks(file)]
    server, version = context.params["server"], context.params["server_version"]
    if "server" not in given:
        server = comparison.server_of(benchmarks[0], server)
    server = server_named(server).name
    for each in benchmarks:
        comparison.check_engine(each, server)
    versions = list(dict.fromkeys(comparison.version_of(each, version) for each in benchmarks))
    if len(versions) > 1:
        raise BenchmarkError(
            f"the benchmarks are of several versions ({', '.join(versions)}); give those of one"
            " version at a time, and server_version for files that do not contain it",
            arguments=["server_version"],
        )
    return MeasuredServer(benchmarks, server, versions[0], is_kept)


def show(
    context: typer.Context,
    measured: MeasuredServer,
    request: analysis.TimeRequest,
    directory: ModelDirectory,
    workload: Workload,
) -> None:
    """Print predicted and measured figures, and keep the correction if requested.

    Args:
        context: The command's context.
        measured: The benchmarks.
        request: The other options' request, for one GPU under a serving engine.
        directory: The model.
        workload: The page or pages of one request.

    Raises:
        BenchmarkError: A benchmark is of another model, or too far from its prediction.
        OutputError: The correction cannot be kept.
    """
    from dsocr_analyze.hardware.timed_device import Device
    from dsocr_analyze.report import document, time_tables
    from dsocr_analyze.report.measured import BenchmarkReport, benchmark_tables
    from dsocr_analyze.timing import correction, predict
    from dsocr_analyze.timing.server_benchmarks.comparison import Predictor, check_model

    [profile], [job] = request.profiles, request.jobs
    device, architecture = Device(profile), directory.architecture
    analysis.check_precision(device, job.precision)
    dimensions, dtype = directory.dimensions(), dtype_named(context.params["dtype"])
    model = predict.TimedModel(architecture, dimensions, dtype, False, device)
    predictor = Predictor(model, workload, job)
    named = not {"model", "arch"}.isdisjoint(options.given_options(context))
    notes = [check_model(each, architecture, is_given=named) for each in measured.benchmarks]
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = [predictor.kept(each, measured.version, when) for each in measured.benchmarks]
    corrections = correction.Corrections(
        tuple(kept_files.kept_benchmarks()), measured.version
    ).with_these(kept)
    entries = tuple(
        predictor.entry(each, record, corrections, note)
        for each, record, note in zip(measured.benchmarks, kept, notes, strict=True)
    )
    report = BenchmarkReport(
        schema_version=document.SCHEMA_VERSION,
        command="time",
        options=options.options_used(context),
        model=directory.source(architecture.name),
        workload=document.workload_document(workload),
        benchmarks=entries,
        correction=entries[0].time.assumptions.correction,
        kept=measured.is_kept,
    )
    where = "corrections not kept"
    if measured.is_kept:
        context.obj.begin_writing()
        where = f"corrections kept in {visible(str(kept_files.keep(kept)))}"
    doubts = [f"{each.file}: {doubt}" for each in entries for doubt in each.doubts]
    said = printing.Said(
        time_tables.headline(report.model, report.workload),
        benchmark_tables(report),
        [
            printing.Lines("Notes", [*doubts, where]),
            printing.assumptions(time_tables.time_notes(each.time for each in entries)),
        ],
    )
    printing.emit(context, report, lambda: said)
