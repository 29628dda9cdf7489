"""Options for the predicted seconds of many pages, and their meaning."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.cli import completion, options, time_options
from dsocr_analyze.cli.added_options import adding
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.archive.time_totals import ListTime
    from dsocr_analyze.columns.time_columns import TimeRequested

__all__ = [
    "deadline_hours",
    "list_time",
    "of_many_pages",
    "time_requested",
]

_CONCURRENCY: Final = 16
_HOURS: Final = {"m": 1 / 60, "h": 1.0, "d": 24.0, "": 1.0}
_DEADLINE: Final = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?) *(?P<unit>[mhd]?)")

_RuntimeOption = Annotated[
    str,
    typer.Option(
        "--runtime",
        metavar="eager|serving",
        autocompletion=completion.one_of("eager", "serving"),
        help="What runs the model: eager (its own code under generate) or serving (a serving"
        " engine).",
        rich_help_panel=time_options.PANEL,
    ),
]
_ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        metavar="PAGES",
        help="Pages of the list in flight at a time on a GPU. Default: 16.",
        rich_help_panel=time_options.PANEL,
    ),
]
_DeadlineOption = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="Compute how many GPUs finish the list in this time: 90m, 12h, 3d, or hours.",
        rich_help_panel=time_options.PANEL,
    ),
]


def of_many_pages() -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options for the predicted seconds of many pages to a command.

    They are read by `time_requested`, and those about lists of pages by `list_time`.
    """
    return adding(
        {
            "gpu": (options.GpuOption, None),
            "runtime": (_RuntimeOption, "serving"),
            "concurrency": (_ConcurrencyOption, None),
            "deadline": (_DeadlineOption, None),
            **time_options.OF_EVERY_PREDICTION,
        }
    )


def list_time(context: typer.Context, requested: TimeRequested | None) -> ListTime | None:
    """How to time a list of pages; None if no seconds were requested.

    Raises:
        WorkloadError: A value is invalid.
    """
    if requested is None:
        return None
    from dsocr_analyze.archive.time_totals import ListTime

    given = context.params
    concurrency = _CONCURRENCY if given["concurrency"] is None else given["concurrency"]
    if not 1 <= concurrency <= time_options.MOST_CONCURRENCY:
        raise WorkloadError(
            f"--concurrency {concurrency} is out of range; give 1 to"
            f" {time_options.MOST_CONCURRENCY}"
        )
    hours = None if given["deadline"] is None else deadline_hours(given["deadline"])
    return ListTime(requested, concurrency, hours, lengths_are_given(context))


def lengths_are_given(context: typer.Context) -> bool:
    """Whether the options give output lengths, not just their maximum."""
    given = context.params
    return given["new_tokens_from"] is not None or given["mean_new_tokens"] is not None


def deadline_hours(text: str) -> float:
    """Hours of a deadline like 90m, 12h, 3d, or a number of hours.

    Raises:
        WorkloadError: The text is not such a time, or not above 0.
    """
    found = _DEADLINE.fullmatch(text.strip().lower())
    hours = float(found["number"]) * _HOURS[found["unit"]] if found else 0.0
    if not hours:
        raise WorkloadError(
            f"--deadline {text!r} is invalid; give a time above 0 like 90m, 12h, 3d, or hours"
        )
    return hours


def time_requested(context: typer.Context) -> TimeRequested | None:
    """The predictions requested by the options of `of_many_pages`; None without a GPU.

    Raises:
        AnalyzeError: A value is invalid.
    """
    given = context.params
    if not given["gpu"]:
        time_options.refuse_without_gpu(context)
        return None
    from dsocr_analyze.cli.kept_files import corrections_asked_for
    from dsocr_analyze.columns.time_columns import TimeRequested
    from dsocr_analyze.hardware.timed_device import Device
    from dsocr_analyze.timing.assumptions import JobAssumptions, lengths_sentence
    from dsocr_analyze.timing.runtimes import EAGER, RUNTIMES, server_named

    runtime = options.chosen("--runtime", given["runtime"], RUNTIMES)
    profiles = time_options.profiles_named(given["gpu"], given["profile"])
    host = server_named(given["server"])
    precision = time_options.precision_of(given["weights_dtype"], given["kv_dtype"], [runtime])
    for each in profiles:
        time_options.check_precision(Device(each), precision)
    file, mean, at_limit = (
        given[name] for name in ("new_tokens_from", "mean_new_tokens", "share_at_limit")
    )
    lengths = time_options.lengths_by_limit(context)
    milliseconds = given["preprocess_ms"]
    job = JobAssumptions(
        EAGER if runtime == "eager" else host, lengths,
        None if milliseconds is None else milliseconds / 1e3, given["workers"], precision,
        given["reserved"], given["price"], given["offline"],
        corrections_asked_for(
            given["corrections"], given["server_version"], profiles, given["server"]
        ),
    )  # fmt: skip
    said = "every page generates the most tokens it may"
    if file is not None:
        said = lengths_sentence(lengths(1))
    elif mean is not None:
        said = (
            f"pages that end on their own generate {mean:g} tokens on average;"
            f" {100 * at_limit:g} % of pages generate the most tokens they may"
        )
    if lengths_are_given(context):
        said += "; FLOPs and bytes are counted for the most tokens that pages may generate"
    return TimeRequested(profiles, job, tuple(job.sentences(said, profiles)))
