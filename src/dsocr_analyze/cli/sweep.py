"""What-ifs by the million: every combination of some ranges, or every page of an archive."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsocr_analyze.cli import archive, options
from dsocr_analyze.cli.progress import LateProgress
from dsocr_analyze.errors import OutputError, StrictError, WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.model.dimensions import ModelDimensions
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.sweep.product import Sweep

__all__ = ["sweep"]

UNASKED_ROWS = 10_000_000
"""A longer sweep is started only after a yes."""

_QUANTITY = "page_flops"

_AXES = "Axes (lists and ranges: 10,100:1000:100)"
_RESULT = "Result"


def sweep(
    pages: Annotated[
        Path | None,
        typer.Option(
            "--pages",
            metavar="FILE|FOLDER",
            help="Count these pages in place of --page: a Parquet or CSV file with columns width"
            " and height (and text_tokens, max_new_tokens), or a folder of images.",
        ),
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(
            "--page",
            metavar="LIST",
            help="Page sizes: a4, a4@100:300:50, 1240x1754, 600:2400:200x800:3200:200."
            " Default: a4.",
            rich_help_panel=_AXES,
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            metavar="LIST",
            help="Modes: names, all, or sizes like 1024/640 (crops) and 512:1280:64 (does not).",
            rich_help_panel=_AXES,
        ),
    ] = "gundam",
    text_tokens: Annotated[
        str,
        typer.Option(
            "--text-tokens",
            metavar="LIST",
            help="Text tokens, BOS included.",
            rich_help_panel=_AXES,
        ),
    ] = "10",
    max_new_tokens: Annotated[
        str,
        typer.Option(
            "--max-new-tokens",
            metavar="LIST",
            help="Tokens that the page yields.",
            rich_help_panel=_AXES,
        ),
    ] = "1024",
    batch_size: Annotated[
        str,
        typer.Option(
            "--batch-size", metavar="LIST", help="Equal pages at a time.", rich_help_panel=_AXES
        ),
    ] = "1",
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype",
            metavar="LIST",
            help="Types of weights and activations: bfloat16, float16, float32.",
            rich_help_panel=_AXES,
        ),
    ] = "bfloat16",
    use_flash_attn: Annotated[
        str,
        typer.Option(
            "--use-flash-attn",
            metavar="LIST",
            help="Decoder attention: 0 eager, 1 FlashAttention-2.",
            rich_help_panel=_AXES,
        ),
    ] = "0",
    model: options.ModelOption = None,
    config: options.ConfigOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="A row a workload, as FILE.csv or FILE.parquet. Default: CSV on stdout;"
            " with --pages only the totals.",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="A picture, as FILE.png or FILE.svg: --quantity over --x; with --pages the"
            " histogram. Needs the extra 'plot'.",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    quantity: Annotated[
        str | None,
        typer.Option(
            "--quantity",
            metavar="COLUMN",
            help="What is plotted. Default: page_flops.",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option(
            "--x",
            metavar="COLUMN",
            help="What it is plotted over. Default: the axis with most values.",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    histogram: Annotated[
        str | None,
        typer.Option(
            "--histogram",
            metavar="|".join(archive.HISTOGRAMS),
            help="With --pages: pages by crop grid, or by tokens of the prompt. Default: grid.",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(archive.FORMATS),
            help="With --pages: how the totals are printed. Default: table.",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Start a huge sweep without being asked.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on stdout.")] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with 3 where there is a warning; still write."),
    ] = False,
) -> None:
    """Count every combination of some ranges, or every page of an archive."""
    from dsocr_analyze.model.dimensions import ModelDimensions
    from dsocr_analyze.sweep.axes import parse_modes, parse_numbers, parse_pages
    from dsocr_analyze.sweep.output import table_format
    from dsocr_analyze.sweep.plot import check_plot, describe
    from dsocr_analyze.sweep.product import Sweep
    from dsocr_analyze.workload.workload import LARGEST_COUNT

    _check_options(
        pages,
        plot,
        {"--page": page},
        {"--quantity": quantity, "--x": x},
        {"--histogram": histogram, "--format": output_format},
    )
    product = Sweep(
        pages=parse_pages(page or "a4"),
        modes=parse_modes(mode),
        text_tokens=parse_numbers("--text-tokens", text_tokens, 1, LARGEST_COUNT),
        max_new_tokens=parse_numbers("--max-new-tokens", max_new_tokens, 1, LARGEST_COUNT),
        batch_sizes=parse_numbers("--batch-size", batch_size, 1, LARGEST_COUNT),
        dtypes=_dtypes(dtype),
        attentions=_attentions(use_flash_attn),
    )
    if output is not None:
        table_format(output)
        _check_folder(output)
    if plot is not None:
        check_plot(plot)
        describe(quantity or _QUANTITY)
        _check_folder(plot)
    # Only the config is read: no code of the directory is executed.
    directory = options.model_directory_from(model, config, trust_remote_code=True)
    dimensions = ModelDimensions.from_config(directory.config)
    metadata = _metadata(directory, product)
    model_name = "DeepSeek-OCR" if directory.is_reference else metadata["model"]["id"]
    if config is not None:
        model_name = config.name
    if pages is not None:
        warnings = archive.count_archive(
            pages, product, dimensions, metadata, output=output, plot=plot,
            histogram=histogram or "grid", output_format=output_format or "table", quiet=quiet,
        )  # fmt: skip
    else:
        warnings = _count_product(
            product, dimensions, metadata, output=output, plot=plot,
            quantity=quantity or _QUANTITY, x=x, model_name=model_name, yes=yes, quiet=quiet,
        )  # fmt: skip
    for warning in warnings:
        print(f"dsocr-analyze: warning: {warning}", file=sys.stderr)
    if strict and warnings:
        raise StrictError(f"--strict: {warnings[0]}")


def _check_options(
    pages: Path | None,
    plot: Path | None,
    of_axes: dict[str, str | None],
    of_plots: dict[str, str | None],
    of_lists: dict[str, str | None],
) -> None:
    """Refuses options that would have no effect."""
    for option, value in (of_axes | of_plots).items():
        if value is not None and pages is not None:
            raise WorkloadError(f"give --pages {pages} or {option} {value}, not both")
    for option, value in of_plots.items():
        if value is not None and plot is None:
            raise WorkloadError(f"{option} {value} is for a picture; give --plot FILE too")
    for option, value in of_lists.items():
        if value is not None and pages is None:
            raise WorkloadError(
                f"{option} {value} is for a list of pages; give --pages, or leave it out"
            )


def _dtypes(text: str) -> tuple[str, ...]:
    from dsocr_analyze.closed_form import dtype_named
    from dsocr_analyze.sweep.axes import parse_names

    return tuple(dict.fromkeys(dtype_named(name) for name in parse_names("--dtype", text)))


def _attentions(text: str) -> tuple[bool, ...]:
    from dsocr_analyze.sweep.axes import parse_names

    switches = {"0": False, "1": True}
    names = parse_names("--use-flash-attn", text)
    for name in names:
        if name not in switches:
            raise WorkloadError(f"--use-flash-attn {name!r} is not possible; give 0, 1 or 0,1")
    return tuple(dict.fromkeys(switches[name] for name in names))


def _check_folder(path: Path) -> None:
    """Refuses, before the work, a file that could not be written after it."""
    if path.is_dir():
        raise OutputError(f"cannot write {str(path)!r}: it is a folder; give a file's name")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {str(path)!r}: no folder {str(path.parent)!r}; make it")


def _metadata(directory: ModelDirectory, product: Sweep) -> dict[str, Any]:
    """Which model, counted how: what a file says about itself."""
    from dsocr_analyze import __version__
    from dsocr_analyze.report.document import CONVENTIONS, UNIFORM_ROUTING_NOTE, model_metadata
    from dsocr_analyze.sweep.settings import notes_of_modes

    return {
        "model": model_metadata(directory),
        "versions": {"tool": __version__},
        "engine": "analytic",
        "conventions": list(CONVENTIONS),
        "notes": [UNIFORM_ROUTING_NOTE, *notes_of_modes(product.modes)],
    }


def _count_product(
    product: Sweep,
    dimensions: ModelDimensions,
    metadata: dict[str, Any],
    *,
    output: Path | None,
    plot: Path | None,
    quantity: str,
    x: str | None,
    model_name: str,
    yes: bool,
    quiet: bool,
) -> list[str]:
    """Writes every row, and returns the warnings."""
    from dsocr_analyze.sweep.plot import MOST_POINTS, plot_sweep

    rows = product.rows
    if plot is not None and rows > MOST_POINTS:
        raise WorkloadError(
            f"a plot of {rows:,} rows is not readable; give shorter ranges, for at most"
            f" {MOST_POINTS:,}, or no --plot"
        )
    product.check(dimensions)
    _ask(rows, yes=yes)
    is_on_stdout = output is None and plot is None and not quiet
    positions = dimensions.decoder.max_position_embeddings
    beyond = 0
    plotted = []
    with contextlib.ExitStack() as stack:
        write = stack.enter_context(_rows_writer(output, metadata, is_on_stdout=is_on_stdout))
        is_shown = not (is_on_stdout and sys.stdout.isatty())
        progress = stack.enter_context(LateProgress("workloads", rows, is_wanted=is_shown))
        for batch in product.batches(dimensions):
            reach = batch.column("seq_len").to_numpy() + batch.column("max_new_tokens").to_numpy()
            beyond += int((reach - 1 > positions).sum())
            write(batch)
            if plot is not None:
                plotted.append(batch)
            progress.advance(batch.num_rows)
        if plot is not None:  # while it may still fail, no table is put in place
            plot_sweep(plot, plotted, quantity, x, model_name)
    if not quiet:
        if output is not None:
            print(f"wrote {output} ({rows:,} rows)")
        if plot is not None:
            print(f"wrote {plot}")
    if not beyond:
        return []
    return [
        f"{beyond:,} of {rows:,} workloads reach beyond the decoder's max_position_embeddings,"
        f" {positions}; they are counted all the same"
    ]


@contextlib.contextmanager
def _rows_writer(
    output: Path | None, metadata: dict[str, Any], *, is_on_stdout: bool
) -> Iterator[Callable[[Any], None]]:
    """Yields what takes the rows: a file, stdout (as CSV), or nothing."""
    from dsocr_analyze.sweep.output import csv_writer, table_writer

    if output is not None:
        with table_writer(output, metadata) as write:
            yield write
    elif is_on_stdout:
        sys.stdout.flush()
        with _pipe_that_may_close(), csv_writer(sys.stdout.buffer) as write:
            yield write
    else:
        yield lambda _: None


def _ask(rows: int, *, yes: bool) -> None:
    """Lets a person think again before a sweep of many rows."""
    if rows <= UNASKED_ROWS or yes:
        return
    if not sys.stdin.isatty():
        raise WorkloadError(
            f"the sweep has {rows:,} rows; give shorter ranges, or --yes to start it all the same"
        )
    typer.confirm(f"The sweep has {rows:,} rows. Start it?", abort=True, err=True)


@contextlib.contextmanager
def _pipe_that_may_close() -> Iterator[None]:
    """Ends quietly where the reader of stdout has had enough, as `head` has."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What the interpreter still flushes at its exit has to go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
