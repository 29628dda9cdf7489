"""What `archive` does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from dsocr_analyze.architectures import PageRequest
from dsocr_analyze.archive import axes, pages, setting, shown, table_files, totals
from dsocr_analyze.cli import options, page_options, printing, streams, time_requests, words
from dsocr_analyze.errors import FormatError, WorkloadError
from dsocr_analyze.input_files import exists
from dsocr_analyze.report.opening import model_text
from dsocr_analyze.timing import MOST_CONCURRENCY

if TYPE_CHECKING:
    from dsocr_analyze.archive.seconds import ArchiveTimer, TimeRequested

_LIST_CONCURRENCY: Final = 16
_LISTED: Final = 4
"""Most answers before the tables, which have all of them."""


def _timer(
    given: Mapping[str, Any],
    requested: TimeRequested,
    model: setting.CountedModel,
    settings: Sequence[setting.Setting],
) -> ArchiveTimer:
    from dsocr_analyze.archive.seconds import ArchiveTimer

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


def count_list(context: typer.Context, requested: TimeRequested | None) -> None:
    """Counts the pages of a list."""
    given = context.params
    output, batch_size, histogram = (given[each] for each in ("output", "batch_size", "histogram"))
    printing.check_files(output)
    directory = page_options.model_directory_from(given["model"], given["arch"], given["config"])
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
    listed = pages.open_pages(given["pages"], pdf_dpi=given["pdf_dpi"])
    words.warn(context, listed.warnings)

    def passing() -> Iterator[pages.Pages]:
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


def _check(given: Mapping[str, Any], *, has_gpu: bool) -> None:
    """Raises, before any work, for options that contradict each other."""
    batch_size, output, listed = given["batch_size"], given["output"], given["pages"]
    for is_wrong, why in (
        (batch_size != 1 and output is not None,
         f"--output {output} has one row per page, and a page of a batch has no cost of its own;"
         f" leave out --output, or --batch-size {batch_size}"),
        (batch_size != 1 and has_gpu,
         f"--batch-size {batch_size} has no effect on seconds: a GPU takes the pages of a list as"
         f" they come; give --concurrency {batch_size} instead"),
    ):  # fmt: skip
        if is_wrong:
            raise WorkloadError(why)
    if output is not None and exists(output) and exists(listed) and output.samefile(listed):
        raise FormatError(f"--output {str(output)!r} is the list of pages itself; give another")


def _said(
    context: typer.Context,
    found: totals.Archive,
    histogram: str,
    written: Sequence[Path | None],
) -> printing.Said:
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
