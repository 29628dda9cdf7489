"""`dsocr-analyze time --from-benchmark`: predictions compared with a server's benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.cli import completion, kept_files, options, time_options
from dsocr_analyze.cli.printing import Lines, Said, assumptions, emit
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.errors import BenchmarkError, WorkloadError
from dsocr_analyze.escaping import visible

if TYPE_CHECKING:
    from dsocr_analyze.cli.time_options import TimeRequest
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.report.server_benchmarks import BenchmarkReport
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
        rich_help_panel=options.TIME,
    ),
]
KeepOption = Annotated[
    int,
    typer.Option(
        "--keep",
        metavar="0|1",
        autocompletion=completion.one_of("0", "1"),
        help="Whether to keep the correction of --from-benchmark for later predictions.",
        rich_help_panel=options.TIME,
    ),
]

_SAID_BY_FILES: Final = (
    "concurrency", "max_new_tokens", "new_tokens_from", "mean_new_tokens", "share_at_limit",
)  # fmt: skip
_WITHOUT_EFFECT: Final = ("offline", "price", "plot", "corrections")


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
    is_kept = options.switch("--keep", keep)
    if not files:
        if _is_given(context, "keep"):
            raise WorkloadError(f"--keep {keep} is for --from-benchmark FILE; leave it out")
        return None
    _check_options(context)
    from dsocr_analyze.timing.runtimes import server_named
    from dsocr_analyze.timing.server_benchmarks.comparison import (
        check_engine,
        server_of,
        version_of,
    )
    from dsocr_analyze.timing.server_benchmarks.reading import read_benchmarks

    benchmarks = [each for file in files for each in read_benchmarks(file)]
    server, version = context.params["server"], context.params["server_version"]
    if not _is_given(context, "server"):
        server = server_of(benchmarks[0], server)
    server = server_named(server).name
    for each in benchmarks:
        check_engine(each, server)
    versions = list(dict.fromkeys(version_of(each, version) for each in benchmarks))
    if len(versions) > 1:
        raise BenchmarkError(
            f"the benchmarks are of several versions ({', '.join(versions)}); give those of one"
            " version at a time, and server_version for files that do not contain it",
            arguments=["server_version"],
        )
    return MeasuredServer(benchmarks, server, versions[0], is_kept)


def _is_given(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _check_options(context: typer.Context) -> None:
    """Raise for options that contradict a benchmark or would have no effect."""
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
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in (*_SAID_BY_FILES, *_WITHOUT_EFFECT) and _is_given(context, name):
            why = "the file gives it" if name in _SAID_BY_FILES else "it has no effect there"
            option = parameter.opts[0]
            raise WorkloadError(f"leave out {option} with --from-benchmark: {why}")


def show(
    context: typer.Context,
    measured: MeasuredServer,
    request: TimeRequest,
    directory: ModelDirectory,
    workload: Workload,
    output_format: str,
) -> None:
    """Print predicted and measured figures, and keep the correction if requested.

    Args:
        context: The command's context.
        measured: The benchmarks.
        request: The other options' request, for one GPU under a serving engine.
        directory: The model.
        workload: The page or pages of one request.
        output_format: Value of `--format`.

    Raises:
        BenchmarkError: A benchmark is of another model, or too far from its prediction.
        OutputError: The correction cannot be kept.
    """
    from dsocr_analyze.hardware.timed_device import Device
    from dsocr_analyze.report.server_benchmarks import benchmark_entry, benchmark_report
    from dsocr_analyze.timing.correction import Corrections
    from dsocr_analyze.timing.predict import TimedModel
    from dsocr_analyze.timing.server_benchmarks.comparison import Predictor, check_model

    [profile], [job] = request.profiles, request.jobs
    device, architecture = Device(profile), directory.architecture
    time_options.check_precision(device, job.precision)
    dtype = dtype_named(context.params["dtype"])
    model = TimedModel(architecture, directory.dimensions(), dtype, False, device)
    predictor = Predictor(model, workload, job)
    named = _is_given(context, "model") or _is_given(context, "arch")
    notes = [check_model(each, architecture, is_given=named) for each in measured.benchmarks]
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = [predictor.kept(each, measured.version, when) for each in measured.benchmarks]
    earlier = Corrections(tuple(kept_files.kept_benchmarks()), measured.version)
    corrections = earlier.with_these(kept)
    entries = [
        benchmark_entry(
            predictor.compared(each, corrections), record,
            [*filter(None, [note]), *predictor.doubts(each)], workload.prompt_pages,
        )
        for each, record, note in zip(measured.benchmarks, kept, notes, strict=True)
    ]  # fmt: skip
    source, used = directory.source(architecture.name), options.options_used(context)
    report = benchmark_report(source, workload, entries, kept=measured.is_kept, options=used)
    folder = None
    if measured.is_kept:
        context.obj.begin_writing()
        folder = kept_files.keep(kept)
    emit(output_format, lambda: report, lambda: _said(report, folder))


def _said(report: BenchmarkReport, folder: Path | None) -> Said:
    from dsocr_analyze.report.server_benchmarks import benchmark_tables
    from dsocr_analyze.report.time_report import headline
    from dsocr_analyze.report.time_tables import time_notes

    doubts = [f"{each.file}: {doubt}" for each in report.benchmarks for doubt in each.doubts]
    where = (
        "corrections not kept" if folder is None else f"corrections kept in {visible(str(folder))}"
    )
    notes = assumptions(time_notes(each.time for each in report.benchmarks))
    opening = headline(report.model, report.workload)
    return Said(opening, benchmark_tables(report), [Lines("Notes", [*doubts, where]), notes])
