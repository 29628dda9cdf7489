"""`dsocr-analyze time`: seconds of a page, pages per second, and money.

Or, with `--from-benchmark`, the predictions beside what was measured on a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.analysis import Engine, TimeRequest, check_precision
from dsocr_analyze.cli import (
    completion,
    kept_files,
    options,
    page_options,
    printing,
    streams,
    time_options,
    words,
)
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.errors import BenchmarkError, DeviceError, WorkloadError
from dsocr_analyze.escaping import visible
from dsocr_analyze.workload import Workload

if TYPE_CHECKING:
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.report.pictures.picture import Picture
    from dsocr_analyze.timing.prediction import TimeEntry
    from dsocr_analyze.timing.server_benchmarks.benchmark import ServerBenchmark

__all__ = ["time"]


@time_options.of_a_page(gpu="named_gpus", runtime="serving", concurrency="1,4,16")
@page_options.of_a_page("batch_size")
def time(
    context: typer.Context,
    gpu: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GPU",
            autocompletion=completion.all_gpus,
            help="GPUs, named as in `dsocr-analyze devices`. Default: all of them.",
        ),
    ] = None,
    model: str | None = None,
    arch: str | None = None,
    config: Path | None = None,
    sliding_window: int | None = None,
    dtype: str = "bfloat16",
    use_flash_attn: int = 0,
    from_benchmark: Annotated[
        list[Path] | None,
        options.option(
            "FILE",
            "Compare with a server's benchmark on the one named GPU, and correct later predictions"
            " by it: a result of vllm bench serve, sglang.bench_serving, genai-perf or AIPerf. May"
            " be given several times.",
        ),
    ] = None,
    keep: Annotated[
        int,
        options.option(
            ("0", "1"), "Whether to keep the correction of --from-benchmark for later predictions."
        ),
    ] = 1,
    output_format: str = "table",
    plot: Annotated[
        Path | None,
        options.option(
            "FILE",
            "Throughput and latency over concurrency, as FILE.png or FILE.svg. Needs the extra"
            " 'plot'.",
        ),
    ] = None,
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Predict seconds of a page, pages per second and money on a GPU."""
    options.check_files(None, plot)
    benchmarks, server, version = _benchmarks_given(context, from_benchmark or (), keep)
    directory = page_options.described_model(model, arch, config, sliding_window)
    words.print_config_findings(context, directory, by_closed_forms=True)
    workload = page_options.workload_of(context, directory)
    words.warn_of_sizes(context, directory, workload)
    gpus = options.gpu_names(gpu, context.params["named_gpus"])
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    from dsocr_analyze.hardware.devices import gpu_catalogue

    request = time_options.request_from(context, gpus or [*gpu_catalogue()], server=server)
    if benchmarks:
        _compare(context, benchmarks, version, request, directory, workload)
        return
    engine = Engine("analytic", directory, dtype, flash_attention, time=request)
    entries = engine.entries(workload, None if gpus else _leave_out)
    if not entries:
        raise WorkloadError("no GPU of the catalogue supports these types; give others")
    _show(context, engine, workload, entries)


def _leave_out(error: DeviceError) -> None:
    # When predicting for the whole catalogue, a GPU may lack a data type or an attention kernel.
    streams.complain(f"left out: {words.in_options(str(error), error.arguments)}")


def _show(
    context: typer.Context, engine: Engine, workload: Workload, entries: Sequence[TimeEntry]
) -> None:
    from dsocr_analyze.report import opening, time_tables

    report = time_tables.TimeReport(
        schema_version=opening.SCHEMA_VERSION,
        command="time",
        options=options.options_used(context),
        model=engine.directory.source(engine.directory.architecture.name),
        workload=opening.workload_document(workload),
        time=tuple(entries),
    )

    def said() -> printing.Said:
        has_few = len(entries) <= 4
        return printing.Said(
            time_tables.headline(report.model, report.workload),
            time_tables.time_tables(entries) if has_few else [time_tables.overview(entries)],
            [printing.assumptions(time_tables.time_notes(entries))],
            [context.params["plot"]],
        )

    def picture() -> Picture:
        from dsocr_analyze.analytic import attention_name
        from dsocr_analyze.report.pictures.throughput import throughput_picture

        attention = attention_name(flash_attention=engine.flash_attention)
        return throughput_picture(report, engine.dtype, attention, context.params["config"])

    printing.emit(context, report, said, picture=picture)


# --- a server's benchmarks ------------------------------------------------------------------------

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


def _benchmarks_given(
    context: typer.Context, files: Sequence[Path], keep: int
) -> tuple[Sequence[ServerBenchmark], str | None, str]:
    """The benchmarks in the files of `--from-benchmark`, their server and its version.

    Raises:
        BenchmarkError: A file is not a benchmark, or they differ in engine or version.
        WorkloadError: Other options contradict them.
    """
    options.switch("--keep", keep)
    given, asked = options.given_options(context), context.params
    if not files:
        if "keep" in given:
            raise WorkloadError(f"--keep {keep} is for --from-benchmark FILE; leave it out")
        return [], None, ""
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
    from dsocr_analyze.timing.runtimes import server_named
    from dsocr_analyze.timing.server_benchmarks import comparison, reading

    benchmarks = [each for file in files for each in reading.read_benchmarks(file)]
    named = asked["server"]
    server = server_named(
        named if "server" in given else comparison.server_of(benchmarks[0], named)
    ).name
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


def _compare(
    context: typer.Context,
    benchmarks: Sequence[ServerBenchmark],
    version: str,
    request: TimeRequest,
    directory: ModelDirectory,
    workload: Workload,
) -> None:
    """Print predicted and measured figures, and keep the correction if requested.

    Args:
        context: The command's context.
        benchmarks: The benchmarks.
        version: Version of their server.
        request: The other options' request, for one GPU under a serving engine.
        directory: The model.
        workload: The page or pages of one request.

    Raises:
        BenchmarkError: A benchmark is of another model, or too far from its prediction.
        OutputError: The correction cannot be kept.
    """
    from dsocr_analyze.report import measured, opening, time_tables
    from dsocr_analyze.timing.correction import Corrections
    from dsocr_analyze.timing.predict import TimedModel
    from dsocr_analyze.timing.server_benchmarks.comparison import Predictor, check_model

    [device], [job], architecture = request.profiles, request.jobs, directory.architecture
    check_precision(device, job.precision)
    dtype = dtype_named(context.params["dtype"])
    model = TimedModel(architecture, directory.dimensions(), dtype, False, device)
    predictor = Predictor(model, workload, job)
    named = not {"model", "arch"}.isdisjoint(options.given_options(context))
    notes = [check_model(each, architecture, is_given=named) for each in benchmarks]
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
        workload=opening.workload_document(workload),
        benchmarks=entries,
        correction=entries[0].time.assumptions.correction,
        kept=is_kept,
    )
    where = "corrections not kept"
    if is_kept:
        context.obj.begin_writing()
        where = f"corrections kept in {visible(str(kept_files.keep(kept)))}"
    doubts = [f"{each.file}: {doubt}" for each in entries for doubt in each.doubts]
    said = printing.Said(
        time_tables.headline(report.model, report.workload),
        measured.benchmark_tables(report),
        [
            printing.Lines("Notes", [*doubts, where]),
            printing.assumptions(time_tables.time_notes(each.time for each in entries)),
        ],
    )
    printing.emit(context, report, lambda: said)
