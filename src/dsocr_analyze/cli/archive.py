"""`sweep --pages`: what a whole list of pages costs."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsocr_analyze.cli.progress import LateProgress
from dsocr_analyze.errors import OutputError, WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.model.dimensions import ModelDimensions
    from dsocr_analyze.sweep.archive import Archive
    from dsocr_analyze.sweep.page_list import PageBatch, PageList
    from dsocr_analyze.sweep.product import Sweep
    from dsocr_analyze.sweep.rows import PageRows

__all__ = ["FORMATS", "HISTOGRAMS", "count_archive"]

FORMATS = ("table", "json")
HISTOGRAMS = ("grid", "tokens")


def count_archive(
    path: Path,
    product: Sweep,
    dimensions: ModelDimensions,
    metadata: dict[str, Any],
    *,
    output: Path | None,
    plot: Path | None,
    histogram: str,
    output_format: str,
    quiet: bool,
) -> list[str]:
    """Adds up a list of pages under every setting, and returns the warnings."""
    from dsocr_analyze.sweep.archive_report import archive_document, archive_tables
    from dsocr_analyze.sweep.source import open_pages

    _check_choice("--format", output_format, FORMATS)
    _check_choice("--histogram", histogram, HISTOGRAMS)
    _check_axes(product)
    if output is not None and output.exists() and path.exists() and output.samefile(path):
        raise OutputError(f"--output {str(output)!r} is the list of pages itself; give another")
    archive = _added_up(open_pages(path), product, dimensions, metadata, output)
    if plot is not None:
        _plot(plot, archive, histogram, path)
    if not quiet:
        if output_format == "json":
            document = archive_document(archive, metadata)
            sys.stdout.write(json.dumps(document, indent=2) + "\n")
        else:
            from dsocr_analyze.report.tables import model_text
            from dsocr_analyze.report.terminal import print_table

            print(f"Ran: {model_text(metadata['model'])} by closed forms")
            for table in archive_tables(archive, histogram):
                print_table(table)
            for note in metadata["notes"]:
                print(f"Note: {note}")
        for written in (output, plot):
            if written is not None:
                # A JSON document stays alone on stdout.
                to = sys.stderr if output_format == "json" else sys.stdout
                print(f"wrote {written}", file=to)
    return _warnings(archive, dimensions)


def _added_up(
    pages: PageList,
    product: Sweep,
    dimensions: ModelDimensions,
    metadata: dict[str, Any],
    output: Path | None,
) -> Archive:
    """The totals; every page's row goes to `output` on the way."""
    from dsocr_analyze.sweep.archive import add_up
    from dsocr_analyze.sweep.output import table_writer
    from dsocr_analyze.sweep.page_table import page_table

    settings = list(product.settings())
    text_tokens, max_new_tokens = product.text_tokens.largest, product.max_new_tokens.largest
    with contextlib.ExitStack() as stack:
        write = None
        if output is not None:
            write = stack.enter_context(table_writer(output, metadata))
        progress = stack.enter_context(LateProgress("pages", pages.length))

        def on_batch(batch: PageBatch, rows: PageRows) -> None:
            if write is not None:
                for setting in settings:
                    write(page_table(dimensions, setting, batch, rows, text_tokens, max_new_tokens))
            progress.advance(len(batch.numbers) + len(batch.rejected))

        return add_up(
            pages,
            settings,
            dimensions,
            text_tokens=text_tokens,
            max_new_tokens=max_new_tokens,
            on_batch=on_batch,
        )


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise WorkloadError(f"{option} {value!r} is unknown; use {', '.join(choices)}")


def _check_axes(product: Sweep) -> None:
    """Of the lengths an archive takes one value each, and its pages are counted one at a time."""
    for option, axis in (
        ("--text-tokens", product.text_tokens),
        ("--max-new-tokens", product.max_new_tokens),
    ):
        if len(axis) > 1:
            raise WorkloadError(
                f"{option} has {len(axis)} values; with --pages give one, or a column in the list"
            )
    if len(product.batch_sizes) > 1 or product.batch_sizes.largest > 1:
        raise WorkloadError("--pages counts one page at a time; leave out --batch-size")


def _plot(path: Path, archive: Archive, histogram: str, pages: Path) -> None:
    from dsocr_analyze.sweep.histogram import grid_bars, token_bars
    from dsocr_analyze.sweep.plot import plot_bars

    if histogram == "grid":
        bars = grid_bars(archive.pages_by_grid)
        title, label = "Pages by crop grid", "crop grid [columns x rows of local views]"
    else:
        if len(archive.totals) > 1:
            raise WorkloadError(
                f"a plot of tokens shows one setting; there are {len(archive.totals)}, give one"
                " --mode, --dtype and --use-flash-attn"
            )
        bars = token_bars(archive.totals[0].pages_by_tokens)
        title = f"Pages by prompt length, mode {archive.totals[0].setting.mode.name}"
        label = "prompt [tokens]"
    plot_bars(path, bars, title, f"{archive.pages:,} pages of {pages.name}", label)


def _warnings(archive: Archive, dimensions: ModelDimensions) -> list[str]:
    warnings = [f"row {row}: {reason}" for row, reason in archive.malformed.reported]
    if archive.malformed.rows:
        more = archive.malformed.rows - len(archive.malformed.reported)
        named = f", {more:,} more than are named" if more else ""
        warnings.insert(
            0,
            f"{archive.malformed.rows:,} of {archive.rows:,} rows describe no page and are not"
            f" counted{named}",
        )
    positions = dimensions.decoder.max_position_embeddings
    warnings += [
        f"{totals.beyond_positions:,} of {archive.pages:,} pages reach beyond the decoder's"
        f" max_position_embeddings, {positions}, in mode {totals.setting.mode.name}; they are"
        " counted all the same"
        for totals in archive.totals
        if totals.beyond_positions
    ]
    return warnings
