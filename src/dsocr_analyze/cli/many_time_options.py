"""Options of predicted seconds for many pages, and what they ask for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.cli import options, time_options
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.archive.time_totals import ListTime
    from dsocr_analyze.columns.time_columns import TimeRequested

__all__ = [
    "ConcurrencyOption",
    "DeadlineOption",
    "GpusOption",
    "RuntimeOption",
    "deadline_hours",
    "list_time",
    "time_requested",
]

_CONCURRENCY: Final = 16
_HOURS: Final = {"m": 1 / 60, "h": 1.0, "d": 24.0, "": 1.0}
_DEADLINE: Final = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?) *(?P<unit>[mhd]?)")

GpusOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="LIST",
        help="Predict seconds on these GPUs, as `dsocr-analyze devices` names them: h100-sxm,l40s.",
        rich_help_panel=time_options.PANEL,
    ),
]
RuntimeOption = Annotated[
    str,
    typer.Option(
        "--runtime",
        metavar="eager|serving",
        help="What runs the model: its own code under generate, or a serving engine.",
        rich_help_panel=time_options.PANEL,
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        metavar="PAGES",
        help="Pages of the list under way at a time on a GPU. Default: 16.",
        rich_help_panel=time_options.PANEL,
    ),
]
DeadlineOption = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="How many GPUs finish the list in time: 90m, 12h, 3d, or hours.",
        rich_help_panel=time_options.PANEL,
    ),
]


def list_time(
    requested: TimeRequested | None,
    concurrency: int | None,
    deadline: str | None,
    new_tokens_from: Path | None,
    mean_new_tokens: float | None,
) -> ListTime | None:
    """What is asked of a list of pages; None where no seconds are.

    Raises:
        WorkloadError: A value is not possible.
    """
    if requested is None:
        return None
    from dsocr_analyze.archive.time_totals import ListTime

    concurrency = _CONCURRENCY if concurrency is None else concurrency
    if not 1 <= concurrency <= time_options.MOST_CONCURRENCY:
        raise WorkloadError(
            f"--concurrency {concurrency} is not possible; give 1 to"
            f" {time_options.MOST_CONCURRENCY}"
        )
    has_lengths = new_tokens_from is not None or mean_new_tokens is not None
    hours = None if deadline is None else deadline_hours(deadline)
    return ListTime(requested, concurrency, hours, has_lengths)


def deadline_hours(text: str) -> float:
    """Hours of a deadline like 90m, 12h, 3d, or a number of hours.

    Raises:
        WorkloadError: It is no such text, or not above 0.
    """
    found = _DEADLINE.fullmatch(text.strip().lower())
    hours = float(found["number"]) * _HOURS[found["unit"]] if found else 0.0
    if not hours:
        raise WorkloadError(
            f"--deadline {text!r} is not possible; give a time above 0 like 90m, 12h, 3d, or hours"
        )
    return hours


def time_requested(
    context: typer.Context,
    gpu: Sequence[str] | None,
    *,
    profile: Sequence[Path] | None,
    runtime: str,
    server: str,
    preprocess_ms: float | None,
    workers: int,
    price: float | None,
    weights_dtype: str | None,
    kv_dtype: str | None,
    new_tokens_from: Path | None,
    mean_new_tokens: float | None,
    share_at_limit: float,
    reserved: float,
    offline: bool,
    corrections: int,
    server_version: str | None,
) -> TimeRequested | None:
    """What the options ask for, None without a GPU; raises an AnalyzeError for the impossible."""
    if not gpu:
        time_options.refuse_without_gpu(context)
        return None
    from dsocr_analyze.cli.kept_corrections import corrections_asked_for
    from dsocr_analyze.columns.time_columns import TimeRequested
    from dsocr_analyze.hardware.timed_device import Device
    from dsocr_analyze.sweep.axes import parse_names
    from dsocr_analyze.timing.assumptions import JobAssumptions, lengths_sentence
    from dsocr_analyze.timing.runtimes import EAGER, RUNTIMES, server_named

    options.check_choice("--runtime", runtime, RUNTIMES)
    names = [name for text in gpu for name in parse_names("gpu", text)]
    profiles = time_options.profiles_named(names, profile)
    host = server_named(server)
    precision = time_options.precision_of(weights_dtype, kv_dtype, [runtime])
    for each in profiles:
        time_options.check_precision(Device(each), precision)
    lengths = time_options.lengths_by_limit(new_tokens_from, mean_new_tokens, share_at_limit)
    job = JobAssumptions(
        EAGER if runtime == "eager" else host, lengths,
        None if preprocess_ms is None else preprocess_ms / 1e3, workers, precision, reserved, price,
        offline, corrections_asked_for(corrections, server_version, profiles, server),
    )  # fmt: skip
    said = "every page generates as many tokens as it may"
    if new_tokens_from is not None:
        said = lengths_sentence(lengths(1))
    elif mean_new_tokens is not None:
        said = (
            f"pages that end by themselves generate {mean_new_tokens:g} tokens on average;"
            f" {100 * share_at_limit:g} % of pages generate as many as they may"
        )
    return TimeRequested(profiles, job, tuple(job.sentences(said, profiles)))
