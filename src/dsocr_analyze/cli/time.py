"""`dsocr-analyze time`: seconds of a page, pages per second, and money."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import completion, options, page_options, server_benchmarks, time_options
from dsocr_analyze.cli.printing import Said, assumptions, emit
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.cli.words import in_options, print_config_findings, warn_of_sizes
from dsocr_analyze.errors import DeviceError, WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.report.opening import Options
    from dsocr_analyze.report.time_report import TimeReport
    from dsocr_analyze.timing.prediction import TimeEntry
    from dsocr_analyze.workload import Workload

__all__ = ["time"]

GpuArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GPU",
        autocompletion=completion.all_gpus,
        help="GPUs, named as in `dsocr-analyze devices`. Default: all of them.",
    ),
]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="Throughput and latency over concurrency, as FILE.png or FILE.svg. Needs the extra"
        " 'plot'.",
    ),
]


@time_options.of_a_page(gpu="named_gpus", runtime="serving", concurrency="1,4,16")
@page_options.of_a_page("batch_size")
def time(
    context: typer.Context,
    gpu: GpuArgument = None,
    model: str | None = None,
    arch: str | None = None,
    config: Path | None = None,
    sliding_window: int | None = None,
    dtype: str = "bfloat16",
    use_flash_attn: int = 0,
    from_benchmark: server_benchmarks.FilesOption = None,
    keep: server_benchmarks.KeepOption = 1,
    output_format: str = "table",
    plot: PlotOption = None,
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Predict seconds of a page, pages per second and money on a GPU."""
    options.check_files(None, plot)
    measured = server_benchmarks.benchmarks_given(context, from_benchmark, keep=keep)
    directory = page_options.described_model(model, arch, config, sliding_window)
    print_config_findings(context, directory, by_closed_forms=True)
    workload = page_options.workload_of(context, directory)
    warn_of_sizes(context, directory, workload)
    gpus = options.gpu_names(gpu, context.params["named_gpus"])
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    request = time_options.request_from(
        context, gpus or _all_gpus(), server=None if measured is None else measured.server
    )
    if measured is not None:
        server_benchmarks.show(context, measured, request, directory, workload, output_format)
        return
    entries = request.entries(
        directory.architecture, directory.dimensions(), workload, dtype=dtype,
        flash_attention=flash_attention, leave_out=None if gpus else _say_left_out,
    )  # fmt: skip
    report = _report(directory, workload, entries, options.options_used(context))
    if plot is not None:
        from dsocr_analyze.analytic import attention_name
        from dsocr_analyze.pictures.throughput import throughput_picture

        attention = attention_name(flash_attention=flash_attention)
        context.obj.begin_writing()
        throughput_picture(report, dtype, attention, config).save(plot)
    emit(output_format, lambda: report, lambda: _said(report, plot))


def _all_gpus() -> list[str]:
    from dsocr_analyze.hardware.devices import gpu_catalogue

    return list(gpu_catalogue())


def _report(
    directory: ModelDirectory,
    workload: Workload,
    entries: Sequence[TimeEntry],
    used: Options,
) -> TimeReport:
    from dsocr_analyze.report.time_report import time_report

    if not entries:
        raise WorkloadError("no GPU of the catalogue supports these types; give others")
    return time_report(directory.source(directory.architecture.name), workload, entries, used)


def _say_left_out(error: DeviceError) -> None:
    # When predicting for the whole catalogue, a GPU may lack a data type or an attention kernel.
    complain(f"left out: {in_options(str(error), error.arguments)}")


def _said(report: TimeReport, written: Path | None) -> Said:
    from dsocr_analyze.report.time_report import headline
    from dsocr_analyze.report.time_tables import overview, time_notes, time_tables

    tables = time_tables(report.time) if len(report.time) <= 4 else [overview(report.time)]
    opening = headline(report.model, report.workload)
    return Said(opening, tables, [assumptions(time_notes(report.time))], [written])
