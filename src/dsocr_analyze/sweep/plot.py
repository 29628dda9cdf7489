"""A picture of a sweep: one quantity over one axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.columns.results import BATCH_RESULTS
from dsocr_analyze.columns.time_columns import COST
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.pictures.picture import DASHES, HATCHES, MARKERS, Picture, drawing, paler
from dsocr_analyze.pictures.settings import (
    axis_name,
    fixed_line,
    said_of,
    settings_of_job,
    varying,
)
from dsocr_analyze.pictures.values import Scale, Top, label_bars, scale_axis, scale_of
from dsocr_analyze.report.parts import PALETTE

if TYPE_CHECKING:
    import pyarrow as pa

    from dsocr_analyze.timing.assumptions import JobAssumptions

__all__ = ["MOST_POINTS", "QUANTITIES", "describe", "is_of_time", "sweep_picture"]

MOST_POINTS: Final = 20_000
"""Most rows in one picture."""

_MOST_SERIES: Final = 10
_MARKED_POINTS: Final = 40
_BAR_INCHES: Final = 0.16  # wide enough for a vertical value label
_INCHES: Final = (8.0, 14.0)

QUANTITIES: Final = tuple(
    name for name in BATCH_RESULTS if name not in ("grid_columns", "grid_rows")
)
"""Columns that can be plotted."""

_NUMBERS: Final = (
    "text_tokens",
    "max_new_tokens",
    "batch_size",
    "page_width",
    "page_height",
    "image_size",
    "base_size",
)
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

_TIMES: Final = {
    "ttft_seconds": ("time to the first token", "s"),
    "tpot_seconds": ("time per token", "s"),
    "page_seconds": ("time of one page", "s"),
    "pages_per_second": ("pages per second", "pages/s"),
    "tokens_per_second": ("tokens per second", "tokens/s"),
    COST: ("cost of 1,000 pages", "in the currency of the price"),
}
"""Columns that can be plotted if seconds are predicted."""

Series = dict[str, tuple[list[Any], list[float]]]
"""Positions and values of each line, by label."""


def describe(quantity: str) -> tuple[str, str]:
    """Name and unit of a column of `QUANTITIES` or of predicted seconds.

    Raises:
        WorkloadError: There is no such column.
    """
    if quantity in _TIMES:
        return _TIMES[quantity]
    if quantity == "kv_cache_bytes":
        return "KV cache of the whole batch", "B"
    if quantity == "peak_activation_bytes":
        return "peak activation of the prefill pass", "B"
    if quantity in ("visual_tokens", "seq_len"):
        return {"visual_tokens": "visual tokens", "seq_len": "prompt"}[quantity], "tokens"
    for name, pass_name in _WHOLES.items():
        figure = _FIGURES.get(quantity.removeprefix(f"{name}_"))
        if figure is not None and quantity.startswith(f"{name}_"):
            return f"{figure[0]} of {pass_name}", figure[1]
    raise WorkloadError(f"no quantity {quantity!r} to plot; give one of {', '.join(QUANTITIES)}")


def is_of_time(quantity: str) -> bool:
    """Whether a column is of predicted seconds, which a sweep only has if GPUs were named."""
    return quantity in _TIMES


def sweep_picture(
    batches: list[pa.RecordBatch],
    quantity: str,
    x: str | None,
    model: Mapping[str, Any],
    job: JobAssumptions | None = None,
) -> Picture:
    """A quantity over one axis, with one line (or group of bars) per combination of the others.

    Args:
        batches: Rows of a sweep.
        quantity: One of `QUANTITIES`, or a column of predicted seconds.
        x: One of `_X_COLUMNS`; by default the one with most values.
        model: Settings of the model.
        job: What predicted seconds assume.

    Raises:
        WorkloadError: The quantity or x is unknown, or there would be too many lines.
    """
    import pyarrow as pa

    what, unit = describe(quantity)
    table = pa.Table.from_batches(batches)
    if quantity not in table.column_names:
        raise WorkloadError(
            f"quantity {quantity} needs predicted seconds, and these rows have none; "
            "name a GPU (and a price for a cost)"
        )
    columns = _columns(table)
    differing = varying(columns)
    x = _chosen_x(x, columns, differing)
    others = [name for name in differing if name not in _covered_by(x)]
    series = _series(columns, others, x, column=table.column(quantity).to_pylist())
    if len(series) > _MOST_SERIES:
        raise WorkloadError(
            f"a plot over {x} has {len(series)} lines, one per combination of "
            f"{', '.join(others)}; give fewer values, for at most {_MOST_SERIES} lines"
        )
    about = {**{name: [value] for name, value in model.items()}, **columns}
    about |= {} if job is None else _settings_of_job(job, columns["max_new_tokens"])
    scale = scale_of(
        max((value for _, values in series.values() for value in values), default=0.0), unit
    )
    with drawing():
        title = f"{what[0].upper()}{what[1:]}"
        bars = 0 if x in _NUMBERS else sum(len(values) for _, values in series.values())
        width = min(max(_INCHES[0], 1.2 + _BAR_INCHES * bars), _INCHES[1])
        picture = Picture(title, fixed_line(about, shown=(x,)), width=width)
        picture.name_axes(axis_name(x), f"{what} [{scale.unit}]")
        scale_axis(picture.axes.yaxis, scale, whole=unit == "tokens")
        if x in _NUMBERS:
            scale_axis(picture.axes.xaxis, Scale(1, ""), whole=True)
            _draw_lines(picture, series, x)
        else:
            _draw_groups(picture, series, scale)
    return picture


def _columns(table: pa.Table) -> dict[str, list[Any]]:
    """The columns that can be the x axis, row by row."""
    columns: dict[str, list[Any]] = {
        name: table.column(name).to_pylist()
        for name in (*_X_COLUMNS, "crop_mode")
        if name in table.column_names
    }
    sizes = zip(columns["page_width"], columns["page_height"], strict=True)
    columns["page"] = [f"{width} x {height}" for width, height in sizes]
    return columns


def _settings_of_job(job: JobAssumptions, limits: Iterable[int]) -> dict[str, list[Any]]:
    means = [(limit, job.lengths(limit).mean) for limit in dict.fromkeys(limits)]
    return {
        **{name: [value] for name, value in settings_of_job(job).items()},
        "mean_new_tokens": [None if mean == limit else mean for limit, mean in means],
    }


def _chosen_x(x: str | None, columns: dict[str, list[Any]], differing: list[str]) -> str:
    if x is not None:
        there = [name for name in _X_COLUMNS if name in columns]
        if x not in there:
            raise WorkloadError(f"no axis {x!r} to plot over; give one of {', '.join(there)}")
        return x
    chosen = differing[0] if differing else "mode"
    if chosen == "page":
        for side, other in (("page_width", "page_height"), ("page_height", "page_width")):
            if len(set(columns[other])) == 1:
                return side
    if chosen == "mode" and len(set(columns["crop_mode"])) == 1:
        for size, other in (("image_size", "base_size"), ("base_size", "image_size")):
            sizes = set(columns[size])
            if len(sizes) == len(set(columns["mode"])) > _MOST_SERIES and (
                len(set(columns[other])) == 1 or not columns["crop_mode"][0]
            ):
                return size
    return chosen


def _covered_by(x: str) -> tuple[str, ...]:
    """Axes that need no lines of their own if x is the x axis."""
    if x in ("image_size", "base_size"):
        return (x, "mode")
    return (x,)


def _series(
    columns: dict[str, list[Any]], others: list[str], x: str, column: list[float | None]
) -> Series:
    """The lines of a plot over x, from all rows that have a value of the quantity."""
    if x in ("page_width", "page_height") and "page" in others:
        other_side = "page_height" if x == "page_width" else "page_width"
        others = [other_side if name == "page" else name for name in others]
        if len(set(columns[other_side])) == 1:
            others.remove(other_side)
    series: Series = {}
    for row, value in enumerate(column):
        if value is None:
            continue
        label = ", ".join(said_of(name, columns[name][row]) for name in others)
        positions, values = series.setdefault(label, ([], []))
        positions.append(columns[x][row])
        values.append(value)
    if x in _NUMBERS:
        for label, (positions, values) in series.items():
            order = sorted(range(len(positions)), key=positions.__getitem__)
            series[label] = ([positions[i] for i in order], [values[i] for i in order])
    return series


def _legend(picture: Picture, handles: Mapping[str, Any]) -> None:
    if any(handles):
        picture.add_legend(list(handles.values()), list(handles))


def _draw_lines(picture: Picture, series: Series, x: str) -> None:
    """Lines with markers, so that they can be told apart without colour."""
    # Costs jump where the crop grid changes, so draw steps, not slopes.
    style = "steps-mid" if x in ("page_width", "page_height") else "default"
    handles = {}
    for index, (label, (positions, values)) in enumerate(series.items()):
        [handles[label]] = picture.axes.plot(
            positions, values, drawstyle=style, color=PALETTE[index % len(PALETTE)],
            marker=MARKERS[index], linestyle=DASHES[index % len(DASHES)],
            markevery=max(1, -(-len(positions) // _MARKED_POINTS)),
        )  # fmt: skip
    picture.axes.set_ylim(bottom=0)
    _legend(picture, handles)
    picture.lay_out()


def _draw_groups(picture: Picture, series: Series, scale: Scale) -> None:
    """Bars side by side for each name on the x axis, labelled with their values."""
    names = list(dict.fromkeys(name for positions, _ in series.values() for name in positions))
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
    picture.name_bars(names)
    _legend(picture, handles)
    picture.lay_out()
    label_bars(picture, tops)
