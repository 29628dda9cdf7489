"""A picture of a sweep: one quantity over one axis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.columns.picture import (
    new_figure,
    readable_scale,
    save_picture,
    tick_style,
)
from dsocr_analyze.columns.results import BATCH_RESULTS
from dsocr_analyze.columns.time_columns import COST
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MOST_POINTS", "QUANTITIES", "X_COLUMNS", "describe", "is_of_time", "plot_sweep"]

MOST_POINTS: Final = 20_000
"""Rows that one picture shows at most."""

_MOST_SERIES: Final = 10
_MARKED_POINTS: Final = 40

QUANTITIES: Final = tuple(
    name for name in BATCH_RESULTS if name not in ("grid_columns", "grid_rows")
)
"""Columns that can be plotted."""

_NUMBERS: Final = {
    "text_tokens": "text tokens",
    "max_new_tokens": "new tokens",
    "batch_size": "batch size [pages]",
    "page_width": "page width [pixels]",
    "page_height": "page height [pixels]",
    "image_size": "image size [pixels]",
    "base_size": "base size [pixels]",
}
_NAMES: Final = {
    "page": "page [pixels]",
    "mode": "mode",
    "dtype": "element type",
    "attention": "attention",
    "sliding_window": "sliding window",
    "gpu": "GPU",
}
X_COLUMNS: Final = (*_NUMBERS, *_NAMES)
"""What can be along a plot."""

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
    "bytes_read_expected": ("bytes read, experts as expected", "B"),
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
"""Columns that can be plotted where seconds are predicted."""

_FIXED_IN_TITLE: Final = (
    "page",
    "mode",
    "text_tokens",
    "max_new_tokens",
    "batch_size",
    "dtype",
    "attention",
    "sliding_window",
    "gpu",
)
"""Axes that a title names where they have one value only."""

Series = dict[str, tuple[list[Any], list[float]]]
"""Positions and values of each line, by its label."""


def describe(quantity: str) -> tuple[str, str]:
    """What a column of `QUANTITIES`, or one of predicted seconds, is called, and its unit.

    Raises:
        WorkloadError: It is no such column.
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
    """Whether a column is of predicted seconds, which not every sweep has."""
    return quantity in _TIMES


def plot_sweep(
    path: Path, batches: list[pa.RecordBatch], quantity: str, x: str | None, model: str
) -> None:
    """Draws a quantity over one axis, a line (or a group of bars) for each combination of the rest.

    Args:
        path: The picture; its name tells the format.
        batches: Rows of a sweep.
        quantity: One of `QUANTITIES`, or of predicted seconds.
        x: One of `X_COLUMNS`; what varies most where none is given.
        model: The model's name, for the title.

    Raises:
        WorkloadError: The quantity or x is unknown, or there would be too many lines.
        OutputError: The file cannot be written.
    """
    import pyarrow as pa

    what, unit = describe(quantity)
    table = pa.Table.from_batches(batches)
    if quantity not in table.column_names:
        raise WorkloadError(
            f"quantity {quantity} is of predicted seconds, and these rows have none; "
            "name a GPU (a price for a cost)"
        )
    columns = _columns(table)
    varying = _varying(columns)
    x = _chosen_x(x, columns, varying)
    others = [name for name in varying if name not in _covered_by(x)]
    series = _series(columns, others, x, column=table.column(quantity).to_pylist())
    if len(series) > _MOST_SERIES:
        raise WorkloadError(
            f"a plot over {x} has {len(series)} lines, one for each combination of "
            f"{', '.join(others)}; give fewer values of them, for at most {_MOST_SERIES}"
        )
    largest = max((value for _, values in series.values() for value in values), default=0.0)
    divisor, prefixed = readable_scale(largest, unit)
    fixed = [
        name for name in _FIXED_IN_TITLE if name in columns and name not in varying and name != x
    ]
    subtitle = ", ".join(_label(name, columns[name][0]) for name in fixed)
    figure, axes = new_figure(f"{what[0].upper()}{what[1:]}, {model}", subtitle)
    if x in _NUMBERS:
        for label, (positions, values) in series.items():
            marker = "o" if len(positions) <= _MARKED_POINTS else None
            # A cost jumps where the crop grid changes; it does not climb there.
            style = "steps-mid" if x in ("page_width", "page_height") else "default"
            heights = [value / divisor for value in values]
            axes.plot(positions, heights, label=label, marker=marker, drawstyle=style)
    else:
        _draw_groups(axes, series, divisor)
    axes.set_xlabel(_NUMBERS.get(x) or _NAMES[x])
    axes.set_ylabel(f"{what} [{prefixed}]")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    if any(series):
        axes.legend(fontsize="small")
    save_picture(figure, path)


def _columns(table: pa.Table) -> dict[str, list[Any]]:
    """Everything that can be along a plot, row by row."""
    columns: dict[str, list[Any]] = {
        name: table.column(name).to_pylist()
        for name in (*X_COLUMNS, "crop_mode")
        if name in table.column_names
    }
    sizes = zip(columns["page_width"], columns["page_height"], strict=True)
    columns["page"] = [f"{width}x{height}" for width, height in sizes]
    return columns


def _varying(columns: dict[str, list[Any]]) -> list[str]:
    """The axes that have more than one value, most values first; sizes of modes are not axes."""
    counts: dict[str, int] = {
        name: len(set(columns[name])) for name in _FIXED_IN_TITLE if name in columns
    }
    return sorted((name for name in counts if counts[name] > 1), key=lambda name: -counts[name])


def _chosen_x(x: str | None, columns: dict[str, list[Any]], varying: list[str]) -> str:
    if x is not None:
        there = [name for name in X_COLUMNS if name in columns]
        if x not in there:
            raise WorkloadError(f"no axis {x!r} to plot over; give one of {', '.join(there)}")
        return x
    chosen = varying[0] if varying else "mode"
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
    """Axes that need no lines of their own where x is along the plot."""
    if x in ("image_size", "base_size"):
        return (x, "mode")
    return (x,)


def _series(
    columns: dict[str, list[Any]], others: list[str], x: str, column: list[float | None]
) -> Series:
    """The lines of a plot over x, from the quantity's value in every row that has one."""
    if x in ("page_width", "page_height") and "page" in others:
        other_side = "page_height" if x == "page_width" else "page_width"
        others = [other_side if name == "page" else name for name in others]
        if len(set(columns[other_side])) == 1:
            others.remove(other_side)
    series: Series = {}
    for row, value in enumerate(column):
        if value is None:
            continue
        label = ", ".join(_label(name, columns[name][row]) for name in others)
        positions, values = series.setdefault(label, ([], []))
        positions.append(columns[x][row])
        values.append(value)
    if x in _NUMBERS:
        for label, (positions, values) in series.items():
            order = sorted(range(len(positions)), key=positions.__getitem__)
            series[label] = ([positions[i] for i in order], [values[i] for i in order])
    return series


def _label(name: str, value: Any) -> str:
    if name in ("text_tokens", "max_new_tokens"):
        return f"{value} {_NUMBERS[name]}"
    if name == "batch_size":
        return f"batch of {value}"
    if name in ("page_width", "page_height"):
        return f"{name.removeprefix('page_')} {value}"
    if name == "attention":
        return f"{str(value).replace('_', ' ')} attention"
    if name == "sliding_window":
        return "with window" if value else "without window"
    if name == "page":
        return f"page {value}"
    return str(value)


def _draw_groups(axes: Any, series: Series, divisor: int) -> None:
    """Bars side by side for each name along x."""
    names = list(dict.fromkeys(name for positions, _ in series.values() for name in positions))
    place = {name: index for index, name in enumerate(names)}
    width = 0.8 / len(series)
    for index, (label, (positions, values)) in enumerate(series.items()):
        shift = (index - (len(series) - 1) / 2) * width
        axes.bar(
            [place[name] + shift for name in positions],
            [value / divisor for value in values],
            width,
            label=label,
        )
    axes.set_xticks(range(len(names)), names, **tick_style(names))
