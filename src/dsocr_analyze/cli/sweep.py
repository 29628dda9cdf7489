"""`dsocr-analyze sweep`: every combination of some ranges, even millions of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from dsocr_analyze.archive.axes import parse_numbers
from dsocr_analyze.archive.pdf_pages import DEFAULT_PDF_DPI
from dsocr_analyze.cli import archive, options
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import BOUNDS, PAPERS

__all__ = ["sweep"]

_QUANTITY = "page_flops"

_PAGES: Final[options.Added] = {
    "pages": (
        Annotated[
            Path | None,
            options.option(
                "FILE|FOLDER",
                "Count the pages of this list instead of --page: the same as 'dsocr-analyze"
                " archive FILE|FOLDER'.",
            ),
        ],
        None,
    ),
    "page": (
        Annotated[
            str | None,
            options.option(
                "LIST",
                "Page sizes: a4, a4@100:300:50, 1240x1754, 600:2400:200x800:3200:200. Default: a4.",
                completes=PAPERS,
                is_list=True,
            ),
        ],
        None,
    ),
}
"""What is counted."""

_LENGTHS: Final[options.Added] = {
    "text_tokens": (
        Annotated[str | None, options.option("LIST", options.TEXT_TOKENS)],
        None,
    ),
    "max_new_tokens": (
        Annotated[str, options.option("LIST", options.NEW_TOKENS)],
        "1024",
    ),
    "batch_size": (
        Annotated[str | None, options.option("LIST", options.BATCH, show_default="1")],
        None,
    ),
}
"""Lengths and batches."""

_RESULTS: Final[options.Added] = {
    "output": (
        Annotated[
            Path | None,
            options.option(
                "FILE",
                "One row per combination, as FILE.csv or FILE.parquet. Default: CSV on stdout,"
                " and on a terminal a table of the first rows.",
            ),
        ],
        None,
    ),
    "plot": (
        Annotated[
            Path | None,
            options.option(
                "FILE",
                "A picture, as FILE.png or FILE.svg: --quantity over --x. Needs the extra 'plot'.",
            ),
        ],
        None,
    ),
    "quantity": (
        Annotated[str | None, options.option("COLUMN", f"What is plotted. Default: {_QUANTITY}.")],
        None,
    ),
    "x": (
        Annotated[
            str | None,
            options.option(
                "COLUMN", "What it is plotted over. Default: the axis with most values."
            ),
        ],
        None,
    ),
    "histogram": (
        Annotated[
            str | None,
            options.option(
                archive.HISTOGRAMS, f"{archive.BY} With --pages.", callback=options.in_any_case
            ),
        ],
        None,
    ),
    "output_format": (
        Annotated[
            str | None,
            options.option(
                ("table", "json"),
                f"{options.FORMAT} With --pages.",
                "--format",
                callback=options.in_any_case,
            ),
        ],
        None,
    ),
    "pdf_dpi": (
        Annotated[int | None, options.option("DPI", f"{archive.OF_PDFS} With --pages.")],
        None,
    ),
    "yes": (
        Annotated[bool, options.option(None, "Start a huge sweep without asking.", "--yes", "-y")],
        False,
    ),
}
"""What becomes of it."""


def sweep(
    context: typer.Context,
    counted: options.Added = _PAGES,
    mode: Annotated[str | None, "modes"] = None,
    lengths: options.Added = _LENGTHS,
    dtype: Annotated[str, "dtypes"] = "bfloat16",
    use_flash_attn: Annotated[str, "attentions"] = "0",
    sliding_window: Annotated[str | None, "windows"] = None,
    model: str | None = None,
    arch: str | None = None,
    config: Path | None = None,
    results: options.Added = _RESULTS,
    quiet: bool = False,
    strict: bool = False,
    debug: bool = False,
    of_time: options.Added = options.SECONDS_OF_MANY,
) -> None:
    """Count every combination of some ranges, and predict its seconds on a GPU."""
    given = context.params
    if quiet:
        options.check_quiet({"--output": given["output"], "--plot": given["plot"]})
    _check_options(context)
    from dsocr_analyze.cli import page_lists, sweep_runs, time_requests

    time = time_requests.of_many_pages(context)
    if given["pages"] is None:
        sweep_runs.run(context, time, given["quantity"] or _QUANTITY)
        return
    text_tokens, pdf_dpi = given["text_tokens"], given["pdf_dpi"]
    page_lists.count_list(
        context, time,
        text_tokens=None if text_tokens is None else _one_number("text_tokens", text_tokens),
        max_new_tokens=_one_number("max_new_tokens", given["max_new_tokens"]),
        batch_size=_one_number("batch_size", given["batch_size"] or "1"),
        pdf_dpi=pdf_dpi or DEFAULT_PDF_DPI,
        histogram=given["histogram"] or "grid",
        output_format=given["output_format"] or "table",
    )  # fmt: skip


def _check_options(context: typer.Context) -> None:
    """Raises for options that would have no effect."""
    given = context.params
    pages, has_pages, plot = given["pages"], given["pages"] is not None, given["plot"]
    of_lists = ("histogram", "output_format", "pdf_dpi", "deadline", "concurrency")
    for is_wrong, names, before, after in (
        (has_pages, ("page", "quantity", "x"), f"give --pages {pages} or ", ", not both"),
        (plot is None, ("quantity", "x"), "", " is for a picture; give --plot FILE too"),
        (not has_pages, of_lists, "",
         " is for a list of pages; give --pages, or leave it out"),
    ):  # fmt: skip
        for name in (each for each in names if is_wrong and given[each] is not None):
            option = name.removeprefix("output_").replace("_", "-")
            raise WorkloadError(f"{before}--{option} {given[name]}{after}")


def _one_number(argument: str, text: str) -> int:
    """The single number of an axis."""
    axis = parse_numbers(argument, text, *BOUNDS[argument][:2])
    if len(axis) > 1:
        column = "" if argument == "batch_size" else ", or a column in the list"
        raise WorkloadError(
            f"{argument} has {len(axis)} values; with --pages give one{column}",
            arguments=(argument,),
        )
    return axis.ends[0]
