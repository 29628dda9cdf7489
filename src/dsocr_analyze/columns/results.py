"""Costs as table columns: their names, and values as int64 or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.columns.evaluate import Costs
    from dsocr_analyze.kernels import Work

__all__ = [
    "BATCH_RESULTS",
    "PAGE_RESULTS",
    "batch_columns",
    "figures",
    "page_columns",
]

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


def figures(name: str, work: Work) -> dict[str, Any]:
    """The figures of some work by column, the same as in a report's `total`.

    Args:
        name: Prefix of the columns: a pass, a page, a batch.
        work: Integers, or arrays of them.
    """
    return {f"{name}_{figure}": getattr(work, figure) for figure in _FIGURES}


def page_columns(costs: Costs) -> dict[str, NDArray[np.int64]]:
    """The columns of `PAGE_RESULTS`, `[n]`.

    Args:
        costs: Costs of pages that run alone.

    Raises:
        WorkloadError: A count does not fit in 64 bits.
    """
    return _columns(costs, "page", PAGE_RESULTS)


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
    import numpy as np

    counts = _columns(costs, "batch", (*_TOKENS, *_PASSES, *_figure_names("batch")))
    expected = np.asarray(costs.totals.decode_step_bytes_read_expected, np.float64)
    shares = {f"page_{figure}": counts[f"batch_{figure}"] / batch_size for figure in _FIGURES}
    found: dict[str, NDArray[np.int64] | NDArray[np.float64]] = {
        **counts,
        **shares,
        **_columns(costs, "batch", _MEMORY),
        _EXPECTED: np.broadcast_to(expected, costs.n),
    }
    return {name: found[name] for name in BATCH_RESULTS}


def _columns(costs: Costs, whole: str, names: tuple[str, ...]) -> dict[str, NDArray[np.int64]]:
    """Some columns of all workloads.

    Args:
        costs: The costs.
        whole: Column prefix for a workload's prefill pass and decode steps together.
        names: The columns.
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
    return {name: _int64(name, counts[name], costs.n) for name in names}


def _int64(name: str, counts: Any, n: int) -> NDArray[np.int64]:
    """A single integer or an array of integers as an int64 array, `[n]`."""
    import numpy as np

    is_one = isinstance(counts, int)
    if is_one or (counts.dtype == object and len(counts)):
        largest = counts if is_one else max(counts)
        if largest > _LARGEST_INT64:
            raise WorkloadError(
                f"{name} of {largest} does not fit a 64-bit column; "
                "give fewer pages at a time, fewer tokens or smaller views"
            )
    column: NDArray[np.int64] = (
        np.full(n, counts) if is_one else counts.astype(np.int64, copy=False)
    )
    return column
