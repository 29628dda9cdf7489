"""Many pages: `sweep`, every combination of some ranges, even millions, and `archive`, a list."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsocr_analyze.architectures import PageRequest
from dsocr_analyze.archive import pdf_pages, setting, table_files
from dsocr_analyze.cli import help_text, options, page_options, printing, streams, words
from dsocr_analyze.errors import FormatError, WorkloadError, refuse
from dsocr_analyze.input_files import exists
from dsocr_analyze.pictures.settings import settings_of_model
from dsocr_analyze.report.opening import model_text
from dsocr_analyze.timing import MOST_CONCURRENCY
from dsocr_analyze.workload import PAPERS, beyond_positions

if TYPE_CHECKING:
    from dsocr_analyze.archive import pages as listed_pages
    from dsocr_analyze.archive.combinations import Sweep
    from dsocr_analyze.archive.seconds import ArchiveTimer, TimeRequested
    from dsocr_analyze.archive.totals import Archive

_UNASKED_ROWS: Final = 10_000_000
"""Longer sweeps need `--yes`."""

_QUANTITY = "page_flops"

_LIST_CONCURRENCY: Final = 16
_LISTED: Final = 4
"""Most answers before the tables, which have all of them."""

_LENGTHS: Final[options.Added] = {
    "text_tokens": (
        Annotated[
            str | None,
            options.option("LIST", options.TEXT_TOKENS, group=help_text.Seldom(help_text.PAGE)),
        ],
        None,
    ),
    "max_new_tokens": (
        Annotated[str, options.option("LIST", options.NEW_TOKENS, group=help_text.PAGE)],
        "1024",
    ),
    "batch_size": (
        Annotated[
            str | None,
            options.option("LIST", options.BATCH, show_default="1", group=help_text.PAGE),
        ],
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
                group=help_text.OUTPUT,
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
                group=help_text.OUTPUT,
            ),
        ],
        None,
    ),
    "quantity": (
        Annotated[
            str | None,
            options.option(
                "COLUMN", f"What is plotted. Default: {_QUANTITY}.", group=help_text.OUTPUT
            ),
        ],
        None,
    ),
    "x": (
        Annotated[
            str | None,
            options.option(
                "COLUMN",
                "What it is plotted over. Default: the axis with most values.",
                group=help_text.OUTPUT,
            ),
        ],
        None,
    ),
    "yes": (
        Annotated[
            bool,
            options.option(
                None,
                "Start a sweep of more than ten million rows.",
                "--yes",
                "-y",
                group=help_text.OUTPUT,
            ),
        ],
        False,
    ),
}
"""What becomes of it."""


def sweep(
    context: typer.Context,
    page: Annotated[
        str | None,
        options.option(
            "LIST",
            "Page sizes: a4, a4@100:300:50, 1240x1754, 600:2400:200x800:3200:200. Default: a4.",
            completes=PAPERS,
            is_list=True,
            group=help_text.PAGE,
        ),
    ] = None,
    mode: Annotated[str | None, "modes"] = None,
    lengths: options.Added = _LENGTHS,
    dtype: Annotated[str, "dtypes"] = "bfloat16",
    use_flash_attn: Annotated[str, "attentions"] = "0",
    sliding_window: Annotated[str | None, "windows"] = None,
    of_model: options.Added = page_options.MODEL,
    results: options.Added = _RESULTS,
    assumptions: bool = False,
    strict: bool = False,
    debug: bool = False,
    of_time: options.Added = options.SECONDS_OF_MANY,
) -> None:
    """Count every combination of some ranges, and predict its seconds."""
    from dsocr_analyze.row_files import spare_pandas

    spare_pandas()
    given = context.params
    for option in ("quantity", "x"):
        if given["plot"] is None and given[option] is not None:
            raise WorkloadError(
                f"--{option} {given[option]} is for a picture; give --plot FILE too"
            )
    time = page_options.requested_of_many(context)
    _count_combinations(context, time, given["quantity"] or _QUANTITY)


def _count_combinations(context: typer.Context, time: TimeRequested | None, quantity: str) -> None:
    """Counts every combination, once nothing can fail."""
    from dsocr_analyze.archive import combinations, shown

    given = context.params
    directory = page_options.directory_asked(given, sliding_window=None)
    counted = setting.CountedModel.from_directory(directory)
    architecture, windows = counted.architecture, given["sliding_window"]
    if windows is not None:
        windows = page_options.windows_from(architecture, windows)
    asked = combinations.sweep_over(
        architecture, page=given["page"] or "a4", mode=given["mode"],
        text_tokens=given["text_tokens"] or None, max_new_tokens=given["max_new_tokens"],
        batch_size=given["batch_size"] or "1", dtype=given["dtype"],
        flash_attention=options.switches("flash_attention", given["use_flash_attn"]),
        sliding_window=windows, time=time,
    )  # fmt: skip
    if given["new_tokens_from"] is not None and len(asked.lengths["max_new_tokens"]) > 1:
        raise WorkloadError(
            f"--new-tokens-from {str(given['new_tokens_from'])!r} gives the output lengths; give"
            " one --max-new-tokens"
        )
    notes = () if time is None else time.sentences_of(architecture, asked.modes)
    opening = setting.opening_of(
        directory, architecture, asked.modes, notes,
        command="sweep", options=options.options_used(context),
    )  # fmt: skip
    printing.check_files(given["output"], given["plot"])
    if given["plot"] is not None and asked.rows > shown.MOST_POINTS:
        raise WorkloadError(
            f"a plot of {asked.rows:,} rows is not readable; give shorter ranges, for at most"
            f" {shown.MOST_POINTS:,}, or no --plot"
        )
    asked.check(counted)
    words.warn(context, setting.warnings_of_modes(architecture, asked.modes), arguments=())
    if asked.rows > _UNASKED_ROWS and not given["yes"]:
        raise WorkloadError(
            f"the sweep has {asked.rows:,} rows; give shorter ranges, or --yes to start it anyway"
        )
    warnings = _write(context, asked, counted, opening, quantity)
    doubts = () if time is None else time.notes(architecture, asked.modes)
    if given["assumptions"]:
        said = [f"assumed: {each}" for each in notes]
    else:
        said = [*map("note: {}".format, doubts), *printing.assumptions(context, notes).briefly]
    for note in said:
        words.note(context, note)
    words.warn(context, [*counted.warnings, *warnings])


def _write(
    context: typer.Context,
    asked: Sweep,
    counted: setting.CountedModel,
    opening: setting.CountOpening,
    quantity: str,
) -> list[str]:
    """Writes every row, draws them, and returns the warnings."""
    from dsocr_analyze.archive import shown

    given = context.params
    output, plot = given["output"], given["plot"]
    rows, positions = asked.rows, counted.dimensions.decoder.max_position_embeddings
    most_kept, drawn = shown.MOST_SHOWN if plot is None else rows, None
    done, beyond, kept = 0, 0, list[Any]()
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(_row_writer(given, opening))
        announce = stack.enter_context(streams.announced_steps(is_quiet=given["quiet"]))
        for batch in asked.batches(counted):
            reach = batch.column("seq_len").to_numpy() + batch.column("max_new_tokens").to_numpy()
            beyond += int((reach - 1 > positions).sum())
            if writer is not None:
                writer.write(batch)
            if sum(each.num_rows for each in kept) < most_kept:
                kept.append(batch)
            done += batch.num_rows
            announce(f"{done:,} of {rows:,} workloads", done / rows)
        context.obj.begin_writing()
        if plot is not None:  # before the table is in place, since it may fail
            drawn = shown.sweep_picture(
                kept, quantity, given["x"], settings_of_model(opening.model, given["config"]),
                asked.time,
            )  # fmt: skip
    if writer is None and plot is None:
        rest = "--output FILE.csv or FILE.parquet has every row and column; so does a pipe"
        said = printing.Said(
            f"By closed forms: {model_text(opening.model)}",
            [shown.sweep_table(kept, rows)],
            [printing.Lines("Notes", [rest], before="", indent="")],
        )  # fmt: skip
    else:
        beside = None if output is None else table_files.sidecar(output)
        written = [output and f"{output} ({rows:,} rows)", beside and f"{beside} (their metadata)"]
        said = printing.Said("", (), written=[*written, plot])
    printing.emit(context, None, said, picture=None if drawn is None else lambda: drawn)
    return [beyond_positions(beyond, f"{rows:,} workloads", positions)] if beyond else []


def _row_writer(
    given: Mapping[str, Any], opening: setting.CountOpening
) -> contextlib.AbstractContextManager[table_files.BatchWriter | None]:
    """Takes the rows as they come, into `--output` or a pipe; None where there is neither."""
    if given["output"] is not None:
        return table_files.table_writer(given["output"], opening)
    if given["plot"] is not None or given["quiet"] or sys.stdout.isatty():
        return contextlib.nullcontext()
    sys.stdout.flush()
    return table_files.BatchWriter(sys.stdout.buffer)


# --- a list of pages -----------------------------------------------------------------------------

_LENGTHS_OF_ALL: Final[options.Added] = {
    "text_tokens": (
        Annotated[
            int | None,
            options.option("TOKENS", options.TEXT_TOKENS, group=help_text.Seldom(help_text.PAGE)),
        ],
        None,
    ),
    "max_new_tokens": (
        Annotated[int, options.option("TOKENS", options.NEW_TOKENS, group=help_text.PAGE)],
        1024,
    ),
    "batch_size": (
        Annotated[int, options.option("PAGES", options.BATCH, group=help_text.PAGE)],
        1,
    ),
    "pdf_dpi": (int, pdf_pages.DEFAULT_PDF_DPI),
}
"""Of pages for which the list does not say it."""

_OF_TOTALS: Final[options.Added] = {
    "output": (
        Annotated[
            Path | None,
            options.option(
                "FILE", "One row per page, as FILE.csv or FILE.parquet.", group=help_text.OUTPUT
            ),
        ],
        None,
    ),
    "histogram": (
        Annotated[
            str,
            options.option(
                ("grid", "tokens"),
                "Pages by crop grid, or by tokens of the prompt.",
                callback=options.in_any_case,
                group=help_text.OUTPUT,
            ),
        ],
        "grid",
    ),
    "output_format": (
        Annotated[
            str,
            options.option(
                ("table", "json"),
                options.FORMAT,
                "--format",
                callback=options.in_any_case,
                group=help_text.OUTPUT,
            ),
        ],
        "table",
    ),
}
"""What becomes of the totals."""


def archive(
    context: typer.Context,
    pages: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|FOLDER",
            readable=False,
            show_default=False,
            help="The pages: a Parquet or CSV file with columns width and height (and text_tokens,"
            " max_new_tokens), an image, a PDF, or a folder of images and PDFs.",
        ),
    ],
    mode: Annotated[str | None, "modes"] = None,
    dtype: Annotated[str, "dtypes"] = "bfloat16",
    use_flash_attn: Annotated[str, "attentions"] = "0",
    sliding_window: Annotated[str | None, "windows"] = None,
    of_pages: options.Added = _LENGTHS_OF_ALL,
    of_model: options.Added = page_options.MODEL,
    results: options.Added = _OF_TOTALS,
    assumptions: bool = False,
    strict: bool = False,
    debug: bool = False,
    of_time: options.Added = options.SECONDS_OF_A_LIST,
) -> None:
    """Count every page of a list, add them up, and predict GPU-hours.

    All pages of a batch have equal prompts; the remainder for each prompt makes a smaller batch.
    """
    from dsocr_analyze.row_files import spare_pandas

    spare_pandas()
    _count_list(context, page_options.requested_of_many(context))


def _count_list(context: typer.Context, requested: TimeRequested | None) -> None:
    """Counts the pages of a list."""
    from dsocr_analyze.archive import axes, pages, shown, totals

    given = context.params
    output, batch_size, histogram = (given[each] for each in ("output", "batch_size", "histogram"))
    printing.check_files(output)
    directory = page_options.directory_asked(given, sliding_window=None)
    asked = setting.CountedModel.from_directory(directory)
    architecture = asked.architecture
    modes = axes.parse_modes("mode", given["mode"] or architecture.default_mode, architecture)
    settings = setting.settings_of(
        modes=modes, windows=page_options.windows_from(architecture, given["sliding_window"]),
        attentions=options.switches("flash_attention", given["use_flash_attn"]),
        dtypes=options.dtypes_from(given["dtype"]),
    )  # fmt: skip
    modes = tuple(dict.fromkeys(modes))
    _check(given, has_gpu=requested is not None)
    lengths = {name: given[name] for name in ("text_tokens", "max_new_tokens")}
    planned = PageRequest(architecture=architecture, batch_size=batch_size, **lengths)
    lengths["text_tokens"] = planned.workload_of_page.text_tokens
    opening = setting.opening_of(
        directory, architecture, modes, command="archive", options=options.options_used(context)
    )
    timer = None if requested is None else _timer(given, requested, asked, settings)
    words.warn(context, setting.warnings_of_modes(architecture, modes), arguments=())
    page_options.check_pdf_dpi(context, given["pages"])
    listed = pages.open_pages(given["pages"], pdf_dpi=given["pdf_dpi"])
    words.warn(context, listed.warnings)

    def passing() -> Iterator[listed_pages.Pages]:
        """The pages; their rows are written before, and counted as done after."""
        done = 0
        for some in pages.read_pages(listed.batches, architecture.forms.model.page_rule, **lengths):
            if writer is not None:
                for each in settings:
                    writer.write(some.table(asked, each))
            yield some
            done += len(some) + some.malformed.rows
            announce(f"{done:,} pages", listed.share)

    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(table_files.table_writer(output, opening)) if output else None
        announce = stack.enter_context(streams.announced_steps(is_quiet=given["quiet"]))
        found = totals.add_up(
            asked, settings, passing(), opening, timer, batch_size=batch_size, files=listed.files
        )
        context.obj.begin_writing()  # `output` is moved into place now
    written = [output, output and table_files.sidecar(output)]
    printing.emit(context, found.document, _said(context, found, histogram, written), aside=written)
    words.warn(
        context,
        [
            *asked.warnings,
            *shown.warnings_of(found, asked.dimensions.decoder.max_position_embeddings),
        ],
    )


def _timer(
    given: Mapping[str, Any],
    requested: TimeRequested,
    model: setting.CountedModel,
    settings: Sequence[setting.Setting],
) -> ArchiveTimer:
    from dsocr_analyze.archive.seconds import ArchiveTimer
    from dsocr_analyze.cli import time_requests

    concurrency, deadline = given["concurrency"], given["deadline"]
    concurrency = _LIST_CONCURRENCY if concurrency is None else concurrency
    if not 1 <= concurrency <= MOST_CONCURRENCY:
        raise WorkloadError(
            f"--concurrency {concurrency} is out of range; give 1 to {MOST_CONCURRENCY}"
        )
    return ArchiveTimer(
        requested, model, settings, concurrency=concurrency,
        deadline_hours=None if deadline is None else time_requests.deadline_hours(deadline),
        has_lengths=time_requests.lengths_are_given(given),
    )  # fmt: skip


def _check(given: Mapping[str, Any], *, has_gpu: bool) -> None:
    """Raises, before any work, for options that contradict each other."""
    batch_size, output, listed = given["batch_size"], given["output"], given["pages"]
    refuse(
        WorkloadError,
        (batch_size != 1 and output is not None,
         f"--output {output} has one row per page, and a page of a batch has no cost of its own;"
         f" leave out --output, or --batch-size {batch_size}"),
        (batch_size != 1 and has_gpu,
         f"--batch-size {batch_size} has no effect on seconds: a GPU takes the pages of a list as"
         f" they come; give --concurrency {batch_size} instead"),
    )  # fmt: skip
    if output is not None and exists(output) and exists(listed) and output.samefile(listed):
        raise FormatError(f"--output {str(output)!r} is the list of pages itself; give another")


def _said(
    context: typer.Context,
    found: Archive,
    histogram: str,
    written: Sequence[Path | None],
) -> printing.Said:
    from dsocr_analyze.archive import shown

    document = found.document
    answers = [*shown.archive_answers(found)]
    lines = [*answers[:_LISTED], f"Ran: {model_text(document.model)} by the analytic engine"]
    lines += () if document.files is None else shown.file_lines(document.files)
    assumed = dict.fromkeys(said for each in document.time for said in each.assumptions)
    notes = [said for each in document.time for said in each.notes]
    below = [
        printing.Lines("Notes", document.metadata.notes),
        printing.assumptions(context, assumed, notes),
    ]
    tables = shown.archive_tables(found, histogram)
    return printing.Said("\n".join(lines), tables, below, written)
