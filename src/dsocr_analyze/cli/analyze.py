"""The main command: one page, its report on the terminal, in two files and as an HTML page."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.analysis import Engine
from dsocr_analyze.cli import options, page_options, printing, streams, words
from dsocr_analyze.errors import ConfigError, DeviceError, WorkloadError
from dsocr_analyze.output_files import prepare_directory
from dsocr_analyze.workload import PageWorkload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsocr_analyze.architectures import PageRequest
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.timing import TimeEntry
    from dsocr_analyze.timing.predict import TimeRequest

__all__ = ["analyze"]

DEFAULT_OUTPUT = Path("tmp/dsocr-static-ops")

_CURVE: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Default concurrencies of a curve."""

_OF_TIME: Final[options.Added] = {
    **options.SECONDS_OF_A_PAGE,
    "runtime": (Annotated[str, "runtimes"], "eager"),
}


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
    of_page: options.Added = page_options.OF_A_PAGE,
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
    of_time: options.Added = _OF_TIME,
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
    if engine == "analytic" and device != "meta":
        raise DeviceError(f"--engine analytic runs nothing; leave out --device {device}")
    # The analytic engine reads the directory's config without executing its code.
    directory = page_options.model_directory_from(
        model, arch, config, trust_remote_code=trust_remote_code or engine == "analytic",
        sliding_window=sliding_window, stages=stages, hf_config=hf_config,
    )  # fmt: skip
    asked = page_options.page_request(context.params, directory, engine=engine)
    _ = asked.workload  # raises before any work
    prepare_directory(output, may_lead_out=output != DEFAULT_OUTPUT)
    options.check_files(html=html_file)
    counts = Engine(
        directory, device, trust_remote_code, page_options.request_with_report(context),
        streams.announced_steps,
    )  # fmt: skip
    report = counts.report(asked)
    also = None if json_file in (None, "-") else Path(str(json_file))
    files = {output / "static_compute.json": "json", output / "static_compute.md": "markdown",
             html_file: "html"}  # fmt: skip
    written = tuple(dict.fromkeys(filter(None, (*files, also))))
    from dsocr_analyze.report.markdown import ReadableReport

    page = partial(_html, report, counts, asked, context.params["profile"])
    printing.emit(
        context, report, ReadableReport(report, written, full, ": --full", page), files=files
    )
    words.warn(context, report.warnings)


# --- the HTML page --------------------------------------------------------------------------------


def _html(
    report: Report, engine: Engine, asked: PageRequest, profile: Sequence[Path] | None
) -> str:
    from dsocr_analyze.cli import kept_files, time_requests
    from dsocr_analyze.report.html import render_html, report_contents, roofs_of

    profiles = list(kept_files.gpu_profiles(profile).values())
    named = [entry.gpu for entry in report.time]
    measured = [each.gpu.name for each in profiles if each.cpu is None and not each.extrapolated]
    roofs = roofs_of(profiles, report.metadata.dtype, first=named or measured)
    of_all = partial(time_requests.time_request, measured, {"profile": profile})
    curves, missing = _curves(report, engine, asked, of_all)
    return render_html(report_contents(report, roofs, curves, missing))


def _curves(
    report: Report,
    engine: Engine,
    asked: PageRequest,
    of_all: Callable[[], TimeRequest],
) -> tuple[Sequence[TimeEntry], str]:
    """Predictions over many concurrencies, by default for all GPUs, or why there are none."""
    request = engine.time
    if request is not None and len(request.concurrency) >= len(_CURVE):
        return report.time, ""
    if not isinstance(asked.workload, PageWorkload):
        return (), "Seconds are predicted only for models that read pages."
    try:
        engine.directory.dimensions()
    except ConfigError as error:
        return (), f"No seconds are predicted: {error}"
    request = of_all() if request is None else request
    request = replace(request, concurrency=sorted({*request.concurrency, *_CURVE}))
    lacking: list[DeviceError] = []
    found = replace(engine, time=request).entries(asked, lacking.append)
    return found, "" if found else f"No seconds are predicted: {lacking[0]}"
