"""The main command: one page, its report on the terminal and in two files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dsocr_analyze.analysis import ENGINES, Engine
from dsocr_analyze.cli import html, options, page_options, time_options
from dsocr_analyze.cli.printing import emit
from dsocr_analyze.cli.streams import announced_steps
from dsocr_analyze.cli.words import warn
from dsocr_analyze.errors import DeviceError, WorkloadError

__all__ = ["analyze"]

DEFAULT_OUTPUT = Path("tmp/dsocr-static-ops")


def _print_version(wanted: bool) -> None:
    if wanted:
        from dsocr_analyze.version import VERSION

        print(f"dsocr-analyze {VERSION}")
        raise typer.Exit


OutputOption = Annotated[
    Path,
    typer.Option(
        "--output", metavar="DIR", help="Folder for static_compute.json and static_compute.md."
    ),
]
FullOption = Annotated[
    bool,
    typer.Option(
        "--full",
        help="Print all tables below the answer: stages, memory, time, modules, operators.",
    ),
]
VersionOption = Annotated[
    bool,
    typer.Option(
        "--version",
        help="Print the version and exit.",
        is_eager=True,
        expose_value=False,
        callback=_print_version,
    ),
]


@time_options.of_a_page(runtime="eager", concurrency="1")
@page_options.of_a_page()
def analyze(
    context: typer.Context,
    model: str | None = None,
    arch: str | None = None,
    config: Path | None = None,
    stages: Path | None = None,
    hf_config: Path | None = None,
    sliding_window: int | None = None,
    trust_remote_code: bool = False,
    device: str = "meta",
    dtype: str = "bfloat16",
    use_flash_attn: int = 0,
    engine: str = "trace",
    output: OutputOption = DEFAULT_OUTPUT,
    output_format: str = "table",
    full: FullOption = False,
    json_file: str | None = None,
    html_file: html.HtmlOption = None,
    quiet: bool = False,
    strict: bool = False,
    version: VersionOption = False,
    debug: bool = False,
) -> None:
    """Count one page: parameters, FLOPs, bytes and activations of every stage."""
    if context.invoked_subcommand is not None:
        _refuse_before(context)
        return
    engine = options.chosen("--engine", engine, ENGINES)
    if engine == "analytic" and device != "meta":
        raise DeviceError(f"--engine analytic runs nothing; leave out --device {device}")
    # The analytic engine reads the directory's config without executing its code.
    directory = page_options.model_directory_from(
        model, arch, config, trust_remote_code=trust_remote_code or engine == "analytic",
        sliding_window=sliding_window, stages=stages, hf_config=hf_config,
    )  # fmt: skip
    workload = page_options.page_request(context, directory).workload(directory.architecture)
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    options.prepare_output(output, DEFAULT_OUTPUT)
    html.check_html(html_file)
    asked = time_options.request_with_report(context)
    counts = Engine(
        engine, directory, dtype, flash_attention, device, trust_remote_code, asked,
        announced_steps,
    )  # fmt: skip
    report = counts.report(workload)
    also = None if json_file in (None, "-") else Path(str(json_file))
    files = {output / "static_compute.json": "json", output / "static_compute.md": "markdown",
             html_file: "html"}  # fmt: skip
    written = tuple(dict.fromkeys(filter(None, (*files, also))))
    page = partial(html.report_page, report, counts, workload, context.params["corrections"])
    from dsocr_analyze.report.markdown import ReadableReport

    readable = ReadableReport(report, written, full, ": --full", page)
    emit(context, report, lambda: readable, files=files)
    warn(context, report.warnings)


def _refuse_before(context: typer.Context) -> None:
    """Raise for options given before a command, where they would have no effect."""
    for option in options.given_options(context).values():
        if option != "--debug":
            raise WorkloadError(
                f"{option} before {context.invoked_subcommand} has no effect; give it after the"
                " command"
            )
