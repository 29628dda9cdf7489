"""The document of `dsocr-analyze time`: predictions, and the model and page they are for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsocr_analyze.report.build import workload_document
from dsocr_analyze.report.document import (
    NO_OPTIONS,
    SCHEMA_VERSION,
    Model,
    Options,
    PageOpening,
    Workload,
)
from dsocr_analyze.report.tables import model_text
from dsocr_analyze.timing.prediction import TimeEntry

if TYPE_CHECKING:
    from dsocr_analyze import workload as planned
    from dsocr_analyze.figures.origin import Model

__all__ = ["TimeReport", "headline", "time_report"]


class TimeReport(PageOpening, frozen=True, kw_only=True):
    """Predicted seconds of one page.

    Attributes:
        time: One entry per GPU and runtime, as in a report.
    """

    time: tuple[TimeEntry, ...]


def time_report(
    model: Model,
    workload: planned.Workload,
    entries: Sequence[TimeEntry],
    options: Options = NO_OPTIONS,
) -> TimeReport:
    """The document for some predictions."""
    return TimeReport(
        schema_version=SCHEMA_VERSION,
        command="time",
        options=options,
        model=model,
        workload=workload_document(workload),
        time=tuple(entries),
    )


def headline(model: Model, workload: Workload) -> str:
    """The first lines of every output: which model, and which page."""
    return (
        f"Predicted, nothing was run: {model_text(model)}\n"
        f"{workload.title[0].upper()}{workload.title[1:]}"
    )
