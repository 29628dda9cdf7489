"""`dsocr-analyze time`: seconds of a page, pages per second, and money."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.analysis import Engine
from dsocr_analyze.cli import completion, options, page_options, server_benchmarks, time_options
from dsocr_analyze.cli.printing import Said, assumptions, emit
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.cli.words import in_options, print_config_findings, warn_of_sizes
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.workload import Workload

if TYPE_CHECKING:
    from dsocr_analyze.pictures.picture import Picture
    from dsocr_analyze.timing.prediction import TimeEntry

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
    from_benchmark: server_benchmarks.FilesOption = None,
    keep: server_benchmarks.KeepOption = 1,
    output_format: str = "table",
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Throughput and latency over concurrency, as FILE.png or FILE.svg. Needs the extra"
            " 'plot'.",
        ),
    ] = None,
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
    from dsocr_analyze.hardware.devices import gpu_catalogue

    request = time_options.request_from(
        context, gpus or [*gpu_catalogue()], server=None if measured is None else measured.server
    )
    if measured is not None:
        server_benchmarks.show(context, measured, request, directory, workload)
        return
    engine = Engine("analytic", directory, dtype, flash_attention, time=request)
    entries = engine.entries(workload, None if gpus else _leave_out)
    if not entries:
        raise WorkloadError("no GPU of the catalogue supports these types; give others")
    _show(context, engine, workload, entries)


def _leave_out(error: DeviceError) -> None:
    # When predicting for the whole catalogue, a GPU may lack a data type or an attention kernel.
    complain(f"left out: {in_options(str(error), error.arguments)}")


def _show(
    context: typer.Context, engine: Engine, workload: Workload, entries: Sequence[TimeEntry]
) -> None:
    from dsocr_analyze.report import time_tables

    source = engine.directory.source(engine.directory.architecture.name)
    report = time_tables.time_report(source, workload, entries, options.options_used(context))

    def said() -> Said:
        has_few = len(entries) <= 4
        return Said(
            time_tables.headline(report.model, report.workload),
            time_tables.time_tables(entries) if has_few else [time_tables.overview(entries)],
            [assumptions(time_tables.time_notes(entries))],
            [context.params["plot"]],
        )

    def picture() -> Picture:
        from dsocr_analyze.analytic import attention_name
        from dsocr_analyze.pictures.throughput import throughput_picture

        attention = attention_name(flash_attention=engine.flash_attention)
        return throughput_picture(report, engine.dtype, attention, context.params["config"])

    emit(context, report, said, picture=picture)
