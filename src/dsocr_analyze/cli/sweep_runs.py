"""What `sweep` does with a product of ranges."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import typer

from dsocr_analyze.archive import plots, shown, table_files
from dsocr_analyze.archive.combinations import Sweep, sweep_over
from dsocr_analyze.archive.setting import (
    CountedModel,
    CountOpening,
    opening_of,
    warnings_of_modes,
)
from dsocr_analyze.cli import options, page_options, printing, words
from dsocr_analyze.cli.streams import LateProgress, complain
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.pictures.settings import settings_of_model
from dsocr_analyze.report.opening import model_text

if TYPE_CHECKING:
    from dsocr_analyze.archive.seconds import TimeRequested

__all__ = ["run"]

UNASKED_ROWS: Final = 10_000_000
"""Longer sweeps ask for confirmation."""


def run(context: typer.Context, time: TimeRequested | None, quantity: str) -> None:
    """Counts every combination, once nothing can fail."""
    given = context.params
    directory = page_options.model_directory_from(given["model"], given["arch"], given["config"])
    counted = CountedModel.from_directory(directory)
    architecture, windows = counted.architecture, given["sliding_window"]
    if windows is not None:
        windows = page_options.windows_from(architecture, windows)
    combinations = sweep_over(
        architecture, page=given["page"] or "a4", mode=given["mode"],
        text_tokens=given["text_tokens"] or None, max_new_tokens=given["max_new_tokens"],
        batch_size=given["batch_size"] or "1", dtype=given["dtype"],
        flash_attention=options.switches("flash_attention", given["use_flash_attn"]),
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
        rows = combinations.rows
        plots.describe(quantity)
        if time is None and quantity in plots.TIMES:
            raise WorkloadError(f"--quantity {quantity} needs predicted seconds; give --gpu too")
        if rows > plots.MOST_POINTS:
            raise WorkloadError(
                f"a plot of {rows:,} rows is not readable; give shorter ranges, for at most"
                f" {plots.MOST_POINTS:,}, or no --plot"
            )
    combinations.check(counted)
    words.warn(context, warnings_of_modes(architecture, combinations.modes), arguments=())
    if combinations.rows > UNASKED_ROWS and not given["yes"]:
        _ask(combinations.rows)
    warnings = _count(context, combinations, counted, opening, quantity)
    for note in () if given["quiet"] else notes:
        complain(f"assumed: {note}")
    words.warn(context, [*counted.warnings, *warnings])


def _ask(rows: int) -> None:
    """Asks for confirmation before a sweep of many rows."""
    if not sys.stdin.isatty():
        raise WorkloadError(
            f"the sweep has {rows:,} rows; give shorter ranges, or --yes to start it anyway"
        )
    print(f"The sweep has {rows:,} rows. Start it? [y/N]: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise WorkloadError(f"the sweep of {rows:,} rows was not started; give shorter ranges")


def _count(
    context: typer.Context,
    combinations: Sweep,
    counted: CountedModel,
    opening: CountOpening,
    quantity: str,
) -> list[str]:
    """Writes every row, draws them, and returns the warnings."""
    given = context.params
    output, plot = given["output"], given["plot"]
    rows, positions = combinations.rows, counted.dimensions.decoder.max_position_embeddings
    most_kept, drawn = shown.MOST_SHOWN if plot is None else rows, None
    beyond, kept = 0, list[Any]()
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(_row_writer(given, opening))
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
            drawn = plots.sweep_picture(
                kept, quantity, given["x"], settings_of_model(opening.model, given["config"]),
                combinations.time,
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
    exceeding = (
        f"{beyond:,} of {rows:,} workloads exceed the decoder's max_position_embeddings,"
        f" {positions}; they are counted anyway"
    )
    return [exceeding] if beyond else []


def _row_writer(
    given: Mapping[str, Any], opening: CountOpening
) -> contextlib.AbstractContextManager[table_files.BatchWriter | None]:
    """Takes the rows as they come: into `--output`, or as CSV into a pipe.

    None where there is neither: rows are for a picture, or a reader sees the first of them.
    """
    if given["output"] is not None:
        return table_files.table_writer(given["output"], opening)
    if given["plot"] is not None or given["quiet"] or sys.stdout.isatty():
        return contextlib.nullcontext()
    sys.stdout.flush()
    return table_files.BatchWriter(sys.stdout.buffer)
