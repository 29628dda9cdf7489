"""`dsocr-analyze sweep`: every combination of some ranges, even millions of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsocr_analyze.archive.pdf_pages import DEFAULT_PDF_DPI
from dsocr_analyze.cli import archive, completion, options, page_options, time_options
from dsocr_analyze.cli.printing import Lines, Said, show
from dsocr_analyze.cli.streams import LateProgress, complain
from dsocr_analyze.cli.words import warn, warn_of_modes
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload.workload import LARGEST_COUNT

if TYPE_CHECKING:
    from dsocr_analyze.archive.combinations import Sweep
    from dsocr_analyze.archive.evaluate import TimeRequested
    from dsocr_analyze.archive.setting import CountedModel, CountOpening
    from dsocr_analyze.report.table import Table

__all__ = ["sweep"]

UNASKED_ROWS = 10_000_000
"""Longer sweeps ask for confirmation."""

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
                completes=completion.all_papers,
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
            options.option(archive.HISTOGRAMS, f"{archive.BY} With --pages."),
        ],
        None,
    ),
    "output_format": (
        Annotated[
            str | None,
            options.format_option("table", "json", says="What is printed. With --pages."),
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


@time_options.of_many_pages()
@options.adding(_PAGES, after="context")
@options.adding(_LENGTHS, after="mode")
@options.adding(_RESULTS, after="config")
def sweep(
    context: typer.Context,
    mode: Annotated[str | None, "modes"] = None,
    dtype: Annotated[str, "dtypes"] = "bfloat16",
    use_flash_attn: Annotated[str, "attentions"] = "0",
    sliding_window: Annotated[str | None, "windows"] = None,
    model: str | None = None,
    arch: str | None = None,
    config: Path | None = None,
    quiet: bool = False,
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Count every combination of some ranges, and predict its seconds on a GPU."""
    given = context.params
    if quiet:
        options.check_quiet({"--output": given["output"], "--plot": given["plot"]})
    _check_options(given)
    time = time_options.time_requested(context)
    if given["pages"] is None:
        _run(context, time)
        return
    text_tokens, pdf_dpi = given["text_tokens"], given["pdf_dpi"]
    archive.count_list(
        context, time,
        text_tokens=None if text_tokens is None else _one_number("text_tokens", text_tokens),
        max_new_tokens=_one_number("max_new_tokens", given["max_new_tokens"]),
        batch_size=_one_number("batch_size", given["batch_size"] or "1"),
        pdf_dpi=pdf_dpi or DEFAULT_PDF_DPI, histogram=given["histogram"] or "grid",
        output_format=given["output_format"] or "table",
    )  # fmt: skip


def _run(context: typer.Context, time: TimeRequested | None) -> None:
    """Check that nothing will fail later, and count."""
    from dsocr_analyze.archive import sweep_shown
    from dsocr_analyze.archive.combinations import sweep_over
    from dsocr_analyze.archive.setting import CountedModel, opening_of

    given = context.params
    directory = page_options.described_model(given["model"], given["arch"], given["config"])
    counted = CountedModel.from_directory(directory)
    architecture, windows = counted.architecture, given["sliding_window"]
    if windows is not None:
        windows = page_options.windows_from(architecture, windows)
    combinations = sweep_over(
        architecture, page=given["page"] or "a4", mode=given["mode"],
        text_tokens=given["text_tokens"] or None, max_new_tokens=given["max_new_tokens"],
        batch_size=given["batch_size"] or "1", dtype=given["dtype"],
        flash_attention=page_options.attentions_from(given["use_flash_attn"]),
        sliding_window=windows, time=time,
    )  # fmt: skip
    if given["new_tokens_from"] is not None and len(combinations.lengths["max_new_tokens"]) > 1:
        raise WorkloadError(
            f"--new-tokens-from {str(given['new_tokens_from'])!r} gives the output lengths; give"
            " one --max-new-tokens"
        )
    notes = () if time is None else time.sentences_of(architecture)
    opening = opening_of(
        directory, architecture, combinations.modes, notes,
        command="sweep", options=options.options_used(context),
    )  # fmt: skip
    options.check_files(given["output"], given["plot"])
    if given["plot"] is not None:
        quantity, rows = given["quantity"] or _QUANTITY, combinations.rows
        sweep_shown.describe(quantity)
        if time is None and quantity in sweep_shown.TIMES:
            raise WorkloadError(f"--quantity {quantity} needs predicted seconds; give --gpu too")
        if rows > sweep_shown.MOST_POINTS:
            raise WorkloadError(
                f"a plot of {rows:,} rows is not readable; give shorter ranges, for at most"
                f" {sweep_shown.MOST_POINTS:,}, or no --plot"
            )
    combinations.check(counted)
    warn_of_modes(context, architecture, combinations.modes)
    if combinations.rows > UNASKED_ROWS and not given["yes"]:
        _ask(combinations.rows)
    warnings = _count(context, combinations, counted, opening)
    for note in () if given["quiet"] else notes:
        complain(f"assumed: {note}")
    warn(context, [*counted.warnings, *warnings])


def _check_options(given: Mapping[str, Any]) -> None:
    """Raise for options that would have no effect."""
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
    from dsocr_analyze.archive.axes import parse_numbers

    axis = parse_numbers(argument, text, 1, LARGEST_COUNT)
    if len(axis) > 1:
        column = "" if argument == "batch_size" else ", or a column in the list"
        raise WorkloadError(
            f"{argument} has {len(axis)} values; with --pages give one{column}",
            arguments=(argument,),
        )
    return axis.largest


def _ask(rows: int) -> None:
    """Ask for confirmation before a sweep of many rows."""
    if not sys.stdin.isatty():
        raise WorkloadError(
            f"the sweep has {rows:,} rows; give shorter ranges, or --yes to start it anyway"
        )
    print(f"The sweep has {rows:,} rows. Start it? [y/N]: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise WorkloadError(f"the sweep of {rows:,} rows was not started; give shorter ranges")


def _count(
    context: typer.Context, combinations: Sweep, counted: CountedModel, opening: CountOpening
) -> list[str]:
    """Write every row, draw them, and return the warnings.

    Without a file or a picture, a pipe gets CSV, and a terminal a table of the first rows.
    """
    from dsocr_analyze.archive import sweep_shown, table_files
    from dsocr_analyze.report.pictures.settings import settings_of_model

    given = context.params
    output, plot, quiet = (given[name] for name in ("output", "plot", "quiet"))
    rows, positions = combinations.rows, counted.dimensions.max_positions
    is_printed = output is None and plot is None and not quiet
    most_kept = sweep_shown.MOST_SHOWN if is_printed and sys.stdout.isatty() else 0
    if plot is not None:
        most_kept = rows
    beyond, kept = 0, list[Any]()
    with contextlib.ExitStack() as stack:
        writer = None
        if output is not None:
            writer = stack.enter_context(table_files.table_writer(output, opening))
        elif is_printed and not most_kept:
            sys.stdout.flush()
            writer = stack.enter_context(table_files.BatchWriter(sys.stdout.buffer))
        progress = stack.enter_context(LateProgress("workloads", rows))
        for batch in combinations.batches(counted):
            reach = batch.column("seq_len").to_numpy() + batch.column("max_new_tokens").to_numpy()
            beyond += int((reach - 1 > positions).sum())
            if writer is not None:
                writer.write(batch)
            if sum(each.num_rows for each in kept) < most_kept:
                kept.append(batch)
            progress.advance(batch.num_rows)
        context.obj.begin_writing()
        if plot is not None:  # before the table is in place, since it may fail
            asked = (given["quantity"] or _QUANTITY, given["x"])
            of_model = settings_of_model(opening.model, given["config"])
            sweep_shown.sweep_picture(kept, *asked, of_model, combinations.time).save(plot)
    if not quiet:
        beside = None if output is None else table_files.sidecar(output)
        written = [output and f"{output} ({rows:,} rows)", beside and f"{beside} (their metadata)"]
        tables = [sweep_shown.sweep_table(kept, rows)] if is_printed and kept else []
        show("table", None, lambda: _said(opening, tables, [*written, plot]))
    exceeding = (
        f"{beyond:,} of {rows:,} workloads exceed the decoder's max_position_embeddings,"
        f" {positions}; they are counted anyway"
    )
    return [exceeding] if beyond else []


def _said(
    opening: CountOpening, tables: Sequence[Table], written: Sequence[Path | str | None]
) -> Said:
    """The first rows for a terminal, if there are any, and the files."""
    from dsocr_analyze.report.opening import model_text

    if not tables:
        return Said("", (), written=written)
    rest = ["--output FILE.csv or FILE.parquet has every row and column; so does a pipe"]
    below = Lines("Notes", rest, before="", indent="")
    return Said(f"By closed forms: {model_text(opening.model)}", tables, [below])
