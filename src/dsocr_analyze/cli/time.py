"""`dsocr-analyze time`: seconds of a page, pages per second, and money."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import options, server_benchmarks, time_options
from dsocr_analyze.cli.many_options import check_files
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.cli.words import in_options
from dsocr_analyze.errors import DeviceError, WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.report.time_entry import TimeEntry
    from dsocr_analyze.report.time_report import TimeReport
    from dsocr_analyze.workload import Workload

__all__ = ["time"]

FORMATS = ("table", "markdown", "json")

GpuArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GPU", help="GPUs, as `dsocr-analyze devices` names them. Default: all of them."
    ),
]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="|".join(FORMATS), help="What is printed.")
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


def time(
    context: typer.Context,
    gpu: GpuArgument = None,
    model: options.ModelOption = None,
    arch: options.ArchOption = None,
    config: options.ConfigOption = None,
    sliding_window: options.SlidingWindowOption = None,
    dtype: options.DtypeOption = "bfloat16",
    use_flash_attn: options.FlashOption = 0,
    mode: options.ModeOption = None,
    base_size: options.BaseSizeOption = None,
    image_size: options.ImageSizeOption = None,
    crop_mode: options.CropModeOption = None,
    page: options.PageOption = None,
    image: options.ImageOption = None,
    seq_len: options.SeqLenOption = None,
    text_tokens: options.TextTokensOption = None,
    prompt_pages: options.PromptPagesOption = 1,
    max_new_tokens: options.NewTokensOption = 1024,
    runtime: time_options.RuntimeOption = "serving",
    server: time_options.ServerOption = "vllm",
    concurrency: time_options.ConcurrencyOption = "1,4,16",
    preprocess_ms: time_options.PreprocessOption = None,
    workers: time_options.WorkersOption = 1,
    price: time_options.PriceOption = None,
    weights_dtype: time_options.WeightsDtypeOption = None,
    kv_dtype: time_options.KvDtypeOption = None,
    new_tokens_from: time_options.NewTokensFromOption = None,
    mean_new_tokens: time_options.MeanTokensOption = None,
    share_at_limit: time_options.LimitShareOption = 0.0,
    offline: time_options.OfflineOption = False,
    reserved: time_options.ReservedOption = 0.1,
    profile: time_options.ProfileOption = None,
    corrections: time_options.CorrectionsOption = 1,
    server_version: time_options.ServerVersionOption = None,
    from_benchmark: server_benchmarks.FilesOption = None,
    keep: server_benchmarks.KeepOption = 1,
    output_format: FormatOption = "table",
    plot: PlotOption = None,
    debug: options.DebugOption = False,
) -> None:
    """Predict seconds of a page, pages per second and money on a GPU."""
    options.check_choice("--format", output_format, FORMATS)
    check_files(None, plot)
    measured = server_benchmarks.benchmarks_given(context, from_benchmark, keep=keep)
    directory = options.described_model(model, arch, config, sliding_window)
    options.say_of_config(directory, by_closed_forms=True)
    workload = options.workload_from(
        directory.architecture, mode=mode, base_size=base_size, image_size=image_size,
        crop_mode=crop_mode, page=page, image=image, seq_len=seq_len, text_tokens=text_tokens,
        batch_size=1, max_new_tokens=max_new_tokens, prompt_pages=prompt_pages,
    )  # fmt: skip
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    request = time_options.time_request(
        gpu or _all_gpus(), profile=profile, runtime=runtime,
        server=server if measured is None else measured.server, concurrency=concurrency,
        preprocess_ms=preprocess_ms, workers=workers, price=price, weights_dtype=weights_dtype,
        kv_dtype=kv_dtype, new_tokens_from=new_tokens_from, mean_new_tokens=mean_new_tokens,
        share_at_limit=share_at_limit, reserved=reserved, offline=offline, corrections=corrections,
        server_version=None if measured else server_version, max_new_tokens=max_new_tokens,
    )  # fmt: skip
    if measured is not None:
        server_benchmarks.show(context, measured, request, directory, workload, output_format)
        return
    entries = request.entries(
        directory.architecture, directory.dimensions(), workload, dtype=dtype,
        flash_attention=flash_attention, leave_out=None if gpu else _say_left_out,
    )  # fmt: skip
    _show(context, _report(directory, workload, entries), output_format, plot)


def _all_gpus() -> list[str]:
    from dsocr_analyze.hardware.devices import gpu_catalogue

    return list(gpu_catalogue())


def _report(
    directory: ModelDirectory, workload: Workload, entries: Sequence[TimeEntry]
) -> TimeReport:
    from dsocr_analyze.report.time_report import time_report

    if not entries:
        raise WorkloadError("no GPU of the catalogue has these types; give other ones")
    return time_report(directory.source(directory.architecture.name), workload, entries)


def _plot(context: typer.Context, file: Path, report: TimeReport) -> None:
    from dsocr_analyze.columns.throughput_plot import plot_throughput

    context.obj.begin_writing()
    plot_throughput(file, report)


def _say_left_out(error: DeviceError) -> None:
    # One of the whole catalogue may lack a type or an attention kernel.
    complain(f"left out: {in_options(str(error), error.arguments)}")


def _show(
    context: typer.Context, report: TimeReport, output_format: str, plot: Path | None
) -> None:
    if plot is not None:
        _plot(context, plot, report)
    _print(report, output_format, written=plot)


def _print(report: TimeReport, output_format: str, *, written: Path | None) -> None:
    if output_format == "json":
        from dsocr_analyze.report.time_report import report_text

        sys.stdout.write(report_text(report))
        return
    from dsocr_analyze.report.time_report import headline
    from dsocr_analyze.report.time_tables import overview, time_notes, time_tables

    tables = time_tables(report.time) if len(report.time) <= 4 else [overview(report.time)]
    notes = list(time_notes(report.time))
    if output_format == "markdown":
        from dsocr_analyze.report.markdown import markdown_table

        parts = [headline(report.model, report.workload)]
        for table in tables:
            parts += [f"## {table.title}", markdown_table(table)]
        parts += ["## Assumptions", "\n".join(f"- {note}" for note in notes)]
        sys.stdout.write("\n\n".join(parts) + "\n")
        return
    from dsocr_analyze.cli.printing import print_assumptions, print_table, print_text

    print_text(headline(report.model, report.workload))
    for table in tables:
        print_table(table)
    print_assumptions(notes)
    if written is not None:
        print(f"wrote {written}")
