"""Pictures of sweeps and lists of pages: series as lines, or as bars side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from dsocr_analyze.archive.evaluate import BATCH_RESULTS, COST
from dsocr_analyze.archive.shown import histogram
from dsocr_analyze.archive.totals import Archive
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.pictures import settings
from dsocr_analyze.pictures.picture import DASHES, HATCHES, MARKERS, Picture, drawing, paler
from dsocr_analyze.pictures.values import Scale, Top, label_bars, scale_axis, scale_of
from dsocr_analyze.report.table import counted
from dsocr_analyze.report.tables import PALETTE

if TYPE_CHECKING:
    from dsocr_analyze.archive.seconds import TimeRequested

__all__ = [
    "MOST_POINTS",
    "MOST_SERIES",
    "QUANTITIES",
    "TIMES",
    "describe",
    "histogram_picture",
    "sweep_picture",
]

MOST_SERIES: Final = 10
"""Most lines, or bars side by side, that can be told apart."""

MOST_POINTS: Final = 20_000
"""Most rows in one picture."""

Series: TypeAlias = Mapping[str, tuple[Sequence[Any], Sequence[float]]]
"""Positions and values of each line or colour of bars, by label."""

_BAR_INCHES: Final = 0.16  # wide enough for a vertical value label
_INCHES: Final = (8.0, 14.0)
_MARKED_POINTS: Final = 40

# --- lists of pages ------------------------------------------------------------------------------


def histogram_picture(archive: Archive, kind: str, name: str, model: Mapping[str, Any]) -> Picture:
    """A list's histogram, the modes side by side, with settings of the model."""
    title, axis, by_mode = histogram(archive, kind)
    about: dict[str, Sequence[Any]] = {
        **{each: [value] for each, value in model.items()},
        **archive.ends,
        **{
            each: [getattr(totals, each) for totals in archive.document.totals]
            for each in ("mode", "dtype", "attention")
        },
    }
    sides = [*archive.ends.get("page_width", ()), *archive.ends.get("page_height", ())]
    if len(sides) == 2:
        about["page"] = ["{} x {}".format(*sides)]
    series = {
        mode and f"{mode} mode": (list(bars), list(bars.values())) for mode, bars in by_mode.items()
    }
    shown = ("mode",) if kind == "tokens" else ()  # the title or the legend says it
    pages = f"{counted(archive.document.pages, 'page')} of {name}"
    below = ", ".join(filter(None, (pages, settings.fixed_line(about, shown))))
    return _series_picture(title, below, axis, "pages", "pages", series)


# --- sweeps --------------------------------------------------------------------------------------

QUANTITIES: Final = tuple(
    name for name in BATCH_RESULTS if name not in ("grid_columns", "grid_rows")
)
"""Columns that can be plotted."""

_NUMBERS: Final = {
    "text_tokens": "default",
    "max_new_tokens": "default",
    "batch_size": "default",
    "page_width": "steps-mid",
    "page_height": "steps-mid",
    "image_size": "default",
    "base_size": "default",
}
"""How matplotlib joins points over each: by steps over sides of pages, since costs jump where the
crop grid changes."""

_OTHER_SIDE: Final = {"page_width": "page_height", "page_height": "page_width"}
_X_COLUMNS: Final = (*_NUMBERS, "page", "mode", "dtype", "attention", "sliding_window", "gpu")
"""Columns that can be a plot's x axis."""

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
TIMES: Final = {
    "ttft_seconds": ("time to the first token", "s"),
    "tpot_seconds": ("time per token", "s"),
    "page_seconds": ("time of one page", "s"),
    "pages_per_second": ("pages per second", "pages/s"),
    "tokens_per_second": ("tokens per second", "tokens/s"),
    COST: ("cost of 1,000 pages", "in the currency of the price"),
}
"""Columns that can be plotted if seconds are predicted."""

_DESCRIBED: Final = {
    "kv_cache_bytes": ("KV cache of the whole batch", "B"),
    "peak_activation_bytes": ("peak activation of the prefill pass", "B"),
    "visual_tokens": ("visual tokens", "tokens"),
    "seq_len": ("prompt", "tokens"),
    **TIMES,
    **{
        f"{name}_{figure}": (f"{what} of {whole}", unit)
        for name, whole in _WHOLES.items()
        for figure, (what, unit) in _FIGURES.items()
    },
}


def describe(quantity: str) -> tuple[str, str]:
    """Name and unit of a column of `QUANTITIES` or `TIMES`; raises WorkloadError for others."""
    if quantity not in _DESCRIBED:
        raise WorkloadError(
            f"no quantity {quantity!r} to plot; give one of {', '.join(QUANTITIES)}"
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
        quantity: One of `QUANTITIES` or `TIMES`.
        x: By default the axis with most values.
        model: Settings of the model.
        time: What predicted seconds assume.

    Raises:
        WorkloadError: The quantity or x is unknown, or there would be too many lines.
    """
    what, unit = describe(quantity)
    table = pa.Table.from_batches(batches)
    if quantity not in table.column_names:
        raise WorkloadError(
            f"quantity {quantity} needs predicted seconds, and these rows have none; "
            "name a GPU (and a price for a cost)"
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
        means = {
            limit: time.job.lengths(limit).mean
            for limit in dict.fromkeys(columns["max_new_tokens"])
        }
        about["mean_new_tokens"] = [
            None if mean == limit else mean for limit, mean in means.items()
        ]
    return _series_picture(
        f"{what[0].upper()}{what[1:]}", settings.fixed_line(about, shown=(x,)),
        settings.axis_name(x), what, unit, series, lines=_NUMBERS.get(x, ""),
    )  # fmt: skip


def _chosen_x(x: str | None, columns: dict[str, list[Any]], differing: list[str]) -> str:
    if x is not None:
        there = [name for name in _X_COLUMNS if name in columns]
        if x not in there:
            raise WorkloadError(f"no axis {x!r} to plot over; give one of {', '.join(there)}")
        return x
    chosen = differing[0] if differing else "mode"
    values = {name: len(set(column)) for name, column in columns.items()}
    if chosen == "page":
        for side, other in _OTHER_SIDE.items():
            if values[other] == 1:
                return side
    if chosen == "mode" and values["crop_mode"] == 1:
        for size, other in (("image_size", "base_size"), ("base_size", "image_size")):
            is_alone = values[other] == 1 or not columns["crop_mode"][0]
            if is_alone and values[size] == values["mode"] > MOST_SERIES:
                return size
    return chosen


def _series(
    columns: dict[str, list[Any]], others: list[str], x: str, column: list[float | None]
) -> Series:
    """The lines of a plot over x, from all rows that have a value of the quantity."""
    if x in _OTHER_SIDE and "page" in others:
        others = [_OTHER_SIDE[x] if name == "page" else name for name in others]
        others = [name for name in others if len(set(columns[name])) > 1]
    points: dict[str, list[tuple[Any, float]]] = {}
    for row, value in enumerate(column):
        if value is not None:
            label = ", ".join(settings.said_of(name, columns[name][row]) for name in others)
            points.setdefault(label, []).append((columns[x][row], value))
    if x in _NUMBERS:
        for each in points.values():
            each.sort(key=itemgetter(0))
    return {
        label: ([at for at, _ in each], [value for _, value in each])
        for label, each in points.items()
    }


# --- drawing -------------------------------------------------------------------------------------


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
    """Series over one axis, with a legend unless there is nothing to tell apart.

    Texts are the title, the line below, and the names of axis and values. `lines` is how matplotlib
    joins points; empty for bars.
    """
    drawn = [value for _, values in series.values() for value in values]
    bars = 0 if lines else len(drawn)
    scale = scale_of(max(drawn, default=0), unit)
    of_scale = scale.unit.removesuffix(up).rstrip()  # "pages" need not say that they are pages
    with drawing():
        width = min(max(_INCHES[0], 1.2 + _BAR_INCHES * bars), _INCHES[1])
        picture = Picture(title, below, width=width)
        picture.name_axes(across, f"{up} [{of_scale}]" if of_scale else up)
        scale_axis(picture.axes.yaxis, scale, whole=unit in ("pages", "tokens"))
        handles, tops = _lines(picture, series, lines) if lines else _bars(picture, series, scale)
        if any(handles):
            picture.add_legend(list(handles.values()), list(handles))
        picture.lay_out()
        if not lines:
            label_bars(picture, tops)
    return picture


def _lines(picture: Picture, series: Series, style: str) -> tuple[dict[str, Any], list[Top]]:
    """Lines by label, told apart without colour; no tops."""
    scale_axis(picture.axes.xaxis, Scale(1, ""), whole=True)
    handles = {}
    for index, (label, (positions, values)) in enumerate(series.items()):
        [handles[label]] = picture.axes.plot(
            positions, values, drawstyle=style, color=PALETTE[index % len(PALETTE)],
            marker=MARKERS[index], linestyle=DASHES[index % len(DASHES)],
            markevery=max(1, -(-len(positions) // _MARKED_POINTS)),
        )  # fmt: skip
    picture.axes.set_ylim(bottom=0)
    return handles, []


def _bars(picture: Picture, series: Series, scale: Scale) -> tuple[dict[str, Any], list[Top]]:
    """Bars by label, side by side for each name, and their tops."""
    names = dict.fromkeys(name for positions, _ in series.values() for name in positions)
    place = {name: index for index, name in enumerate(names)}
    width = 0.8 / max(len(series), 1)
    handles, tops = {}, []
    for index, (label, (positions, values)) in enumerate(series.items()):
        shift = (index - (len(series) - 1) / 2) * width
        middles = [place[name] + shift for name in positions]
        colour = PALETTE[index % len(PALETTE)]
        handles[label] = picture.axes.bar(
            middles, values, width, color=colour, hatch=HATCHES[index], edgecolor=paler(colour)
        )
        tops += [Top(x, value, scale.text(value)) for x, value in zip(middles, values, strict=True)]
    picture.name_bars(list(names))
    return handles, tops
