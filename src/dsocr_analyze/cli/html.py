"""The option `--html`, and what its page contains in addition to the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.cli import options
from dsocr_analyze.cli.time_options import time_request
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.workload import Workload

if TYPE_CHECKING:
    from dsocr_analyze.analysis import Engine
    from dsocr_analyze.errors import DeviceError
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.timing.prediction import TimeEntry
    from dsocr_analyze.workload import AnyWorkload

__all__ = ["HtmlOption", "check_html", "report_page"]

_CURVE: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Default concurrencies of a curve."""

HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Also write one HTML page that opens offline: charts, and tables to sort and search."
        " Needs the extra 'html'.",
    ),
]


def check_html(file: Path | None) -> None:
    """Check, before any work, that a page can be written; does nothing for None.

    Raises:
        FormatError: The charts' library is not installed.
        OutputError: It is a folder, or its folder does not exist.
    """
    if file is None:
        return
    from dsocr_analyze.report.html.page import refuse_without_plotly

    refuse_without_plotly()
    options.check_place(file)


def report_page(report: Report, engine: Engine, workload: AnyWorkload, corrections: int) -> str:
    """The page of a report counted by `engine`.

    Args:
        report: The report.
        engine: The engine that counted it; its requested predictions are drawn as curves.
        workload: The workload it counted.
        corrections: Value of `--corrections`.
    """
    from dsocr_analyze.cli.kept_files import user_profiles
    from dsocr_analyze.hardware.profile import all_profiles
    from dsocr_analyze.report.html.page import render_html, report_contents, roofs_of

    profiles = list(all_profiles(user_profiles(None)).values())
    named = [entry.gpu for entry in report.time]
    measured = [each.gpu.name for each in profiles if each.cpu is None and not each.extrapolated]
    roofs = roofs_of(profiles, report.metadata.dtype, first=named or measured)
    curves, missing = _curves(report, engine, workload, measured, corrections)
    return render_html(report_contents(report, roofs, curves, missing))


def _curves(
    report: Report,
    engine: Engine,
    workload: AnyWorkload,
    measured: Sequence[str],
    corrections: int,
) -> tuple[Sequence[TimeEntry], str]:
    """Predictions over many concurrencies, or the reason why there are none.

    They are for the named GPUs, or for all GPUs with measured kernel times if none is named.
    """
    asked = engine.time
    if asked is not None and len(asked.concurrency) >= len(_CURVE):
        return report.time, ""
    if not isinstance(workload, Workload):
        return (), "Seconds are predicted only for models that read pages."
    try:
        engine.directory.dimensions()
    except ConfigError as error:
        return (), f"No seconds are predicted: {error}"
    if asked is not None:
        request = replace(asked, concurrency=sorted({*asked.concurrency, *_CURVE}))
    else:
        request = time_request(
            measured, profile=None, runtime="serving", server="vllm",
            concurrency=",".join(map(str, _CURVE)), preprocess_ms=None, workers=1, price=None,
            corrections=corrections,
        )  # fmt: skip
    lacking: list[DeviceError] = []
    found = replace(engine, time=request).entries(workload, lacking.append)
    return found, "" if found else f"No seconds are predicted: {lacking[0]}"
