"""A sweep for readers: its first rows as a table, and one quantity over one axis as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from dsocr_analyze.archive.chart import MOST_SERIES, Series, series_picture
from dsocr_analyze.archive.evaluate import BATCH_RESULTS, COST, TimeRequested
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.pictures import settings
from dsocr_analyze.pictures.picture import Picture
from dsocr_analyze.report.table import Table, bytes_text, exact, ratio_text, scaled, seconds_text

__all__ = [
    "MOST_POINTS",
    "MOST_SHOWN",
    "QUANTITIES",
    "TIMES",
    "describe",
    "sweep_picture",
    "sweep_table",
]

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
    """The first `MOST_SHOWN` rows of a sweep, or all if there are fewer."""
    shown = pa.Table.from_batches(batches).slice(0, MOST_SHOWN).to_pydict()
    axes = [name for name in _AXIS_TITLES if name in shown and len(set(shown[name])) > 1]
    columns = {name: (_AXIS_TITLES[name], _axis_text) for name in axes or ["mode"]}
    figures = {name: column for name, column in _SHOWN.items() if name in shown}
    cells = [
        ["-" if each is None else text_of(each) for each in shown[name]]
        for name, (_, text_of) in (columns | figures).items()
    ]
    title = f"Sweep of {rows:,} workloads"
    if rows > MOST_SHOWN:
        title += f", the first {MOST_SHOWN}"
    return Table(
        title, tuple(name for name, _ in (columns | figures).values()),
        tuple(zip(*cells, strict=True)), label_columns=len(columns),
        optional=tuple(name for name, _ in [*figures.values()][:1:-1]),
    )  # fmt: skip


def _axis_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return exact(value) if isinstance(value, int) else str(value)


# --- the picture --------------------------------------------------------------------------------

MOST_POINTS: Final = 20_000
"""Most rows in one picture."""

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
"""How matplotlib joins points over each; costs jump where the crop grid changes, so over sides of
pages it draws steps, not slopes."""

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
        means = [
            (limit, time.job.lengths(limit).mean)
            for limit in dict.fromkeys(columns["max_new_tokens"])
        ]
        about["mean_new_tokens"] = [None if mean == limit else mean for limit, mean in means]
    return series_picture(
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
    if chosen == "page":
        for side, other in _OTHER_SIDE.items():
            if len(set(columns[other])) == 1:
                return side
    if chosen == "mode" and len(set(columns["crop_mode"])) == 1:
        for size, other in (("image_size", "base_size"), ("base_size", "image_size")):
            sizes = set(columns[size])
            if len(sizes) == len(set(columns["mode"])) > MOST_SERIES and (
                len(set(columns[other])) == 1 or not columns["crop_mode"][0]
            ):
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
