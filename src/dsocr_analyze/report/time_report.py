"""The document of `dsocr-analyze time`: what was predicted, for which model and page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from dsocr_analyze.report.build import model_document, workload_document
from dsocr_analyze.report.document import Model, Workload
from dsocr_analyze.report.tables import model_text
from dsocr_analyze.report.time_entry import TimeEntry

if TYPE_CHECKING:
    from dsocr_analyze import workload as planned
    from dsocr_analyze.figures import ModelSource

__all__ = ["TIME_SCHEMA_VERSION", "TimeReport", "headline", "report_text", "time_report"]

TIME_SCHEMA_VERSION: Final = "2"


class TimeReport(Struct, frozen=True, kw_only=True):
    """Predicted seconds of one page.

    Attributes:
        schema_version: That of the reports, whose `time` has the same entries.
        model: The model.
        workload: The page and its prompt.
        time: One entry per GPU and runtime.
    """

    schema_version: str
    model: Model
    workload: Workload
    time: tuple[TimeEntry, ...]


def time_report(
    model: ModelSource, workload: planned.Workload, entries: Sequence[TimeEntry]
) -> TimeReport:
    """The document of some predictions."""
    return TimeReport(
        schema_version=TIME_SCHEMA_VERSION,
        model=model_document(model),
        workload=workload_document(workload),
        time=tuple(entries),
    )


def headline(model: Model, workload: Workload) -> str:
    """The first line of every output: which model, and which page."""
    return (
        f"Predicted, nothing was run: {model_text(model)}\n"
        f"{workload.title[0].upper()}{workload.title[1:]}"
    )


def report_text(report: Struct) -> str:
    """A document as JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
