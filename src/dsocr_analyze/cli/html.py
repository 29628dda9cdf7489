"""What an HTML page contains in addition to the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dsocr_analyze.cli import kept_files, time_options
from dsocr_analyze.errors import ConfigError, DeviceError
from dsocr_analyze.workload import AnyWorkload, Workload

if TYPE_CHECKING:
    from dsocr_analyze.analysis import Engine
    from dsocr_analyze.report.comparison import Comparison
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.timing.prediction import TimeEntry

__all__ = ["comparison_page", "report_page"]

_CURVE: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Default concurrencies of a curve."""


def report_page(report: Report, engine: Engine, workload: AnyWorkload) -> str:
    """The page of a report counted by `engine`.

    Args:
        report: The report.
        engine: The engine that counted it; its requested predictions are drawn as curves.
        workload: The workload it counted.
    """
    from dsocr_analyze.hardware.profile import all_profiles
    from dsocr_analyze.report.html.page import render_html, report_contents, roofs_of

    profiles = list(all_profiles(kept_files.user_profiles(None)).values())
    named = [entry.gpu for entry in report.time]
    measured = [each.gpu.name for each in profiles if each.cpu is None and not each.extrapolated]
    roofs = roofs_of(profiles, report.metadata.dtype, first=named or measured)
    curves, missing = _curves(report, engine, workload, measured)
    return render_html(report_contents(report, roofs, curves, missing))


def comparison_page(comparison: Comparison, reports: Sequence[tuple[str, Report]]) -> str:
    """The page of a comparison; each report comes with its name."""
    from dsocr_analyze.report.html.page import comparison_contents, render_html

    return render_html(comparison_contents(comparison, [report for _, report in reports]))


def _curves(
    report: Report, engine: Engine, workload: AnyWorkload, measured: Sequence[str]
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
    curve = ",".join(map(str, _CURVE))
    request = (
        time_options.time_request(measured, concurrency=curve)
        if asked is None
        else replace(asked, concurrency=sorted({*asked.concurrency, *_CURVE}))
    )
    lacking: list[DeviceError] = []
    found = replace(engine, time=request).entries(workload, lacking.append)
    return found, "" if found else f"No seconds are predicted: {lacking[0]}"
