"""A sweep as a table for a terminal: what varies, and the figures people look for first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.columns.time_columns import COST
from dsocr_analyze.report.quantities import bytes_text, exact, ratio_text, scaled
from dsocr_analyze.report.table import Table
from dsocr_analyze.report.time_tables import seconds_text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MOST_SHOWN", "sweep_table"]

MOST_SHOWN: Final = 50
"""Most rows shown on a terminal; files have all rows."""

_AXES: Final = {
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
_FIGURES: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
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
    """The first rows of a sweep.

    Args:
        batches: Its rows: at least the first `MOST_SHOWN`, or all if there are fewer.
        rows: Number of rows of the whole sweep.
    """
    import pyarrow as pa

    shown = pa.Table.from_batches(batches).slice(0, MOST_SHOWN).to_pydict()
    axes = [name for name in _AXES if name in shown and len(set(shown[name])) > 1] or ["mode"]
    figures = [name for name in _FIGURES if name in shown]
    cells = [[_axis_text(value) for value in shown[name]] for name in axes]
    cells += [[_figure_text(name, value) for value in shown[name]] for name in figures]
    names = (*(_AXES[name] for name in axes), *(_FIGURES[name][0] for name in figures))
    title = f"Sweep of {rows:,} workloads"
    if rows > MOST_SHOWN:
        title += f", the first {MOST_SHOWN}"
    return Table(
        title, names, tuple(zip(*cells, strict=True)), label_columns=len(axes),
        optional=tuple(_FIGURES[name][0] for name in reversed(figures[2:])),
    )  # fmt: skip


def _axis_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return exact(value) if isinstance(value, int) else str(value)


def _figure_text(name: str, value: Any) -> str:
    return "-" if value is None else _FIGURES[name][1](value)
