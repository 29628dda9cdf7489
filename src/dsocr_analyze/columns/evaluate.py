"""What many workloads cost, from the closed forms of their architecture, as table columns."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import PageTotals
    from dsocr_analyze.columns.setting import CountedModel, Setting
    from dsocr_analyze.kernels import Work
    from dsocr_analyze.tape.polynomial import Size

__all__ = [
    "BATCH_RESULTS",
    "PAGE_RESULTS",
    "Costs",
    "Workloads",
    "batch_columns",
    "count_columns",
    "evaluate",
    "figures",
    "setting_columns",
]

_LARGEST_BLOCK_BYTES: Final = 31 << 20
"""Just below glibc's largest threshold, 32 MiB."""

_LARGEST_INT64: Final = 2**63 - 1

_FIGURES: Final = ("matrix_flops", "vector_flops", "flops", "bytes_read", "bytes_written")


def _figure_names(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}_{figure}" for name in names for figure in _FIGURES)


_TOKENS: Final = ("grid_columns", "grid_rows", "visual_tokens", "seq_len")
_MEMORY: Final = ("kv_cache_bytes", "peak_activation_bytes")
_PASSES: Final = _figure_names("prefill_pass", "decode_step")

PAGE_RESULTS: Final = (*_TOKENS, *_PASSES, *_figure_names("page"), *_MEMORY)
"""Columns for the costs of a page that runs alone."""

_EXPECTED: Final = "decode_step_bytes_read_expected"

BATCH_RESULTS: Final = (
    *_TOKENS, *_PASSES, _EXPECTED, *_figure_names("batch", "page"), *_MEMORY
)  # fmt: skip
"""Columns for the costs of a batch of identical pages; `page_` columns are one page's share.

`bytes_read_expected` is bytes read if each step touches the number of routed experts expected from
independent choices, instead of the maximum. `peak_activation_bytes` is the most that is alive at
once in the prefill pass, excluding weights and inputs.
"""


class Workloads(NamedTuple):
    """n workloads by column; a single integer applies to all of them."""

    grids: NDArray[np.int64]
    """Crop grid codes from `Architecture.crop_grids`, `[n]`."""
    text_tokens: NDArray[np.int64] | int
    """Prompt tokens in addition to the visual ones."""
    max_new_tokens: NDArray[np.int64] | int
    batch_size: NDArray[np.int64] | int = 1
    """Identical pages per batch."""


class Costs(NamedTuple):
    """What n workloads cost.

    Attributes:
        n: Number of workloads.
        grid_columns: Columns of local views; 1 if the page is not cut.
        grid_rows: Rows of local views; 1 if the page is not cut.
        totals: Tokens and work.
    """

    n: int
    grid_columns: Size
    grid_rows: Size
    totals: PageTotals


def evaluate(model: CountedModel, setting: Setting, workloads: Workloads) -> Costs:
    """The exact costs of n workloads.

    Args:
        model: The model.
        setting: Mode, data type, attention and window of all of them.
        workloads: The workloads; their grids matter only if the mode cuts pages.

    Raises:
        ConfigError: The model has a part without a closed form.
    """
    _keep_freed_memory()
    mode = setting.mode
    columns: Any = 1
    rows: Any = 1
    if mode.crop_mode:
        columns, rows = model.architecture.forms.crop_grids.columns_and_rows(workloads.grids)
    totals = model.architecture.forms.page_totals(
        model.dimensions_in(setting),
        base_size=mode.base_size,
        whole_resolution=mode.base_size if mode.crop_mode else mode.image_size,
        local_resolution=mode.image_size,
        columns=columns,
        rows=rows,
        text_tokens=workloads.text_tokens,
        max_new_tokens=workloads.max_new_tokens,
        batch_size=workloads.batch_size,
        dtype=setting.dtype,
        flash_attention=setting.flash_attention,
    )
    return Costs(len(workloads.grids), columns, rows, totals)


@cache
def _keep_freed_memory() -> None:
    """Let the C library keep the memory of freed columns for the next ones.

    glibc takes small blocks from its heap, and gives up to twice the largest block that it ever
    unmapped back to the system only when more is free. Until one such block is freed, a third of
    a sweep's time is page faults of columns that were just given back.
    """
    np.empty(_LARGEST_BLOCK_BYTES, np.uint8)


def setting_columns(setting: Setting, n: int, has_window: bool | None) -> dict[str, Any]:
    """The setting as Arrow columns by name, `[n]` each, without a window if `has_window` is None.

    Args:
        setting: The setting.
        n: Number of rows.
        has_window: Whether decode steps use a sliding window; None if the model has none.
    """
    keys = setting.keys(has_window)
    return {name: pa.repeat(value, n) for name, value in keys.items() if value is not None}


def figures(name: str, work: Work) -> dict[str, Any]:
    """The figures of some work by column, the same as in a report's `total`.

    Args:
        name: Prefix of the columns: a pass, a page, a batch.
        work: Integers, or arrays of them.
    """
    return {f"{name}_{figure}": getattr(work, figure) for figure in _FIGURES}


def count_columns(costs: Costs, whole: str = "page") -> dict[str, NDArray[np.int64]]:
    """The columns of `PAGE_RESULTS`, `[n]`.

    Args:
        costs: Costs of pages that run alone, or of batches.
        whole: Column prefix for a workload's prefill pass and decode steps together.

    Raises:
        WorkloadError: A count does not fit in 64 bits.
    """
    totals = costs.totals
    counts: dict[str, Any] = {
        "grid_columns": costs.grid_columns,
        "grid_rows": costs.grid_rows,
        "visual_tokens": totals.visual_tokens,
        "seq_len": totals.seq_len,
        **figures("prefill_pass", totals.prefill),
        **figures("decode_step", totals.decode_step),
        **figures(whole, totals.batch),
        "kv_cache_bytes": totals.kv_cache_bytes,
        "peak_activation_bytes": totals.peak_activation_bytes,
    }
    return {name: _int64(name, count, costs.n) for name, count in counts.items()}


def batch_columns(
    costs: Costs, batch_size: NDArray[np.int64]
) -> dict[str, NDArray[np.int64] | NDArray[np.float64]]:
    """The columns of `BATCH_RESULTS`, `[n]`: integers, but floats for expectations and shares.

    Args:
        costs: Costs of batches.
        batch_size: Pages in each batch, `[n]`.

    Raises:
        WorkloadError: A count does not fit in 64 bits.
    """
    counts = count_columns(costs, "batch")
    shares = {f"page_{figure}": counts[f"batch_{figure}"] / batch_size for figure in _FIGURES}
    expected = np.asarray(costs.totals.decode_step_bytes_read_expected, np.float64)
    columns: dict[str, Any] = {**counts, **shares, _EXPECTED: np.broadcast_to(expected, costs.n)}
    return {name: columns[name] for name in BATCH_RESULTS}


def _int64(name: str, counts: Any, n: int) -> NDArray[np.int64]:
    """A single integer or an array of integers as an int64 array, `[n]`."""
    if isinstance(counts, int) or counts.dtype == object:
        largest = np.max(counts, initial=0)
        if largest > _LARGEST_INT64:
            raise WorkloadError(
                f"{name} of {largest} does not fit a 64-bit column; "
                "give fewer pages at a time, fewer tokens or smaller views"
            )
    return np.broadcast_to(np.asarray(counts, np.int64), n)
