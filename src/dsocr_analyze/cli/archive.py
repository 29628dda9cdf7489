"""`dsocr-analyze archive`: what a whole list of pages costs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsocr_analyze.archive.pdf_pages import DEFAULT_PDF_DPI
from dsocr_analyze.cli import options, page_options, time_options
from dsocr_analyze.cli.printing import Lines, Said, assumptions, emit
from dsocr_analyze.cli.streams import LateProgress, complain
from dsocr_analyze.cli.words import warn, warn_of_modes
from dsocr_analyze.errors import FormatError, WorkloadError
from dsocr_analyze.input_files import exists

if TYPE_CHECKING:
    from dsocr_analyze.archive.evaluate import TimeRequested
    from dsocr_analyze.archive.pages import Pages
    from dsocr_analyze.archive.totals import Archive, ListTime

__all__ = ["HISTOGRAMS", "archive", "count_list"]

HISTOGRAMS = ("grid", "tokens")
BY = "Pages by crop grid, or by tokens of the prompt."

PagesArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|FOLDER",
        show_default=False,
        help="The pages: a Parquet or CSV file with columns width and height (and text_tokens,"
        " max_new_tokens), an image, a PDF, or a folder of images and PDFs.",
    ),
]
OF_PDFS = "Pixels per inch of a PDF's pages. PDFs need the extra 'pdf'."


_LENGTHS_OF_ALL: Final[options.Added] = {
    "text_tokens": (
        Annotated[int | None, options.option("TOKENS", options.TEXT_TOKENS)],
        None,
    ),
    "max_new_tokens": (
        Annotated[int, options.option("TOKENS", options.NEW_TOKENS)],
        1024,
    ),
    "batch_size": (
        Annotated[int, options.option("PAGES", options.BATCH)],
        1,
    ),
    "pdf_dpi": (
        Annotated[int, options.option("DPI", OF_PDFS)],
        DEFAULT_PDF_DPI,
    ),
}
"""Of pages for which the list does not say it."""

_RESULTS: Final[options.Added] = {
    "output": (
        Annotated[
            Path | None, options.option("FILE", "One row per page, as FILE.csv or FILE.parquet.")
        ],
        None,
    ),
    "plot": (
        Annotated[
            Path | None,
            options.option(
                "FILE", "The histogram, as FILE.png or FILE.svg. Needs the extra 'plot'."
            ),
        ],
        None,
    ),
    "histogram": (
        Annotated[str, options.option(HISTOGRAMS, BY)],
        "grid",
    ),
    "output_format": (
        Annotated[str, options.format_option("table", "json")],
        "table",
    ),
}
"""What becomes of the totals."""


@time_options.of_many_pages()
@options.adding(_LENGTHS_OF_ALL, after="sliding_window")
@options.adding(_RESULTS, after="config")
def archive(
    context: typer.Context,
    pages: PagesArgument,
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
    """Count every page of a list, add them up, and predict the GPU-hours they take.

    All pages of a batch have equal prompts; the remainder for each prompt makes a smaller batch.
    """
    if quiet:
        results = {f"--{name}": context.params[name] for name in ("output", "plot")}
        options.check_quiet(results)
    count_list(context, time_options.time_requested(context))


def count_list(context: typer.Context, requested: TimeRequested | None, **instead: Any) -> None:
    """Count the pages of the list that the options name.

    Args:
        context: The command's context.
        requested: Predictions requested by the options.
        **instead: Values in place of the options', by the parameters' names.
    """
    from dsocr_analyze.archive import archive_shown, pages, setting, table_files, totals
    from dsocr_analyze.report.pictures.settings import settings_of_model

    used, given = options.options_used(context), context.params
    given.update(instead)
    output, batch_size = given["output"], given["batch_size"]
    time = time_options.list_time(context, requested)
    histogram = options.chosen("--histogram", given["histogram"], HISTOGRAMS)
    options.check_files(output, given["plot"])
    directory = page_options.described_model(given["model"], given["arch"], given["config"])
    asked = setting.CountedModel.from_directory(directory)
    settings = page_options.settings_from(asked.architecture, given)
    modes = list(dict.fromkeys(each.mode for each in settings))
    _check(given, time, histogram, len(modes))
    lengths = {name: given[name] for name in ("text_tokens", "max_new_tokens")}
    planned = asked.architecture.plan(page=(1, 1), batch_size=batch_size, **lengths)
    opening = setting.opening_of(
        directory, asked.architecture, modes, command=context.info_name or "", options=used
    )
    timer = None if time is None else totals.ListTimer(asked, settings, time)
    warn_of_modes(context, asked.architecture, modes)
    listed = pages.open_pages(given["pages"], pdf_dpi=given["pdf_dpi"])
    warn(context, listed.warnings)
    lengths["text_tokens"] = planned.text_tokens

    def passing() -> Iterator[Pages]:
        """The pages, whose rows are written before and counted as done after them."""
        for some in pages.read_pages(listed.batches, **lengths):
            if writer is not None:
                for each in settings:
                    writer.write(some.table(asked, each))
            yield some
            progress.advance(len(some) + some.malformed.rows)

    with contextlib.ExitStack() as stack:
        writer = None
        if output is not None:
            writer = stack.enter_context(table_files.table_writer(output, opening))
        progress = stack.enter_context(LateProgress("pages", listed.length))
        found = totals.add_up(
            asked, settings, passing(), opening, timer, batch_size=batch_size, files=listed.files
        )
        context.obj.begin_writing()  # `output` is moved into place now
    of_model = settings_of_model(opening.model, given["config"])
    written = [output, output and table_files.sidecar(output), given["plot"]]
    emit(
        context, found.document, lambda: _said(found, histogram, written),
        picture=lambda: archive_shown.histogram_picture(
            found, histogram, given["pages"].name, of_model
        ),
    )  # fmt: skip
    if given["output_format"] == "json" and not given["quiet"]:
        for path in filter(None, written):
            complain(f"wrote {path}")  # stdout must contain nothing but the document
    warn(
        context,
        [*asked.warnings, *archive_shown.warnings_of(found, asked.dimensions.max_positions)],
    )


def _check(given: Mapping[str, Any], time: ListTime | None, histogram: str, modes: int) -> None:
    """Raise, before any work, for options that contradict each other."""
    from dsocr_analyze.archive.archive_shown import MOST_PLOTTED

    batch_size, output, pages = given["batch_size"], given["output"], given["pages"]
    if batch_size != 1 and output is not None:
        raise WorkloadError(
            f"--output {output} has one row per page, and a page of a batch has no cost of its"
            f" own; leave out --output, or --batch-size {batch_size}"
        )
    if batch_size != 1 and time is not None:
        raise WorkloadError(
            f"--batch-size {batch_size} has no effect on seconds: a GPU takes the pages of a list"
            f" as they come; give --concurrency {batch_size} instead"
        )
    if given["plot"] is not None and histogram == "tokens" and modes > MOST_PLOTTED:
        raise WorkloadError(
            f"a plot of tokens shows at most {MOST_PLOTTED} modes; --mode has {modes}"
        )
    if output is not None and exists(output) and exists(pages) and output.samefile(pages):
        raise FormatError(f"--output {str(output)!r} is the list of pages itself; give another")


def _said(found: Archive, histogram: str, written: Sequence[Path | None]) -> Said:
    from dsocr_analyze.archive.archive_shown import archive_tables, file_lines
    from dsocr_analyze.report.opening import model_text

    document = found.document
    lines = [f"Ran: {model_text(document.model)} by the analytic engine"]
    lines += () if document.files is None else file_lines(document.files)
    assumed = dict.fromkeys(said for each in document.time for said in each.assumptions)
    below = [Lines("Notes", document.metadata.notes), assumptions(assumed)]
    return Said("\n".join(lines), archive_tables(found, histogram), below, written)
