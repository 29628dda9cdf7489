"""Sweeps and lists of pages for readers: tables and warnings; and pictures of sweeps."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from dsocr_analyze.archive import evaluate, pdf_pages
from dsocr_analyze.archive.pages import extensions_text, malformed_warnings
from dsocr_analyze.archive.setting import FilesDocument, PagesOfGrid
from dsocr_analyze.archive.totals import Archive, bars_of_each
from dsocr_analyze.errors import WorkloadError, did_you_mean
from dsocr_analyze.pictures import settings
from dsocr_analyze.pictures.picture import (
    DASHES,
    HATCHES,
    MARKERS,
    Picture,
    Scale,
    Top,
    drawing,
    label_bars,
    paler,
    scale_axis,
    scale_of,
)
from dsocr_analyze.report.table import (
    Table,
    bytes_text,
    counted,
    exact,
    flops_text,
    hours_text,
    price_text,
    ratio_text,
    scaled,
    seconds_text,
    three_digits,
)
from dsocr_analyze.report.tables import PALETTE
from dsocr_analyze.timing import bound_text, runtime_text
from dsocr_analyze.workload import beyond_positions

if TYPE_CHECKING:
    from dsocr_analyze.archive.seconds import ArchiveTimer, TimeRequested

# --- sweeps --------------------------------------------------------------------------------------

MOST_SHOWN: Final = 50
"""A terminal shows no more; files have all rows."""

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
    evaluate.COST: ("cost of 1,000", ratio_text),
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


def archive_answers(archive: Archive) -> Iterator[str]:
    """What all pages take on each GPU, in hours and money; without a GPU, their FLOPs and bytes."""
    document = archive.document
    pages, s = counted(document.pages, "page"), "s" if document.pages == 1 else ""
    for each in document.time:
        runs = runtime_text(each.runtime, each.host)
        cost = "" if each.cost is None else f", which cost {price_text(each.cost)}"
        needed = each.gpus_for_deadline
        gpus = "" if needed is None else (
            f"; {counted(needed, 'GPU')} to finish in {hours_text(each.deadline_hours or 0.0)}"
        )  # fmt: skip
        yield (
            f"{each.gpu}, {runs}, mode {each.mode}: {pages} take{s} {three_digits(each.gpu_hours)}"
            f" GPU-hours ({three_digits(each.low)} to {three_digits(each.high)}){cost}{gpus};"
            f" {each.concurrency} at once, {three_digits(each.pages_per_second)} pages/s, bound by"
            f" {bound_text(each.bound)}"
        )
    for totals in () if document.time else document.totals:
        moved = totals.page_bytes_read + totals.page_bytes_written
        yield (
            f"mode {totals.mode}: {pages} cost{s} {flops_text(totals.page_flops)} and"
            f" move{s} {bytes_text(moved)}"
        )


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


def _time_tables(archive: Archive, time: ArchiveTimer) -> list[Table]:
    """GPU-hours and what follows from them; at most 80 columns wide."""
    job, hours = time.requested.job, time.deadline_hours
    price = job.price_per_hour
    differ = len({each.attention_label for each in archive.settings}) > 1
    names = ("GPU", "mode", "dtype", *(["attention"] * differ))
    spent, follows = [], []
    for each, setting in zip(archive.document.time, itertools.cycle(archive.settings)):
        label = (each.gpu, each.mode, each.dtype, *([setting.attention_label] * differ))
        spent.append(
            (*label, *map(three_digits, (each.gpu_hours, each.low, each.high)), each.bound)
        )
        cost = () if each.cost is None else (price_text(each.cost),)
        gpus = () if each.gpus_for_deadline is None else (exact(each.gpus_for_deadline),)
        follows.append((*label, three_digits(each.pages_per_second), *cost, *gpus))
    more = {
        "cost": "cost"
        if job.prices_per_hour
        else (None if price is None else f"cost at {price:g} per hour"),
        "GPUs": None if hours is None else f"GPUs to finish in {hours_text(hours)}",
    }
    return [
        Table(
            f"Predicted: {runtime_text(job.runtime, job.host.name)},"
            f" {time.concurrency} pages at once",
            (*names, "GPU-hours", "low", "high", "bound"), tuple(spent),
            label_columns=len(names),
        ),
        Table(
            ", ".join(["Results: pages/s of one GPU", *filter(None, more.values())]),
            (*names, "pages/s", *(name for name, said in more.items() if said)), tuple(follows),
            label_columns=len(names),
        ),
    ]  # fmt: skip


def _histogram_table(archive: Archive, kind: str) -> Table:
    title, series = _histogram(archive, kind)
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


def _histogram(archive: Archive, kind: str) -> tuple[str, dict[str, dict[str, int]]]:
    """Title, and pages by label for each mode, or one nameless series."""
    totals = archive.document.totals
    if kind == "grid":
        is_mixed = len({each.crop_mode for each in totals}) > 1
        more = " in modes that cut pages; 1 x 1 in the others" if is_mixed else ""
        bars = {"": grid_bars(archive.document.pages_by_grid)}
        return f"Pages by crop grid{more}", bars
    bars = dict(zip((each.mode for each in totals), bars_of_each(archive.lengths), strict=True))
    title = "Pages by tokens of the prompt"
    if len(bars) == 1:
        [(mode, only)] = bars.items()
        title, bars = f"{title}, mode {mode}", {"": only}
    return title, bars


def grid_bars(pages_by_grid: Iterable[PagesOfGrid]) -> dict[str, int]:
    """Pages by grid, such as `2 x 3`; `1 x 1` is an uncut page."""
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
        yield f"Not counted: {extensions_text(counts, most=12)}"
    yield from (
        f"Not counted: {count:,} {wordings[count != 1]}"
        for name, wordings in _OTHERS.items()
        if (count := getattr(files, name))
    )


def warnings_of(archive: Archive, max_positions: int) -> Iterator[str]:
    """Pages that are not counted, exceed the decoder's trained positions, or wait for room."""
    document = archive.document
    pages = document.pages
    if document.files is not None and (pdfs := document.files.pdfs_without_reader):
        yield (
            f"{counted(pdfs, 'PDF')} {'is' if pdfs == 1 else 'are'} not counted: reading them needs"
            f" pypdf, the optional extra 'pdf'; install it with {pdf_pages.INSTALL}"
        )
    yield from malformed_warnings(document.rows, document.malformed)
    yield from (
        beyond_positions(beyond, f"{pages:,} pages in mode {totals.mode}", max_positions)
        for totals in document.totals
        if (beyond := totals.pages_beyond_max_position_embeddings)
    )
    yield from (
        f"{waiting:,} of {pages:,} pages leave room for fewer than"
        f" {time.concurrency} at a time on {time.gpu}; the others wait"
        for time in document.time
        if (waiting := time.pages_that_wait)
    )


# --- pictures of sweeps --------------------------------------------------------------------------

QUANTITIES: Final = tuple(each for each in evaluate.BATCH_RESULTS if not each.startswith("grid_"))
"""Columns that can be plotted."""

_OTHER_SIDE: Final = {"page_width": "page_height", "page_height": "page_width"}
_NUMBERS: Final = dict.fromkeys(
    ("text_tokens", "max_new_tokens", "batch_size", *_OTHER_SIDE, "image_size", "base_size"),
    "default",
) | dict.fromkeys(_OTHER_SIDE, "steps-mid")
"""How points are joined: costs jump where the crop grid changes."""

_X_COLUMNS: Final = (*_NUMBERS, "page", "mode", "dtype", "attention", "sliding_window", "gpu")

_WHOLES: Final = {
    "prefill_pass": "the prefill pass",
    "decode_step": "one decode step",
    "batch": "the whole batch",
    "page": "one page",
}
_FIGURES: Final = {
    "matrix_flops": ("matrix FLOPs", "FLOPs"),
    "vector_flops": ("vector FLOPs", "FLOPs"),
    "flops": ("FLOPs", "FLOPs"),
    "bytes_read": ("bytes read", "B"),
    "bytes_read_expected": ("bytes read, expected experts", "B"),
    "bytes_written": ("bytes written", "B"),
}
_DESCRIBED: Final = {
    "kv_cache_bytes": ("KV cache of the whole batch", "B"),
    "peak_activation_bytes": ("peak activation of the prefill pass", "B"),
    "visual_tokens": ("visual tokens", "tokens"),
    "seq_len": ("prompt", "tokens"),
    "ttft_seconds": ("time to the first token", "s"),
    "tpot_seconds": ("time per token", "s"),
    "page_seconds": ("time of one page", "s"),
    "pages_per_second": ("pages per second", "pages/s"),
    "tokens_per_second": ("tokens per second", "tokens/s"),
    evaluate.COST: ("cost of 1,000 pages", "in the currency of the price"),
    **{
        f"{name}_{figure}": (f"{what} of {whole}", unit)
        for name, whole in _WHOLES.items()
        for figure, (what, unit) in _FIGURES.items()
    },
}


def describe(quantity: str) -> tuple[str, str]:
    """Name and unit of a column that can be plotted; raises WorkloadError for others."""
    if quantity not in _DESCRIBED:
        raise WorkloadError(
            f"no quantity {quantity!r} to plot; {did_you_mean(quantity, QUANTITIES)}give one of"
            f" {', '.join(QUANTITIES)}"
        )
    return _DESCRIBED[quantity]


def sweep_picture(
    batches: list[pa.RecordBatch],
    quantity: str,
    x: str | None,
    model: Mapping[str, Any],
    time: TimeRequested | None = None,
) -> Picture:
    """A quantity over one axis, with one line (or group of bars) per combination of the others.

    Args:
        batches: Rows of a sweep.
        quantity: A column that can be plotted.
        x: By default the axis with most values.
        model: Its settings.
        time: What predicted seconds assume.

    Raises:
        WorkloadError: The quantity or x is unknown, or there would be too many lines.
    """
    what, unit = describe(quantity)
    table = pa.Table.from_batches(batches)
    if quantity not in table.column_names:
        price = " and price" if quantity == evaluate.COST else ""
        raise WorkloadError(
            f"quantity {quantity} needs predicted seconds; give gpu{price} too",
            arguments=["gpu", "price"],
        )
    columns: dict[str, list[Any]] = {
        name: table.column(name).to_pylist()
        for name in (*_X_COLUMNS, "crop_mode")
        if name in table.column_names
    }
    columns["page"] = list(map("{} x {}".format, columns["page_width"], columns["page_height"]))
    differing = settings.varying(columns)
    x = _chosen_x(x, columns, differing)
    # A mode needs no line of its own beside its sizes.
    covered = (x, "mode") if x in ("image_size", "base_size") else (x,)
    others = [name for name in differing if name not in covered]
    series = _series(columns, others, x, column=table.column(quantity).to_pylist())
    if len(series) > MOST_SERIES:
        raise WorkloadError(
            f"a plot over {x} has {len(series)} lines, one per combination of "
            f"{', '.join(others)}; give fewer values, for at most {MOST_SERIES} lines"
        )
    about = {name: [value] for name, value in model.items()} | columns
    if time is not None:
        about |= {name: [value] for name, value in settings.settings_of_job(time.job).items()}
        about["mean_new_tokens"] = [
            None if (mean := time.job.lengths(limit).mean) == limit else mean
            for limit in dict.fromkeys(columns["max_new_tokens"])
        ]
    return _series_picture(
        f"{what[0].upper()}{what[1:]}", settings.fixed_line(about, shown=(x,)),
        settings.axis_name(x), what, unit, series, lines=_NUMBERS.get(x, ""),
    )  # fmt: skip


def _chosen_x(x: str | None, columns: dict[str, list[Any]], differing: list[str]) -> str:
    if x is not None:
        there = [name for name in _X_COLUMNS if name in columns]
        if x not in there:
            raise WorkloadError(
                f"no axis {x!r} to plot over; {did_you_mean(x, there)}give one of"
                f" {', '.join(there)}"
            )
        return x
    chosen = differing[0] if differing else "mode"
    values = {name: len(set(column)) for name, column in columns.items()}
    is_alone = {name: number == 1 for name, number in values.items()}
    instead = {
        "page": [side for side, other in _OTHER_SIDE.items() if is_alone[other]],
        "mode": [
            size
            for size, other in (("image_size", "base_size"), ("base_size", "image_size"))
            if {size, other} <= columns.keys()  # but of a model whose processor chooses sides
            if is_alone["crop_mode"] and (is_alone[other] or not columns["crop_mode"][0])
            if values[size] == values["mode"] > MOST_SERIES
        ],
    }
    return next(iter(instead.get(chosen, ())), chosen)


def _series(
    columns: dict[str, list[Any]], others: list[str], x: str, column: list[float | None]
) -> Series:
    if x in _OTHER_SIDE and "page" in others:
        others = [_OTHER_SIDE[x] if name == "page" else name for name in others]
        others = [name for name in others if len(set(columns[name])) > 1]
    points: defaultdict[str, list[tuple[Any, float]]] = defaultdict(list)
    for row, value in enumerate(column):
        if value is not None:
            label = ", ".join(settings.said_of(name, columns[name][row]) for name in others)
            points[label].append((columns[x][row], value))
    return {
        label: sorted(each, key=itemgetter(0)) if x in _NUMBERS else each
        for label, each in points.items()
    }


MOST_SERIES: Final = 10
"""More lines, or bars side by side, can't be told apart."""

MOST_POINTS: Final = 20_000

Series: TypeAlias = Mapping[str, Sequence[tuple[Any, float]]]
"""Positions and values of each line or colour of bars."""

_INCHES: Final = (8.0, 14.0)
_MARKED_POINTS: Final = 40


def _series_picture(
    title: str,
    below: str,
    across: str,
    up: str,
    unit: str,
    series: Series,
    *,
    lines: str = "",
) -> Picture:
    """Series over one axis; `lines` is how matplotlib joins points, empty for bars."""
    drawn = [value for points in series.values() for _, value in points]
    bars = 0 if lines else len(drawn)
    scale = scale_of(max(drawn, default=0), unit)
    with drawing():
        wanted = 1.2 + 0.16 * bars  # bars as wide as a vertical value label
        picture = Picture(title, below, width=min(max(_INCHES[0], wanted), _INCHES[1]))
        picture.name_axes(across, f"{up} [{scale.unit}]")
        scale_axis(picture.axes.yaxis, scale, whole=unit == "tokens")
        if lines:
            _draw_lines(picture, series, lines)
            picture.lay_out()
        else:
            _draw_bars(picture, series, scale)
    return picture


def _draw_lines(picture: Picture, series: Series, style: str) -> None:
    """Lines, told apart without colour."""
    scale_axis(picture.axes.xaxis, Scale(1, ""), whole=True)
    for index, (label, points) in enumerate(series.items()):
        picture.list_in_legend(picture.axes.plot(
            *zip(*points, strict=True), drawstyle=style, color=PALETTE[index % len(PALETTE)],
            marker=MARKERS[index], linestyle=DASHES[index % len(DASHES)],
            markevery=max(1, -(-len(points) // _MARKED_POINTS)),
        ), label)  # fmt: skip
    picture.axes.set_ylim(bottom=0)


def _draw_bars(picture: Picture, series: Series, scale: Scale) -> None:
    """Groups of bars with their values, for which it lays the picture out."""
    names = dict.fromkeys(name for points in series.values() for name, _ in points)
    place = {name: index for index, name in enumerate(names)}
    width = 0.8 / max(len(series), 1)
    tops: list[Top] = []
    for index, (label, points) in enumerate(series.items()):
        shift, colour = (index - (len(series) - 1) / 2) * width, PALETTE[index % len(PALETTE)]
        own = [Top(place[name] + shift, value, scale.text(value)) for name, value in points]
        picture.list_in_legend(picture.axes.bar(
            [top.x for top in own], [top.height for top in own], width, color=colour,
            hatch=HATCHES[index], edgecolor=paler(colour),
        ), label)  # fmt: skip
        tops += own
    picture.name_bars(list(names))
    label_bars(picture, tops)
