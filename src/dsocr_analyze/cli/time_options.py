"""Options for predicted seconds of a page or of lists of pages, and their meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsocr_analyze.analysis import TimeRequest, check_precision
from dsocr_analyze.cli import kept_files, options
from dsocr_analyze.cli.words import warn
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.archive.evaluate import TimeRequested
    from dsocr_analyze.archive.totals import ListTime
    from dsocr_analyze.timing.output_lengths import OutputLengths

__all__ = [
    "OF_EVERY_PREDICTION",
    "deadline_hours",
    "list_time",
    "of_a_page",
    "of_many_pages",
    "request_from",
    "request_with_report",
    "time_request",
    "time_requested",
]

_MOST_CONCURRENCY: Final = 65_536
_MOST_POINTS: Final = 1_000
_LIST_CONCURRENCY: Final = 16
_HOURS: Final = {"m": 1 / 60, "h": 1.0, "d": 24.0, "": 1.0}
_DEADLINE: Final = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?) *(?P<unit>[mhd]?)")

OF_EVERY_PREDICTION: Final[options.Added] = {
    "server": (str, "vllm"),
    "preprocess_ms": (float | None, None),
    "workers": (int, 1),
    "price": (float | None, None),
    "weights_dtype": (str | None, None),
    "kv_dtype": (str | None, None),
    "new_tokens_from": (Path | None, None),
    "mean_new_tokens": (float | None, None),
    "share_at_limit": (float, 0.0),
    "offline": (bool, False),
    "reserved": (float, 0.1),
    "profile": (kept_files.ProfileOption, None),
    "corrections": (int, 1),
    "server_version": (str | None, None),
}
"""Options of every command with predicted seconds."""

_LENGTHS: Final = ("new_tokens_from", "mean_new_tokens", "share_at_limit")


def time_request(
    gpu: Sequence[str],
    *,
    profile: Sequence[Path] | None = None,
    runtime: str = "serving",
    server: str = "vllm",
    concurrency: str,
    preprocess_ms: float | None = None,
    workers: int = 1,
    price: float | None = None,
    weights_dtype: str | None = None,
    kv_dtype: str | None = None,
    lengths: Callable[[int], OutputLengths] | None = None,
    reserved: float = 0.1,
    offline: bool = False,
    corrections: int = 1,
    server_version: str | None = None,
) -> TimeRequest:
    """The predictions requested by the options; raises AnalyzeError if they are impossible.

    `lengths` is as for `lengths_by_limit`; by default every page generates the most tokens it may.
    """
    from dsocr_analyze.hardware.devices import catalogue_name
    from dsocr_analyze.hardware.profile import all_profiles
    from dsocr_analyze.hardware.timed_device import dtype_name
    from dsocr_analyze.timing import assumptions, output_lengths, runtimes

    names = dict.fromkeys(
        options.chosen("--runtime", each.strip(), runtimes.RUNTIMES) for each in runtime.split(",")
    )
    known = all_profiles(kept_files.user_profiles(profile))
    gpus = dict.fromkeys(catalogue_name(name, known) for name in options.gpu_names(gpu))
    profiles = [known[name] for name in gpus]
    host = runtimes.server_named(server)
    types = (None if each is None else dtype_name(each) for each in (weights_dtype, kv_dtype))
    # Those of 16 bits are the model's own.
    precision = runtimes.Precision(
        *(None if each in ("bfloat16", "float16") else each for each in types)
    )
    if precision != runtimes.NATIVE and "serving" not in names:
        raise WorkloadError(
            "--weights-dtype and --kv-dtype are for --runtime serving; leave them out"
        )
    kept = kept_files.corrections_asked_for(corrections, server_version, profiles, server)
    jobs = [
        assumptions.JobAssumptions(
            runtimes.EAGER if each == "eager" else host,
            lengths or output_lengths.OutputLengths.fixed,
            None if preprocess_ms is None else preprocess_ms / 1e3, workers,
            runtimes.NATIVE if each == "eager" else precision, reserved, price, offline, kept,
        )
        for each in names
    ]  # fmt: skip
    return TimeRequest(profiles, jobs, _concurrencies(concurrency))


def _concurrencies(text: str) -> list[int]:
    import numpy as np

    from dsocr_analyze.archive.axes import parse_numbers

    axis = parse_numbers("concurrency", text, 1, _MOST_CONCURRENCY)
    if len(axis) > _MOST_POINTS:
        raise WorkloadError(
            f"--concurrency {text} has {len(axis)} values; give at most {_MOST_POINTS}"
        )
    return list(dict.fromkeys(axis.take(np.arange(len(axis)))[0].tolist()))


# --- seconds of a page ----------------------------------------------------------------------------


def of_a_page(
    *, gpu: str = "gpu", runtime: str, concurrency: str
) -> Callable[[options.Command], options.Command]:
    """Add the options for a page's predicted seconds to a command.

    Args:
        gpu: Name of the parameter set by `--gpu`.
        runtime: Default of `--runtime`.
        concurrency: Default of `--concurrency`.
    """
    return options.adding(
        {
            gpu: (Annotated[list[str] | None, "gpu"], None),
            "runtime": (Annotated[str, "runtimes"], runtime),
            "concurrency": (Annotated[str, "concurrencies"], concurrency),
            **OF_EVERY_PREDICTION,
        }
    )


def request_with_report(context: typer.Context) -> TimeRequest | None:
    """The predictions requested in addition to a report; None without a GPU.

    Raises the errors of `time_request`.
    """
    gpus = _gpus_or_nothing(context)
    return request_from(context, gpus) if gpus else None


def request_from(
    context: typer.Context, gpus: Sequence[str], *, server: str | None = None
) -> TimeRequest:
    """The predictions requested by the options of `of_a_page`.

    Args:
        context: The command's context.
        gpus: The GPUs.
        server: The benchmarks' server, which replaces `--server` and `--server-version`.

    Raises:
        AnalyzeError: A value is invalid.
    """
    lengths = _lengths_by_limit(context)
    if context.params["max_new_tokens"] is not None:
        lengths(context.params["max_new_tokens"])  # raises before any work
    instead = {} if server is None else {"server": server, "server_version": None}
    return time_request(gpus, lengths=lengths, **_asked(context) | instead)


def _asked(context: typer.Context) -> dict[str, Any]:
    """Arguments of `time_request` that options set, but for the GPUs and the output lengths."""
    names = (OF_EVERY_PREDICTION.keys() - _LENGTHS) | {"runtime", "concurrency"}
    return {name: context.params[name] for name in names}


def _gpus_or_nothing(context: typer.Context) -> list[str]:
    """The values of `--gpu`; without any, raises for options that would have no effect."""
    gpus: list[str] = context.params["gpu"] or []
    of_time = {*OF_EVERY_PREDICTION, "runtime", "concurrency", "deadline"}
    given = options.given_options(context)
    if not gpus and (idle := [option for name, option in given.items() if name in of_time]):
        raise WorkloadError(f"{idle[0]} is for predicted seconds; give --gpu too, or leave it out")
    return gpus


def _lengths_by_limit(context: typer.Context) -> Callable[[int], OutputLengths]:
    """A function from the maximum of new tokens to the distribution of output lengths.

    It warns of columns of a file that are not read.

    Raises:
        WorkloadError: The options contradict one another, or the file is not a list of lengths.
    """
    from dsocr_analyze.timing.output_lengths import OutputLengths

    file, mean, share_at_limit = (context.params[name] for name in _LENGTHS)
    if file is not None:
        if mean is not None or share_at_limit:
            raise WorkloadError(
                "--new-tokens-from gives the output lengths; leave out --mean-new-tokens and"
                " --share-at-limit"
            )
        from dsocr_analyze.timing.length_files import read_lengths

        lengths = read_lengths(file, warn=lambda warning: warn(context, [warning]))
        return lambda _: lengths
    if mean is None and share_at_limit:
        raise WorkloadError(
            f"--share-at-limit {share_at_limit:g} needs --mean-new-tokens for the other pages"
        )
    return (
        OutputLengths.fixed
        if mean is None
        else lambda limit: OutputLengths.mean_and_limit(mean, limit, share_at_limit)
    )


# --- seconds of lists of pages --------------------------------------------------------------------


def of_many_pages() -> Callable[[options.Command], options.Command]:
    """Add the options for the predicted seconds of many pages to a command.

    They are read by `time_requested`, and those about lists of pages by `list_time`.
    """
    return options.adding(
        {
            "gpu": (list[str] | None, None),
            "runtime": (str, "serving"),
            "concurrency": (int | None, None),
            "deadline": (str | None, None),
            **OF_EVERY_PREDICTION,
        }
    )


def time_requested(context: typer.Context) -> TimeRequested | None:
    """The predictions requested by the options of `of_many_pages`; None without a GPU.

    Raises:
        AnalyzeError: A value is invalid.
    """
    if not (gpus := _gpus_or_nothing(context)):
        return None
    from dsocr_analyze.archive.evaluate import TimeRequested
    from dsocr_analyze.timing import assumptions, runtimes

    given = context.params
    one = {
        "runtime": options.chosen("--runtime", given["runtime"], runtimes.RUNTIMES),
        "concurrency": "1",
    }
    request = time_request(gpus, lengths=_lengths_by_limit(context), **_asked(context) | one)
    [job] = request.jobs
    for each in request.profiles:
        check_precision(each, job.precision)
    said = "every page generates the most tokens it may"
    if _lengths_are_given(context):
        mean = given["mean_new_tokens"]
        said = assumptions.lengths_sentence(job.lengths(1)) if mean is None else (
            f"pages that end on their own generate {mean:g} tokens on average;"
            f" {100 * given['share_at_limit']:g} % of pages generate the most tokens they may"
        )  # fmt: skip
        said += "; FLOPs and bytes are counted for the most tokens that pages may generate"
    return TimeRequested(request.profiles, job, tuple(job.sentences(said, request.profiles)))


def list_time(context: typer.Context, requested: TimeRequested | None) -> ListTime | None:
    """How to time a list of pages; None if no seconds were requested.

    Raises:
        WorkloadError: A value is invalid.
    """
    if requested is None:
        return None
    from dsocr_analyze.archive.totals import ListTime

    given = context.params
    concurrency = _LIST_CONCURRENCY if given["concurrency"] is None else given["concurrency"]
    if not 1 <= concurrency <= _MOST_CONCURRENCY:
        raise WorkloadError(
            f"--concurrency {concurrency} is out of range; give 1 to {_MOST_CONCURRENCY}"
        )
    deadline = given["deadline"]
    hours = None if deadline is None else deadline_hours(deadline)
    return ListTime(requested, concurrency, hours, _lengths_are_given(context))


def _lengths_are_given(context: typer.Context) -> bool:
    """Whether the options give output lengths, not just their maximum."""
    given = (context.params[name] for name in ("new_tokens_from", "mean_new_tokens"))
    return any(each is not None for each in given)


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
