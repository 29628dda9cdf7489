"""`dsocr-analyze time`: seconds of a page, pages per second, and money.

Or, with `--from-benchmark`, the predictions beside what was measured on a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.analysis import Engine
from dsocr_analyze.analytic import ATTENTION_NAMES
from dsocr_analyze.cli import help_text, kept_files, options, page_options, printing, words
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.escaping import visible
from dsocr_analyze.hardware.devices import rated_gpus
from dsocr_analyze.kernels import dtype_named
from dsocr_analyze.report import opening, time_tables

if TYPE_CHECKING:
    from dsocr_analyze.architectures import PageRequest
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.pictures.picture import Picture
    from dsocr_analyze.timing.predict import TimeRequest
    from dsocr_analyze.timing.server_benchmarks.reading import ServerBenchmark

_QUANTITIES: Final = ("throughput", "roofline")
_OF_TIME: Final[options.Added] = {
    "named_gpus": options.SECONDS_OF_A_PAGE["gpu"],
    "runtime": options.SECONDS_OF_A_PAGE["runtime"],
    "concurrency": (Annotated[str, "concurrencies"], "1,4,16"),
    "quantity": (
        Annotated[
            str | None,
            options.option(
                _QUANTITIES,
                f"What is plotted. Default: {_QUANTITIES[0]}.",
                callback=options.in_any_case,
                group=help_text.OUTPUT,
            ),
        ],
        None,
    ),
    **options.OF_PREDICTIONS,
    "workers": options.PLANNED_WORKERS,
}
_LISTED: Final = 4
"""With more predictions, a table of one row each replaces the tables of each."""

_BenchmarkOption = Annotated[
    list[Path] | None,
    options.option(
        "FILE",
        "Compare with a server's benchmark on the one named GPU, and correct later predictions"
        " by it: a result of vllm bench serve, sglang.bench_serving, genai-perf or AIPerf. Or"
        " take the CPU's time per page from one of vllm bench mm-processor. May be given several"
        " times.",
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
            "GPU", "GPUs, named as in `dsocr-analyze devices`. Default: all with known rates.",
            made=typer.Argument, completes=options.all_gpus, is_list=True,
        ),
    ] = None,
    of_model: options.Added = page_options.DESCRIBED | page_options.WINDOW | page_options.TYPES,
    of_page: options.Added = page_options.SIZES | page_options.PROMPT | page_options.NEW_TOKENS
    | page_options.PROMPT_PAGES,
    from_benchmark: _BenchmarkOption = None,
    keep: _KeepOption = 1,
    output_format: str = "table",
    plot: Annotated[
        Path | None,
        options.option(
            "FILE",
            "Throughput and latency over concurrency, or the roofline of the stages, as FILE.png or"
            " FILE.svg. Needs the extra 'plot'.",
            group=help_text.OUTPUT,
        ),
    ] = None,
    assumptions: bool = False,
    strict: bool = False,
    debug: bool = False,
    of_time: options.Added = _OF_TIME,
) -> None:  # fmt: skip
    """Predict seconds of a page, pages per second and money on a GPU."""
    from dsocr_analyze.cli.time_requests import priced_gpus, request_from

    printing.check_files(None, plot)
    benchmarks, server, version = (
        _measured_in(context, from_benchmark) if from_benchmark else ([], None, "")
    )
    if server is None and "keep" in options.given_options(context):
        whose = "a server's " if benchmarks else ""
        raise WorkloadError(f"--keep {keep} is for {whose}--from-benchmark FILE; leave it out")
    given = context.params
    directory = page_options.directory_asked(given)
    words.print_config_findings(context, directory, by_closed_forms=given["stages"] is None)
    asked = page_options.page_request(given, directory)
    words.warn(context, directory.architecture.warnings_of(asked.workload))
    gpus = options.gpu_names(gpu, given["named_gpus"]) or priced_gpus(given["price"])
    request = request_from(context, gpus or rated_gpus(), server=server)
    if all(job.runtime == "serving" for job in request.jobs):
        page_options.note_attention(context)
    if benchmarks:
        from dsocr_analyze.timing.server_benchmarks import comparison

        directory.dimensions()  # raises ConfigError for a described model
        named = not {"model", "arch"}.isdisjoint(options.given_options(context))
        benchmarks = [
            comparison.of_model(each, directory.architecture, is_given=named) for each in benchmarks
        ]
        request = comparison.with_preprocessing(
            request, benchmarks, directory.architecture, asked.workload_of_page
        )
    if server is not None:
        _compare(context, benchmarks, version, request, directory, asked)
    else:
        _show(context, Engine(directory, time=request), asked, is_of_all=not gpus)


def _show(context: typer.Context, engine: Engine, asked: PageRequest, *, is_of_all: bool) -> None:
    given = context.params
    if given["quantity"] is not None and given["plot"] is None:
        raise WorkloadError(
            f"--quantity {given['quantity']} is for a picture; give --plot FILE too"
        )
    left_out = words.LeftOut()
    entries = engine.entries(asked, left_out if is_of_all else None)
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
        from dsocr_analyze.pictures.stage_chart import roofline_picture, throughput_picture

        shown = asked.dtype, ATTENTION_NAMES[asked.flash_attention], given["config"]
        if given["quantity"] != "roofline":
            return throughput_picture(report, *shown)
        profiles = engine.time.profiles if engine.time else ()
        return roofline_picture(report, {each.gpu.name: each.gpu for each in profiles}, *shown)

    is_long = len(entries) > _LISTED
    answers = time_tables.time_answers(entries, report.workload)
    said = printing.Said(
        "\n".join(
            [
                *(wordings[0] for wordings in answers[: 1 if is_long else None]),
                *(
                    f"{each.title}: {each.assumptions.limits}"
                    for each in entries[: 1 if is_long else None]
                    if each.assumptions.limits
                ),
                time_tables.headline(report.model, report.workload),
            ]
        ),
        [time_tables.overview(entries, report.workload)]
        if is_long
        else time_tables.time_tables(entries, report.workload),
        [printing.time_assumptions(context, entries)],
        [given["plot"]],
    )
    printing.emit(context, report, said, picture=picture)
    left_out.say(context)


# --- benchmarks of servers ---------------------------------------------------------------------


_NOT_BESIDE: Final = {
    **dict.fromkeys(
        ("concurrency", "max_new_tokens", "new_tokens_from", "mean_new_tokens", "share_at_limit"),
        "the file gives it",
    ),
    **dict.fromkeys(("offline", "price", "plot", "corrections"), "it has no effect there"),
}
"""Options to leave out beside a benchmark, and why."""


def _measured_in(
    context: typer.Context, files: Sequence[Path]
) -> tuple[list[ServerBenchmark], str | None, str]:
    """The benchmarks in some files; of servers among them, which one it was, and its version.

    Raises:
        BenchmarkError: A file is no benchmark, or they differ in engine or version.
        WorkloadError: Options contradict them.
    """
    from dsocr_analyze.timing.server_benchmarks.comparison import measured_server
    from dsocr_analyze.timing.server_benchmarks.reading import read_benchmarks

    given, asked = options.given_options(context), context.params
    if asked["runtime"] != "serving":
        raise WorkloadError(
            f"--from-benchmark is of a serving engine; leave out --runtime {asked['runtime']}"
        )
    benchmarks = [each for file in files for each in read_benchmarks(file)]
    has_server = any(each.is_served for each in benchmarks)
    if has_server and len(gpus := options.gpu_names(asked["gpu"], asked["named_gpus"])) != 1:
        raise WorkloadError(
            "--from-benchmark needs the one GPU that was measured, as in: dsocr-analyze time"
            f" h100-sxm --from-benchmark FILE; {len(gpus)} are named"
        )
    beside = _NOT_BESIDE if has_server else {}
    if not all(each.is_served for each in benchmarks):
        beside = {**beside, "preprocess_ms": "the file gives it"}
    if name := next((each for each in given if each in beside), None):
        raise WorkloadError(f"leave out {given[name]} with --from-benchmark: {beside[name]}")
    server, version = measured_server(
        benchmarks, asked["server"], asked["server_version"], is_given="server" in given
    )
    return benchmarks, server if has_server else None, version


def _compare(
    context: typer.Context,
    benchmarks: Sequence[ServerBenchmark],
    version: str,
    request: TimeRequest,
    directory: ModelDirectory,
    asked: PageRequest,
) -> None:
    """Prints predictions on one GPU beside what was measured; keeps corrections if asked.

    Raises:
        BenchmarkError: A benchmark is too far from its prediction.
        OutputError: The corrections cannot be kept.
    """
    from dsocr_analyze.report import measured
    from dsocr_analyze.timing.correction import Corrections
    from dsocr_analyze.timing.server_benchmarks.comparison import Comparison
    from dsocr_analyze.timing.serving import TimedModel

    [device], [job], architecture = request.profiles, request.jobs, directory.architecture
    model = TimedModel(
        architecture, directory.dimensions(), dtype_named(asked.dtype), False, device
    )
    page, served = asked.workload_of_page, filter(lambda each: each.is_served, benchmarks)
    compared = [Comparison(each, model, page, job) for each in served]
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = [each.kept(version, when) for each in compared]
    every = {each.id: each for each in (*kept_files.kept_benchmarks(), *kept)}
    known = Corrections(tuple(every.values()), version)
    entries = tuple(each.entry(record, known) for each, record in zip(compared, kept, strict=True))
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
            printing.time_assumptions(context, [each.time for each in entries]),
        ],
    ))  # fmt: skip
