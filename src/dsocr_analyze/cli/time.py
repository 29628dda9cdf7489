"""`dsocr-analyze time`: seconds of a page, pages per second, and money.

Or, with `--from-benchmark`, the predictions beside what was measured on a server.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.analysis import Engine
from dsocr_analyze.analytic import ATTENTION_NAMES
from dsocr_analyze.cli import options, page_options, printing, streams, words
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.report import opening, time_tables

if TYPE_CHECKING:
    from dsocr_analyze.architectures import PageRequest
    from dsocr_analyze.pictures.picture import Picture

__all__ = ["time"]

_OF_TIME: Final[options.Added] = {
    "named_gpus": options.SECONDS_OF_A_PAGE["gpu"],
    "runtime": options.SECONDS_OF_A_PAGE["runtime"],
    "concurrency": (Annotated[str, "concurrencies"], "1,4,16"),
    **options.OF_PREDICTIONS,
}
_BenchmarkOption = Annotated[
    list[Path] | None,
    options.option(
        "FILE",
        "Compare with a server's benchmark on the one named GPU, and correct later predictions"
        " by it: a result of vllm bench serve, sglang.bench_serving, genai-perf or AIPerf. May"
        " be given several times.",
    ),
]
_KeepOption = Annotated[
    int,
    options.option(
        options.SWITCH,
        "Whether to keep the correction of --from-benchmark for later predictions.",
        callback=options.switch,
    ),
]


def time(
    context: typer.Context,
    gpu: Annotated[
        list[str] | None,
        options.option(
            "GPU", "GPUs, named as in `dsocr-analyze devices`. Default: all of them.",
            made=typer.Argument, completes=options.all_gpus, is_list=True,
        ),
    ] = None,
    model: str | None = None,
    arch: str | None = None,
    config: Path | None = None,
    sliding_window: int | None = None,
    dtype: str = "bfloat16",
    use_flash_attn: int = 0,
    of_page: options.Added = page_options.SIZES | page_options.PROMPT | page_options.NEW_TOKENS
    | page_options.PROMPT_PAGES,
    from_benchmark: _BenchmarkOption = None,
    keep: _KeepOption = 1,
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
    of_time: options.Added = _OF_TIME,
) -> None:  # fmt: skip
    """Predict seconds of a page, pages per second and money on a GPU."""
    from dsocr_analyze.cli.time_requests import request_from

    options.check_files(None, plot)
    compares, server = None, None
    if from_benchmark:
        from dsocr_analyze.cli import benchmarks

        found, server, version = benchmarks.measured_in(context, from_benchmark)
        compares = partial(benchmarks.compare, context, found, version)
    elif "keep" in options.given_options(context):
        raise WorkloadError(f"--keep {keep} is for --from-benchmark FILE; leave it out")
    directory = page_options.model_directory_from(
        model, arch, config, sliding_window=sliding_window
    )
    words.print_config_findings(context, directory, by_closed_forms=True)
    asked = page_options.page_request(context.params, directory)
    words.warn(context, directory.architecture.warnings_of(asked.workload))
    gpus = options.gpu_names(gpu, context.params["named_gpus"])
    request = request_from(context, gpus or [*options.all_gpus()], server=server)
    if compares is not None:
        compares(request, directory, asked)
    else:
        _show(context, Engine(directory, time=request), asked, is_of_all=not gpus)


def _show(context: typer.Context, engine: Engine, asked: PageRequest, *, is_of_all: bool) -> None:
    entries = engine.entries(asked, _leave_out if is_of_all else None)
    if not entries:
        raise WorkloadError("no GPU of the catalogue supports these types; give others")
    report = time_tables.TimeReport(
        schema_version=opening.SCHEMA_VERSION,
        command="time",
        options=options.options_used(context),
        model=engine.directory.source(engine.directory.architecture.name),
        workload=opening.workload_document(asked.workload),
        time=tuple(entries),
    )

    def picture() -> Picture:
        from dsocr_analyze.pictures.stage_chart import throughput_picture

        attention = ATTENTION_NAMES[asked.flash_attention]
        return throughput_picture(report, asked.dtype, attention, context.params["config"])

    said = printing.Said(
        time_tables.headline(report.model, report.workload),
        [time_tables.overview(entries)] if len(entries) > 4 else time_tables.time_tables(entries),
        [printing.assumptions(time_tables.time_notes(entries))],
        [context.params["plot"]],
    )
    printing.emit(context, report, said, picture=picture)


def _leave_out(error: DeviceError) -> None:
    # When predicting for the whole catalogue, a GPU may lack a data type or an attention kernel.
    streams.complain(f"left out: {words.in_options(str(error), error.arguments)}")
