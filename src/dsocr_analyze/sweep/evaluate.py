"""What many workloads cost, as columns of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.costs import page_totals
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.sweep.grids import GRID_BASE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.model.dimensions import ModelDimensions
    from dsocr_analyze.sweep.settings import Setting
    from dsocr_analyze.work import Work

__all__ = ["COUNTS", "RESULTS", "check_int64", "evaluate"]

_PASSES: Final = ("prefill_pass", "decode_step", "page")
_FIGURES: Final = ("matrix_flops", "vector_flops", "flops", "bytes_read", "bytes_written")

COUNTS: Final = (
    *(f"{name}_{figure}" for name in _PASSES for figure in _FIGURES),
    "kv_cache_bytes",
)
"""What a workload costs, by column."""

RESULTS: Final = ("grid_columns", "grid_rows", "visual_tokens", "seq_len", *COUNTS)
"""Columns that are worked out for each workload, in their order."""


def evaluate(
    dimensions: ModelDimensions,
    setting: Setting,
    codes: NDArray[np.int64],
    text_tokens: NDArray[np.int64] | int,
    max_new_tokens: NDArray[np.int64] | int,
    batch_size: NDArray[np.int64] | int = 1,
) -> dict[str, NDArray[Any]]:
    """All columns of `RESULTS` for n workloads.

    Args:
        dimensions: The model.
        setting: Mode, element type and attention of them all.
        codes: Crop grids, `[n]`, as from `crop_grid_codes`; not looked at where nothing is cut.
        text_tokens: Tokens besides the visual ones, for each (`[n]`) or for all.
        max_new_tokens: Tokens generated, for each or for all.
        batch_size: Equal pages at a time, for each or for all.

    Returns:
        Arrays `[n]` by name: int64, or Python integers (dtype object) where int64 might not hold
        every value.

    Raises:
        ConfigError: The model has a part without a closed form.
    """
    import numpy as np

    mode = setting.mode
    columns: Any = 1
    rows: Any = 1
    if mode.crop_mode:
        columns, rows = np.divmod(codes, GRID_BASE)
    totals = page_totals(
        dimensions,
        whole_resolution=mode.base_size if mode.crop_mode else mode.image_size,
        local_resolution=mode.image_size,
        columns=columns,
        rows=rows,
        text_tokens=text_tokens,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        element_bytes=setting.element_bytes,
        flash_attention=setting.flash_attention,
    )
    results: dict[str, Any] = {
        "grid_columns": columns,
        "grid_rows": rows,
        "visual_tokens": totals.visual_tokens,
        "seq_len": totals.seq_len,
    }
    for name, work in zip(_PASSES, (totals.prefill, totals.decode_step, totals.page), strict=True):
        results |= _figures(name, work)
    results["kv_cache_bytes"] = totals.kv_cache_bytes
    n = len(codes)
    return {
        name: np.full(n, value, np.int64 if value < 2**63 else object)
        if isinstance(value, int)
        else value
        for name, value in results.items()
    }


def _figures(name: str, work: Work) -> dict[str, Any]:
    """Columns of one pass; the same counts as in a report's `total`."""
    return {
        f"{name}_matrix_flops": work.matrix_flops,
        f"{name}_vector_flops": work.vector_flops,
        f"{name}_flops": work.flops,
        f"{name}_bytes_read": work.bytes_read,
        f"{name}_bytes_written": work.bytes_written,
    }


def check_int64(results: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.int64]]:
    """The same columns as int64.

    Raises:
        WorkloadError: A value does not fit.
    """
    import numpy as np

    checked: dict[str, NDArray[np.int64]] = {}
    for name, values in results.items():
        if values.dtype == object and len(values) and max(values) >= 2**63:
            raise WorkloadError(
                f"{name} of {max(values)} does not fit a 64-bit column; "
                "give fewer pages at a time, fewer tokens or smaller views"
            )
        checked[name] = values.astype(np.int64, copy=False)
    return checked
