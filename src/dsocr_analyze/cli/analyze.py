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
    output: Annotated[Path, "reports"] = DEFAULT_OUTPUT,
    output_format: str = "table",
    full: bool = False,
    json_file: str | None = None,
    html_file: Path | None = None,
    quiet: bool = False,
    strict: bool = False,
    version: bool = False,
    debug: bool = False,
) -> None:
    """Count one page: parameters, FLOPs, bytes and activations of every stage."""
    if context.invoked_subcommand is not None:
        for option in options.given_options(context).values():
            if option != "--debug":
                raise WorkloadError(
                    f"{option} before {context.invoked_subcommand} has no effect; give it after the"
                    " command"
                )
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
    options.check_files(html=html_file)
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
    page = partial(html.report_page, report, counts, workload)
    from dsocr_analyze.report.markdown import ReadableReport

    readable = ReadableReport(report, written, full, ": --full", page)
    emit(context, report, lambda: readable, files=files)
    warn(context, report.warnings)
