"""The option `--html`, and what its page holds besides the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.cli import many_options
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.workload import Workload

if TYPE_CHECKING:
    from dsocr_analyze.cli.counting import Engine
    from dsocr_analyze.cli.time_options import TimeRequest
    from dsocr_analyze.errors import DeviceError
    from dsocr_analyze.report.comparison import Comparison
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.report.time_entry import TimeEntry
    from dsocr_analyze.workload import AnyWorkload

__all__ = ["HtmlOption", "check_html", "comparison_page", "report_pages"]

_CURVE: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Pages under way at a time, where a curve is drawn that nobody asked for in other points."""

HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Also write one HTML page that opens offline: charts, tables to sort and to search."
        " Needs the extra 'html'.",
    ),
]


def check_html(file: Path | None) -> None:
    """Refuses, before any work, a page that could not be written; nothing for no page.

    Raises:
        FormatError: The library of the charts is not installed.
        OutputError: It is a folder, or there is no folder for it.
    """
    if file is None:
        return
    from dsocr_analyze.report.html.page import refuse_without_plotly

    refuse_without_plotly()
    many_options.check_place(file)


def report_pages(
    file: Path | None, report: Report, engine: Engine, workload: AnyWorkload, corrections: int
) -> dict[Path, str]:
    """The page of a report that `engine` has counted, by its file; nothing for no page.

    Args:
        file: What `--html` says.
        report: The report.
        engine: What counted it; predictions that were asked of it are drawn as curves.
        workload: What it counted.
        corrections: What `--corrections` says.
    """
    if file is None:
        return {}
    from dsocr_analyze.cli.devices import user_profiles
    from dsocr_analyze.hardware.profile import all_profiles
    from dsocr_analyze.report.html.contents import report_contents, roofs_of
    from dsocr_analyze.report.html.page import render_html

    profiles = list(all_profiles(user_profiles(None)).values())
    named = [entry.gpu for entry in report.time]
    measured = [each.gpu.name for each in profiles if each.cpu is None and not each.extrapolated]
    roofs = roofs_of(profiles, report.metadata.dtype, first=named or measured)
    curves, missing = _curves(report, engine, workload, measured, corrections)
    return {file: render_html(report_contents(report, roofs, curves, missing))}


def comparison_page(comparison: Comparison, reports: Sequence[tuple[str, Report]]) -> str:
    """The page of a comparison of these reports; each stands beside the name it was given."""
    from dsocr_analyze.report.html.contents import comparison_contents
    from dsocr_analyze.report.html.page import render_html

    return render_html(comparison_contents(comparison, [report for _, report in reports]))


def _curves(
    report: Report,
    engine: Engine,
    workload: AnyWorkload,
    measured: Sequence[str],
    corrections: int,
) -> tuple[Sequence[TimeEntry], str]:
    """Predictions over many concurrencies, and why there are none where that is so.

    They are of the GPUs that were named; without any, of those whose kernel times were measured.
    """
    asked = engine.time
    if asked is not None and len(asked.concurrency) >= len(_CURVE):
        return report.time, ""
    if not isinstance(workload, Workload):
        return (), "Seconds are predicted of models that read pages."
    try:
        architecture, dimensions = engine.directory.architecture, engine.directory.dimensions()
    except ConfigError as error:
        return (), f"No seconds are predicted: {error}"
    lacking: list[DeviceError] = []
    request = _many_pages(asked, workload, measured, corrections)
    found = request.entries(
        architecture, dimensions, workload, dtype=engine.dtype,
        flash_attention=engine.flash_attention, leave_out=lacking.append,
    )  # fmt: skip
    return found, "" if found else f"No seconds are predicted: {lacking[0]}"


def _many_pages(
    asked: TimeRequest | None, workload: Workload, measured: Sequence[str], corrections: int
) -> TimeRequest:
    from dsocr_analyze.cli.time_options import time_request

    if asked is not None:
        return replace(asked, concurrency=sorted({*asked.concurrency, *_CURVE}))
    return time_request(
        measured, profile=None, runtime="serving", server="vllm",
        concurrency=",".join(map(str, _CURVE)), preprocess_ms=None, workers=1, price=None,
        corrections=corrections, max_new_tokens=workload.max_new_tokens,
    )  # fmt: skip
