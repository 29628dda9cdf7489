"""`dsocr-analyze plan`: GPUs, pages at once, CPU workers and money for many pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsocr_analyze.cli import exits, options, page_options, printing, streams, words
from dsocr_analyze.errors import WorkloadError, refuse
from dsocr_analyze.hardware.devices import rated_gpus
from dsocr_analyze.input_files import exists
from dsocr_analyze.kernels import dtype_named

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.archive.pages import Pages
    from dsocr_analyze.archive.plan import Goals

_THOUSANDS: Final = re.compile(r",(?=[0-9]{3}(?![0-9]))")
_COUNTS: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_SHARE: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?")

_GOALS: Final[options.Added] = {
    "pages": (
        Annotated[
            str | None,
            options.option(
                "COUNT",
                "How many pages: 2000000, 500k, 2M. Default: those in FILE, which otherwise are a"
                " sample of them.",
            ),
        ],
        None,
    ),
    "deadline": (str | None, None),
    "first_token": (
        Annotated[
            str | None,
            options.option("TIME", "The longest mean time to the first token: 2s, 800ms."),
        ],
        None,
    ),
    "mix": (
        Annotated[
            str | None,
            options.option(
                "LIST", "Shares of pages of several sizes: a4@200:0.8,a3@300:0.2, or 4:1."
            ),
        ],
        None,
    ),
    "page": (str | None, None),
}

_OF_TIME: Final[options.Added] = {
    "gpu": (list[str] | None, None),
    **options.OF_PREDICTIONS,
    "workers": options.PLANNED_WORKERS,
}


def plan(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE|FOLDER",
            readable=False,
            show_default=False,
            help="The pages, or a sample of them, as for the command archive. Default: A4 pages,"
            " or those in --page or --mix.",
        ),
    ] = None,
    of_goals: options.Added = _GOALS,
    mode: str | None = None,
    text_tokens: int | None = None,
    max_new_tokens: int = 1024,
    pdf_dpi: Annotated[int, "pdf_dpi"] = 150,
    of_model: options.Added = page_options.MODEL | page_options.WINDOW,
    dtype: str = "bfloat16",
    output_format: str = "table",
    assumptions: bool = False,
    strict: bool = False,
    debug: bool = False,
    of_time: options.Added = _OF_TIME,
) -> None:
    """Say how many GPUs a number of pages needs, and what they cost.

    Each GPU takes the fewest pages at once with 90 % of its most pages per second (the knee), or
    fewer if the first token comes too late; exit with 1 if it does even for a page alone.
    """
    from dsocr_analyze.archive import axes, plan as plans, plan_tables, setting
    from dsocr_analyze.cli import time_requests

    given = context.params
    _check_pages(file, given["pages"])
    page_options.check_pdf_dpi(context, file)
    named = given["gpu"] or time_requests.priced_gpus(given["price"])
    lengths = time_requests.lengths_asked(context)
    requested = time_requests.many_pages_requested(given, named or rated_gpus(), lengths)
    directory = page_options.directory_asked(given)
    counted = setting.CountedModel.from_directory(directory)
    architecture = counted.architecture
    chosen = axes.mode_or_sizes(architecture, mode or architecture.default_mode)
    way = setting.Setting(chosen, dtype_named(dtype))
    goals = _goals(given)
    with streams.announced_steps(is_quiet=given["quiet"]) as announce:
        planned = plans.PlannedPages.from_batches(
            _batches(context, architecture, announce), counted, way, requested.job,
            has_lengths=time_requests.lengths_are_given(given),
        ).numbering(goals.pages)  # fmt: skip
    opening = setting.opening_of(
        directory, architecture, [chosen], command="plan", options=options.options_used(context)
    )
    left_out = words.LeftOut()
    document = plans.plan_document(
        counted, way, requested, planned, goals, opening, None if named else left_out
    )
    words.warn(context, setting.warnings_of_modes(architecture, [chosen]), arguments=())
    printing.emit(context, document, printing.Said(
        plan_tables.answer(document), [*plan_tables.plan_tables(document)],
        [printing.assumptions(context, document.assumptions, document.notes)],
    ))  # fmt: skip
    left_out.say(context)
    if document.gpus[0].point is None:
        raise typer.Exit(exits.NO)


def _goals(given: Mapping[str, Any]) -> Goals:
    from dsocr_analyze.archive.plan import Goals
    from dsocr_analyze.cli import time_requests

    pages, deadline, first_token = (given[each] for each in ("pages", "deadline", "first_token"))
    return Goals(
        pages=None if pages is None else _number_of_pages(pages),
        deadline_hours=None if deadline is None else time_requests.deadline_hours(deadline),
        first_token_seconds=None if first_token is None else _first_token_seconds(first_token),
        lengths_without_repetition=time_requests.lengths_without_repetition(given),
    )


def _batches(
    context: typer.Context, architecture: Architecture, announce: streams.Announce
) -> Iterator[tuple[Pages, NDArray[np.float64]]]:
    """The pages of the list, or of the sizes in the options, and how many each stands for."""
    from dsocr_analyze.archive.pages import batches_of
    from dsocr_analyze.row_files import spare_pandas

    file, page, mix = map(context.params.get, ("file", "page", "mix"))
    if file is not None:
        spare_pandas()
    return batches_of(
        architecture, file, page, None if mix is None else _mix(mix),
        warn=partial(words.warn, context), announce=announce,
        **{name: context.params[name] for name in ("text_tokens", "max_new_tokens", "pdf_dpi")},
    )  # fmt: skip


# --- values ---------------------------------------------------------------------------------------


def _mix(text: str) -> Iterator[tuple[str, float]]:
    """Sizes and their shares, like `a4@200:0.8,a3@300:0.2`; raises WorkloadError."""
    for item in text.split(","):
        page, _, share = item.rpartition(":")
        if not _SHARE.fullmatch(share.strip()) or not float(share):
            raise WorkloadError(
                f"--mix {item!r} is no page with its share; {words.meant_point(text)}give a list"
                " like a4@200:0.8,a3@300:0.2"
            )
        yield page, float(share)


def _check_pages(file: Path | None, count: str | None) -> None:
    refuse(
        WorkloadError,
        (file is None and count is None, "give --pages COUNT, or a FILE or FOLDER of pages"),
        (file is not None and words.amount(str(file), _COUNTS) is not None and not exists(file),
         f"{str(file)!r} is no FILE or FOLDER; did you mean --pages {file}?"),
    )  # fmt: skip


def _number_of_pages(text: str) -> int:
    count = words.amount(_THOUSANDS.sub("", text), _COUNTS)
    if count is None or count.denominator > 1:
        raise WorkloadError(
            f"--pages {text!r} is invalid; {words.meant_point(text)}give a whole number from 1 to"
            " 10^15"
            " like 2000000, 500k or 2M"
        )
    return count.numerator


def _first_token_seconds(text: str) -> float:
    if not (seconds := words.seconds_in(text, "s")):
        raise WorkloadError(
            f"--first-token {text!r} is invalid; {words.meant_point(text)}give a time above 0 like"
            " 2s or 800ms"
        )
    return seconds
