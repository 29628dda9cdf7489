"""Whether options ask for predicted seconds, of a page or of many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dsocr_analyze.cli import options
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.archive.evaluate import TimeRequested
    from dsocr_analyze.timing.predict import TimeRequest

__all__ = [
    "request_of_many",
    "request_with_report",
]


def _gpus_asked(context: typer.Context) -> list[str]:
    """The values of `--gpu`; without any, raises WorkloadError for options without effect."""
    gpus: list[str] = context.params["gpu"] or []
    for name, option in () if gpus else options.given_options(context).items():
        if name in options.SECONDS_OF_A_PAGE or name == "deadline":
            raise WorkloadError(
                f"{option} is for predicted seconds; give --gpu too, or leave it out"
            )
    return gpus


def request_with_report(context: typer.Context) -> TimeRequest | None:
    """The predictions of a page that are asked for; None without a GPU; raises AnalyzeError."""
    if not (gpus := _gpus_asked(context)):
        return None
    from dsocr_analyze.cli.time_requests import request_from

    return request_from(context, gpus)


def request_of_many(context: typer.Context) -> TimeRequested | None:
    """The predictions of many pages that are asked for; None without a GPU; raises AnalyzeError."""
    if not (gpus := _gpus_asked(context)):
        return None
    from dsocr_analyze.cli.time_requests import of_many_pages

    return of_many_pages(context, gpus)
