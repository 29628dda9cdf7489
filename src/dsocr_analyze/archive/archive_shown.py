"""A list of pages for readers: tables, lines about files, and a picture of its histogram."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dsocr_analyze.archive.chart import series_picture
from dsocr_analyze.archive.document import FilesDocument, PagesOfGrid
from dsocr_analyze.archive.pages import extensions_text
from dsocr_analyze.archive.pdf_pages import INSTALL
from dsocr_analyze.archive.totals import Archive, ArchiveTimeRequest, bars_of_each
from dsocr_analyze.pictures.picture import Picture
from dsocr_analyze.pictures.settings import fixed_line
from dsocr_analyze.report.table import Table, bytes_text, counted, exact, price_text, scaled

__all__ = [
    "archive_tables",
    "file_lines",
    "grid_bars",
    "histogram_picture",
    "warnings_of",
]

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


def archive_tables(archive: Archive, histogram: str) -> list[Table]:
    """The totals with one row per setting, seconds, and a histogram: "grid" or "tokens"."""
    times = [] if archive.time is None else _time_tables(archive, archive.time)
    return [_totals_table(archive), *times, _histogram_table(archive, histogram)]


def _totals_table(archive: Archive) -> Table:
    columns = (
        "mode", "dtype", "attention", "prompt tokens", "new tokens", "prefill FLOPs", "FLOPs",
        "bytes read", "bytes written", "FLOPs per page", "largest KV cache",
    )  # fmt: skip
    document = archive.document
    rows = tuple(
        (
            totals.mode,
            totals.dtype,
            setting.attention_label,
            scaled(totals.prompt_tokens),
            scaled(totals.new_tokens),
            scaled(totals.prefill_pass_flops),
            scaled(totals.page_flops),
            bytes_text(totals.page_bytes_read),
            bytes_text(totals.page_bytes_written),
            scaled(totals.page_flops // document.pages) if document.pages else "-",
            bytes_text(totals.largest_kv_cache_bytes),
        )
        for totals, setting in zip(document.totals, archive.settings, strict=True)
    )
    title = counted(document.pages, "page")
    if document.batch_size > 1:
        title += f" in batches of {document.batch_size} with equal prompts"
    if archive.time is not None and archive.time.has_lengths:
        title += "; FLOPs and bytes for the most new tokens, seconds for those given"
    return Table(title, columns, rows, label_columns=3)


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
    """Three digits with thousands separators; two for small values."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.1 else f"{value:.2g}"


def _histogram_table(archive: Archive, kind: str) -> Table:
    """One series with shares and bars, or several side by side."""
    title, _, series = _histogram(archive, kind)
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


def file_lines(files: FilesDocument) -> Iterator[str]:
    """Lines for readers: what was counted, and what was not."""
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
    """Pages that are not counted, or are longer than the positions the decoder was trained for."""
    document = archive.document
    if document.files is not None and document.files.pdfs_without_reader:
        pdfs = document.files.pdfs_without_reader
        yield (
            f"{counted(pdfs, 'PDF')} {'is' if pdfs == 1 else 'are'} not counted: reading them needs"
            f" pypdf, the optional extra 'pdf'; install it with {INSTALL}"
        )
    malformed = document.malformed
    if malformed.rows:
        more = malformed.rows - len(malformed.reported)
        named = f", {more:,} of them not listed" if more else ""
        yield (
            f"{malformed.rows:,} of {document.rows:,} rows are not pages and are not counted{named}"
        )
    for each in malformed.reported:
        yield f"row {each.row}: {each.reason}"
    for totals in document.totals:
        if beyond := totals.pages_beyond_max_position_embeddings:
            yield (
                f"{beyond:,} of {document.pages:,} pages exceed the decoder's"
                f" max_position_embeddings, {max_positions}, in mode {totals.mode};"
                " they are counted anyway"
            )
    for time in document.time:
        if time.pages_that_wait:
            yield (
                f"{time.pages_that_wait:,} of {document.pages:,} pages leave room for fewer than"
                f" {time.concurrency} at a time on {time.gpu}; the others wait"
            )


# --- the histogram -------------------------------------------------------------------------------


def _histogram(archive: Archive, kind: str) -> tuple[str, str, dict[str, dict[str, int]]]:
    """A title, the axis, and pages by its labels for each mode, or one nameless series for all."""
    totals = archive.document.totals
    if kind == "grid":
        title = "Pages by crop grid"
        if len({each.crop_mode for each in totals}) > 1:
            title += " in modes that cut pages; 1 x 1 in the others"
        bars = {"": grid_bars(archive.document.pages_by_grid)}
        return title, "crop grid [columns x rows of local views]", bars
    bars = dict(zip((each.mode for each in totals), bars_of_each(archive.lengths), strict=True))
    title = "Pages by tokens of the prompt"
    if len(bars) == 1:
        title += f", mode {totals[0].mode}"
        bars = {"": bars[totals[0].mode]}
    return title, "prompt [tokens]", bars


def grid_bars(pages_by_grid: Iterable[PagesOfGrid]) -> dict[str, int]:
    """Pages by occurring grid, such as `2 x 3`, by number of views; `1 x 1` is an uncut page."""
    ordered = sorted(pages_by_grid, key=lambda each: (each.grid[0] * each.grid[1], each.grid))
    return {"{} x {}".format(*each.grid): each.pages for each in ordered}


def histogram_picture(archive: Archive, kind: str, name: str, model: Mapping[str, Any]) -> Picture:
    """A picture of a list's histogram, the modes side by side, with settings of the model."""
    title, axis, by_mode = _histogram(archive, kind)
    settings: dict[str, Sequence[Any]] = {
        **{each: [value] for each, value in model.items()},
        **archive.ends,
        **{
            each: [getattr(totals, each) for totals in archive.document.totals]
            for each in ("mode", "dtype", "attention")
        },
    }
    sides = [*archive.ends.get("page_width", ()), *archive.ends.get("page_height", ())]
    if len(sides) == 2:
        settings["page"] = ["{} x {}".format(*sides)]
    series = {
        mode and f"{mode} mode": (list(bars), list(bars.values())) for mode, bars in by_mode.items()
    }
    shown = ("mode",) if kind == "tokens" else ()  # the title or the legend says it
    below = [f"{counted(archive.document.pages, 'page')} of {name}", fixed_line(settings, shown)]
    return series_picture(title, ", ".join(filter(None, below)), axis, "pages", "pages", series)
