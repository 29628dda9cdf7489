"""Sweeps and lists of pages for readers: tables, lines about files, and warnings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dsocr_analyze.archive.document import FilesDocument, PagesOfGrid
from dsocr_analyze.archive.evaluate import COST
from dsocr_analyze.archive.pages import extensions_text
from dsocr_analyze.archive.pdf_pages import INSTALL
from dsocr_analyze.archive.totals import Archive, bars_of_each
from dsocr_analyze.report.table import (
    Table,
    bytes_text,
    counted,
    exact,
    price_text,
    ratio_text,
    scaled,
    seconds_text,
)

if TYPE_CHECKING:
    from dsocr_analyze.archive.seconds import ArchiveTimeRequest

__all__ = [
    "MOST_SHOWN",
    "archive_tables",
    "file_lines",
    "grid_bars",
    "histogram",
    "sweep_table",
    "warnings_of",
]

# --- sweeps --------------------------------------------------------------------------------------

MOST_SHOWN: Final = 50
"""Most rows shown on a terminal; files have all rows."""

_AXIS_TITLES: Final = {
    "page_width": "width",
    "page_height": "height",
    "mode": "mode",
    "dtype": "dtype",
    "attention": "attention",
    "sliding_window": "window",
    "text_tokens": "text tokens",
    "max_new_tokens": "new tokens",
    "batch_size": "batch",
    "gpu": "GPU",
}
_SHOWN: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "seq_len": ("prompt", exact),
    "page_flops": ("page FLOPs", scaled),
    "page_seconds": ("page time", seconds_text),
    "pages_per_second": ("pages/s", ratio_text),
    COST: ("cost of 1,000", ratio_text),
    "kv_cache_bytes": ("KV cache", bytes_text),
    "prefill_pass_flops": ("prefill FLOPs", scaled),
    "page_bytes_read": ("page reads", bytes_text),
    "page_bytes_written": ("page writes", bytes_text),
    "peak_activation_bytes": ("peak activation", bytes_text),
}


def sweep_table(batches: Sequence[pa.RecordBatch], rows: int) -> Table:
    """The first `MOST_SHOWN` rows of a sweep."""
    shown = pa.Table.from_batches(batches).slice(0, MOST_SHOWN).to_pydict()
    axes = [name for name in _AXIS_TITLES if name in shown and len(set(shown[name])) > 1]
    columns = {name: (_AXIS_TITLES[name], _axis_text) for name in axes or ["mode"]}
    figures = {name: column for name, column in _SHOWN.items() if name in shown}
    cells = [
        ["-" if each is None else text_of(each) for each in shown[name]]
        for name, (_, text_of) in (columns | figures).items()
    ]
    first = f", the first {MOST_SHOWN}" if rows > MOST_SHOWN else ""
    return Table(
        f"Sweep of {rows:,} workloads{first}",
        tuple(name for name, _ in (columns | figures).values()),
        tuple(zip(*cells, strict=True)), label_columns=len(columns),
        optional=tuple(name for name, _ in [*figures.values()][:1:-1]),
    )  # fmt: skip


def _axis_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return exact(value) if isinstance(value, int) else str(value)


# --- lists of pages ------------------------------------------------------------------------------

_BAR_WIDTH: Final = 40
_SHOWN_EXTENSIONS: Final = 12

_OTHERS: Final = {
    "hidden": ("hidden file or folder, ignored", "hidden files or folders, ignored"),
    "linked_folders": ("link to a folder, not followed", "links to folders, not followed"),
    "images_with_more_frames": (
        "image with several frames, except for the first frame",
        "images with several frames, except for the first frame",
    ),
    "tiff_copies": (
        "smaller copy or mask in a TIFF, not a page",
        "smaller copies or masks in TIFFs, not a page",
    ),
}
"""What a folder has besides pages, one and several of it."""


def archive_tables(archive: Archive, kind: str) -> list[Table]:
    """The totals with one row per setting, seconds, and a histogram of a kind."""
    times = [] if archive.time is None else _time_tables(archive, archive.time)
    return [_totals_table(archive), *times, _histogram_table(archive, kind)]


def _totals_table(archive: Archive) -> Table:
    document = archive.document
    cells = [
        {
            "mode": totals.mode,
            "dtype": totals.dtype,
            "attention": setting.attention_label,
            "prompt tokens": scaled(totals.prompt_tokens),
            "new tokens": scaled(totals.new_tokens),
            "prefill FLOPs": scaled(totals.prefill_pass_flops),
            "FLOPs": scaled(totals.page_flops),
            "bytes read": bytes_text(totals.page_bytes_read),
            "bytes written": bytes_text(totals.page_bytes_written),
            "FLOPs per page": scaled(totals.page_flops // document.pages)
            if document.pages
            else "-",
            "largest KV cache": bytes_text(totals.largest_kv_cache_bytes),
        }
        for totals, setting in zip(document.totals, archive.settings, strict=True)
    ]
    title = counted(document.pages, "page")
    if document.batch_size > 1:
        title += f" in batches of {document.batch_size} with equal prompts"
    if archive.time is not None and archive.time.has_lengths:
        title += "; FLOPs and bytes for the most new tokens, seconds for those given"
    rows = tuple(tuple(each.values()) for each in cells)
    return Table(title, tuple(cells[0]), rows, label_columns=3)


def _time_tables(archive: Archive, time: ArchiveTimeRequest) -> list[Table]:
    """GPU-hours by GPU and setting, and what follows from them; at most 80 columns wide."""
    price, hours = time.requested.job.price_per_hour, time.deadline_hours
    differ = len({each.attention_label for each in archive.settings}) > 1
    names = ("GPU", "mode", "dtype", *(["attention"] * differ))
    spent, follows = [], []
    for each, setting in zip(archive.document.time, itertools.cycle(archive.settings)):
        label = (each.gpu, each.mode, each.dtype, *([setting.attention_label] * differ))
        spent.append((*label, *map(_three, (each.gpu_hours, each.low, each.high)), each.bound))
        cost = () if each.cost is None else (price_text(each.cost),)
        gpus = () if each.gpus_for_deadline is None else (exact(each.gpus_for_deadline),)
        follows.append((*label, _three(each.pages_per_second), *cost, *gpus))
    more = {
        "cost": None if price is None else f"cost at {price:g} per hour",
        "GPUs": None if hours is None else f"GPUs to finish in {hours:g} h",
    }
    return [
        Table(
            f"Predicted: {time.requested.job.runtime}, {time.concurrency} pages at once",
            (*names, "GPU-hours", "low", "high", "bound"), tuple(spent),
            label_columns=len(names),
        ),
        Table(
            ", ".join(["Results: pages/s of one GPU", *filter(None, more.values())]),
            (*names, "pages/s", *(name for name, said in more.items() if said)), tuple(follows),
            label_columns=len(names),
        ),
    ]  # fmt: skip


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.{3 if value >= 0.1 else 2}g}"


def _histogram_table(archive: Archive, kind: str) -> Table:
    title, _, series = histogram(archive, kind)
    bars, *others = series.values()
    if others:
        return Table(
            f"{title}, by mode",
            (kind, *series),
            tuple((name, *(exact(each[name]) for each in (bars, *others))) for name in bars),
        )
    pages, most = sum(bars.values()), max(bars.values(), default=0)
    rows = tuple(
        (name, exact(count), f"{100 * count / pages:.1f} %", "#" * -(-_BAR_WIDTH * count // most))
        for name, count in bars.items()
    )
    return Table(title, (kind, "pages", "share", ""), rows)


def histogram(archive: Archive, kind: str) -> tuple[str, str, dict[str, dict[str, int]]]:
    """A title, the axis, and pages by label for each mode, or one nameless series for all.

    The kind is "grid" or "tokens".
    """
    totals = archive.document.totals
    if kind == "grid":
        is_mixed = len({each.crop_mode for each in totals}) > 1
        more = " in modes that cut pages; 1 x 1 in the others" if is_mixed else ""
        bars = {"": grid_bars(archive.document.pages_by_grid)}
        return f"Pages by crop grid{more}", "crop grid [columns x rows of local views]", bars
    bars = dict(zip((each.mode for each in totals), bars_of_each(archive.lengths), strict=True))
    title = "Pages by tokens of the prompt"
    if len(bars) == 1:
        [(mode, only)] = bars.items()
        title, bars = f"{title}, mode {mode}", {"": only}
    return title, "prompt [tokens]", bars


def grid_bars(pages_by_grid: Iterable[PagesOfGrid]) -> dict[str, int]:
    """Pages by grid, such as `2 x 3`, by number of views; `1 x 1` is an uncut page."""
    ordered = sorted(pages_by_grid, key=lambda each: (each.grid[0] * each.grid[1], each.grid))
    return {"{} x {}".format(*each.grid): each.pages for each in ordered}


def file_lines(files: FilesDocument) -> Iterator[str]:
    """What was counted, and what was not."""
    kinds = (files.images, "image", ""), (files.pdfs, "PDF", f" (at {files.pdf_dpi} dpi)")
    pages = [
        f"{counted(kind.pages, 'page')} in {counted(kind.files, what)}{said}"
        for kind, what, said in kinds
        if kind.files
    ]
    yield f"Files: {' and '.join(pages) or 'no pages'}"
    if files.not_counted:
        counts = [(each.extension, each.files) for each in files.not_counted]
        yield f"Not counted: {extensions_text(counts, _SHOWN_EXTENSIONS)}"
    for name, wordings in _OTHERS.items():
        if count := getattr(files, name):
            yield f"Not counted: {count:,} {wordings[count != 1]}"


def warnings_of(archive: Archive, max_positions: int) -> Iterator[str]:
    """Pages that are not counted, exceed the decoder's trained positions, or wait for room."""
    document = archive.document
    malformed, pages = document.malformed, document.pages
    if document.files is not None and (pdfs := document.files.pdfs_without_reader):
        yield (
            f"{counted(pdfs, 'PDF')} {'is' if pdfs == 1 else 'are'} not counted: reading them needs"
            f" pypdf, the optional extra 'pdf'; install it with {INSTALL}"
        )
    if malformed.rows:
        more = malformed.rows - len(malformed.reported)
        named = f", {more:,} of them not listed" if more else ""
        yield (
            f"{malformed.rows:,} of {document.rows:,} rows are not pages and are not counted{named}"
        )
    yield from (f"row {each.row}: {each.reason}" for each in malformed.reported)
    for totals in document.totals:
        if beyond := totals.pages_beyond_max_position_embeddings:
            yield (
                f"{beyond:,} of {pages:,} pages exceed the decoder's max_position_embeddings,"
                f" {max_positions}, in mode {totals.mode}; they are counted anyway"
            )
    for time in document.time:
        if waiting := time.pages_that_wait:
            yield (
                f"{waiting:,} of {pages:,} pages leave room for fewer than"
                f" {time.concurrency} at a time on {time.gpu}; the others wait"
            )
