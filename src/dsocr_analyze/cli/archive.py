"""`dsocr-analyze archive`: what a whole list of pages costs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsocr_analyze.archive.folder import DEFAULT_PDF_DPI
from dsocr_analyze.cli import completion, many_options, many_time_options, options
from dsocr_analyze.cli.printing import Lines, Said, assumptions, emit
from dsocr_analyze.cli.progress import LateProgress
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.cli.used_options import options_used
from dsocr_analyze.cli.warnings import StrictOption, warn, warn_of_modes
from dsocr_analyze.errors import FormatError, WorkloadError
from dsocr_analyze.input_files import exists

if TYPE_CHECKING:
    from dsocr_analyze.archive.pages import Pages
    from dsocr_analyze.archive.plot import SeenPages
    from dsocr_analyze.archive.source import PageSource
    from dsocr_analyze.archive.time_totals import ListTime, ListTimer
    from dsocr_analyze.archive.totals import Archive
    from dsocr_analyze.columns.counted_model import CountedModel
    from dsocr_analyze.columns.metadata import CountOpening
    from dsocr_analyze.columns.setting import Setting
    from dsocr_analyze.workload import Mode

__all__ = ["HISTOGRAMS", "archive", "count_list"]

HISTOGRAMS = ("grid", "tokens")
BY = "Pages by crop grid, or by tokens of the prompt."

_LENGTHS = "What the list does not say"

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
BatchOption = Annotated[
    int,
    typer.Option(
        "--batch-size",
        metavar="PAGES",
        help=options.BATCH,
        rich_help_panel=_LENGTHS,
    ),
]
PdfDpiOption = Annotated[
    int,
    typer.Option(
        "--pdf-dpi",
        metavar="DPI",
        help=OF_PDFS,
        rich_help_panel=_LENGTHS,
    ),
]
TextTokensOption = Annotated[
    int | None,
    typer.Option(
        "--text-tokens",
        metavar="TOKENS",
        help=options.TEXT_TOKENS,
        rich_help_panel=_LENGTHS,
    ),
]
NewTokensOption = Annotated[
    int,
    typer.Option(
        "--max-new-tokens",
        metavar="TOKENS",
        help=options.NEW_TOKENS,
        rich_help_panel=_LENGTHS,
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="One row per page, as FILE.csv or FILE.parquet.",
        rich_help_panel=many_options.RESULT,
    ),
]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="The histogram, as FILE.png or FILE.svg. Needs the extra 'plot'.",
        rich_help_panel=many_options.RESULT,
    ),
]
HistogramOption = Annotated[
    str,
    typer.Option(
        "--histogram",
        metavar="|".join(HISTOGRAMS),
        autocompletion=completion.one_of(*HISTOGRAMS),
        help=BY,
        rich_help_panel=many_options.RESULT,
    ),
]
FormatOption = Annotated[str, options.format_option("table", "json", panel=many_options.RESULT)]


@many_time_options.of_many_pages()
def archive(
    context: typer.Context,
    pages: PagesArgument,
    mode: many_options.ModesOption = None,
    dtype: many_options.DtypesOption = "bfloat16",
    use_flash_attn: many_options.AttentionsOption = "0",
    sliding_window: many_options.WindowsOption = None,
    text_tokens: TextTokensOption = None,
    max_new_tokens: NewTokensOption = 1024,
    batch_size: BatchOption = 1,
    pdf_dpi: PdfDpiOption = DEFAULT_PDF_DPI,
    model: options.ModelOption = None,
    arch: options.ArchOption = None,
    config: options.ConfigOption = None,
    output: OutputOption = None,
    plot: PlotOption = None,
    histogram: HistogramOption = "grid",
    output_format: FormatOption = "table",
    quiet: many_options.QuietOption = False,
    strict: StrictOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Count every page of a list, add them up, and predict the GPU-hours they take.

    All pages of a batch have equal prompts; the remainder for each prompt makes a smaller batch.
    """
    if quiet:
        many_options.check_quiet({"--output": output, "--plot": plot})
    time = many_time_options.time_requested(context)
    count_list(
        context, pages, mode, dtype, use_flash_attn, sliding_window, text_tokens, max_new_tokens,
        batch_size, pdf_dpi, model, arch, config, output, plot, histogram, output_format,
        many_time_options.list_time(context, time),
        quiet=quiet,
    )  # fmt: skip


def count_list(
    context: typer.Context,
    pages: Path,
    mode: str | None,
    dtype: str,
    use_flash_attn: str,
    sliding_window: str | None,
    text_tokens: int | None,
    max_new_tokens: int,
    batch_size: int,
    pdf_dpi: int,
    model: str | None,
    arch: str | None,
    config: Path | None,
    output: Path | None,
    plot: Path | None,
    histogram: str,
    output_format: str,
    time: ListTime | None,
    *,
    quiet: bool,
) -> None:
    """The command, with its parsed options for predicted seconds."""
    from dsocr_analyze.archive.plot import SeenPages, settings_of_list
    from dsocr_analyze.archive.source import open_pages
    from dsocr_analyze.columns.counted_model import CountedModel
    from dsocr_analyze.columns.metadata import opening_of
    from dsocr_analyze.pictures.settings import settings_of_model

    histogram = options.chosen("--histogram", histogram, HISTOGRAMS)
    many_options.check_files(output, plot)
    _check_batches(batch_size, output, time)
    directory = options.described_model(model, arch, config)
    counted = CountedModel.from_directory(directory)
    architecture = counted.architecture
    settings = many_options.settings_from(architecture, mode, dtype, use_flash_attn, sliding_window)
    modes = list(dict.fromkeys(setting.mode for setting in settings))
    _check_results(pages, output, plot, histogram, modes)
    planned = architecture.plan(
        page=(1, 1), text_tokens=text_tokens, max_new_tokens=max_new_tokens, batch_size=batch_size
    )
    opening = opening_of(
        directory, architecture, modes,
        command=context.info_name or "", options=options_used(context),
    )  # fmt: skip
    lengths = {"text_tokens": planned.text_tokens, "max_new_tokens": max_new_tokens}
    timer = _timer(counted, settings, time)
    warn_of_modes(context, architecture, modes)
    listed = open_pages(pages, pdf_dpi=pdf_dpi)
    warn(context, listed.warnings)
    seen = SeenPages()
    counts = _added_up(
        listed, lengths, counted, settings, output, opening, timer, context.obj.begin_writing,
        seen, batch_size,
    )  # fmt: skip
    if plot is not None:
        of_model = settings_of_model(opening.model, config)
        _plot(plot, counts, histogram, pages, settings_of_list(of_model, settings, seen))
    if not quiet:
        _print(counts, opening, histogram, output_format)
        _say_written(output, plot, output_format)
    warnings = _warnings(counts, counted.dimensions.max_positions)
    warn(context, [*counted.warnings, *warnings])


def _check_results(
    pages: Path, output: Path | None, plot: Path | None, histogram: str, modes: list[Mode]
) -> None:
    """Raise, before any work, for results that could not be written or drawn."""
    from dsocr_analyze.archive.histogram import MOST_PLOTTED

    if plot is not None and histogram == "tokens" and len(modes) > MOST_PLOTTED:
        raise WorkloadError(
            f"a plot of tokens shows at most {MOST_PLOTTED} modes; --mode has {len(modes)}"
        )
    if output is not None and exists(output) and exists(pages) and output.samefile(pages):
        raise FormatError(f"--output {str(output)!r} is the list of pages itself; give another")


def _say_written(output: Path | None, plot: Path | None, output_format: str) -> None:
    from dsocr_analyze.columns.table_files import sidecar

    for written in (output, output and sidecar(output), plot):
        if written is not None:
            # stdout must contain nothing but the JSON document.
            say = complain if output_format == "json" else print
            say(f"wrote {written}")


def _check_batches(batch_size: int, output: Path | None, time: ListTime | None) -> None:
    """Raise for options that don't make sense for batches of a list's pages."""
    if batch_size == 1:
        return
    if output is not None:
        raise WorkloadError(
            f"--output {output} has one row per page, and a page of a batch has no cost of its"
            f" own; leave out --output, or --batch-size {batch_size}"
        )
    if time is not None:
        raise WorkloadError(
            f"--batch-size {batch_size} has no effect on seconds: a GPU takes the pages of a list"
            f" as they come; give --concurrency {batch_size} instead"
        )


def _timer(
    counted: CountedModel, settings: list[Setting], time: ListTime | None
) -> ListTimer | None:
    from dsocr_analyze.archive.time_totals import ListTimer

    return None if time is None else ListTimer(counted, settings, time)


def _added_up(
    listed: PageSource,
    lengths: dict[str, int],
    counted: CountedModel,
    settings: list[Setting],
    output: Path | None,
    opening: CountOpening,
    timer: ListTimer | None,
    begin_writing: Callable[[], None],
    seen: SeenPages,
    batch_size: int,
) -> Archive:
    """The totals; every page's row is also written to `output` and shown to `seen`."""
    from dsocr_analyze.archive.pages import read_pages
    from dsocr_analyze.archive.totals import add_up
    from dsocr_analyze.columns.table_files import table_writer

    batches: Iterable[Pages] = seen.watched(read_pages(listed.batches, **lengths))
    with contextlib.ExitStack() as stack:
        if output is not None:
            write = stack.enter_context(table_writer(output, opening))
            batches = _written(batches, write, counted, settings)
        progress = stack.enter_context(LateProgress("pages", listed.length))
        watched = _watched(batches, progress)
        counts = add_up(counted, settings, watched, timer, batch_size=batch_size)
        counts.files = listed.files
        begin_writing()  # `output` is moved into place now
        return counts


def _written(
    batches: Iterable[Pages],
    write: Callable[[Any], None],
    counted: CountedModel,
    settings: list[Setting],
) -> Iterator[Pages]:
    """The same batches, each yielded after its rows have been written."""
    from dsocr_analyze.archive.page_table import page_table

    for pages in batches:
        for setting in settings:
            write(page_table(counted, setting, pages))
        yield pages


def _watched(batches: Iterable[Pages], progress: LateProgress) -> Iterator[Pages]:
    """The same batches; each one's rows count as done when the next is requested."""
    for pages in batches:
        yield pages
        progress.advance(pages.rows)


def _plot(
    path: Path,
    counts: Archive,
    histogram: str,
    pages: Path,
    settings: Mapping[str, Sequence[Any]],
) -> None:
    from dsocr_analyze.archive.histogram import histograms_of
    from dsocr_analyze.archive.plot import histogram_picture
    from dsocr_analyze.report.quantities import counted

    said = f"{counted(counts.pages, 'page')} of {pages.name}"
    histogram_picture(histograms_of(counts, histogram), said, settings).save(path)


def _print(counts: Archive, opening: CountOpening, histogram: str, output_format: str) -> None:
    from dsocr_analyze.archive.document import archive_document

    emit(
        output_format,
        lambda: archive_document(counts, opening),
        lambda: _said(counts, opening, histogram),
    )


def _said(counts: Archive, opening: CountOpening, histogram: str) -> Said:
    from dsocr_analyze.archive.files_document import file_lines
    from dsocr_analyze.archive.tables import archive_tables
    from dsocr_analyze.report.tables import model_text

    lines = [f"Ran: {model_text(opening.model)} by the analytic engine"]
    lines += () if counts.files is None else file_lines(counts.files)
    assumed = dict.fromkeys(said for each in counts.times for said in each.assumptions)
    below = [Lines("Notes", opening.metadata.notes), assumptions(assumed)]
    return Said("\n".join(lines), archive_tables(counts, histogram), below)


def _warnings(counts: Archive, max_positions: int) -> Iterator[str]:
    from dsocr_analyze.archive.files_document import file_warnings

    if counts.files is not None:
        yield from file_warnings(counts.files)
    malformed = counts.malformed
    if malformed.rows:
        more = malformed.rows - len(malformed.reported)
        named = f", {more:,} of them not listed" if more else ""
        yield (
            f"{malformed.rows:,} of {counts.rows:,} rows are not pages and are not counted{named}"
        )
    for row, reason in malformed.reported:
        yield f"row {row}: {reason}"
    for totals in counts.totals:
        if totals.beyond_positions:
            yield (
                f"{totals.beyond_positions:,} of {counts.pages:,} pages exceed the decoder's"
                f" max_position_embeddings, {max_positions}, in mode {totals.setting.mode.name};"
                " they are counted anyway"
            )
    for times in counts.times:
        if times.pages_that_wait:
            yield (
                f"{times.pages_that_wait:,} of {counts.pages:,} pages leave room for fewer than"
                f" {times.time.concurrency} at a time on {times.gpu}; the others wait"
            )
