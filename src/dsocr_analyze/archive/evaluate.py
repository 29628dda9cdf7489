"""What many workloads cost, as table columns."""

from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dsocr_analyze.archive.setting import CountedModel, Setting
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.figures import PageTotals
from dsocr_analyze.kernels import Work
from dsocr_analyze.tape import Size

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_FIGURES: Final = ("matrix_flops", "vector_flops", "flops", "bytes_read", "bytes_written")

_PARTS: Final = {
    part: tuple(f"{part}_{figure}" for figure in _FIGURES)
    for part in ("prefill_pass", "decode_step", "batch", "page")
}
_TOKENS: Final = ("grid_columns", "grid_rows", "visual_tokens", "seq_len")
_MEMORY: Final = ("kv_cache_bytes", "peak_activation_bytes")
_EXPECTED: Final = "decode_step_bytes_read_expected"

PAGE_RESULTS: Final = (
    *_TOKENS, *_PARTS["prefill_pass"], *_PARTS["decode_step"], *_PARTS["page"], *_MEMORY
)  # fmt: skip
"""Costs of a page that runs alone."""

BATCH_RESULTS: Final = (
    *_TOKENS, *_PARTS["prefill_pass"], *_PARTS["decode_step"], _EXPECTED, *_PARTS["batch"],
    *_PARTS["page"], *_MEMORY,
)  # fmt: skip
"""Costs of a batch of identical pages, and one page's share of it (`page_`).

`bytes_read_expected` counts the routed experts expected of independent choices, not the most.
"""


COST: Final = "cost_per_thousand_pages"
"""Column of what a thousand pages cost."""


class Workloads(NamedTuple):
    """n workloads by column; a single integer applies to all."""

    grids: Integers
    """Codes of crop grids, `[n]`."""
    text_tokens: Integers | int
    """Prompt tokens that are not visual."""
    max_new_tokens: Integers | int
    batch_size: Integers | int = 1
    """Identical pages per batch."""


def evaluate(model: CountedModel, setting: Setting, workloads: Workloads) -> PageTotals:
    """The exact tokens and costs of n workloads; raises ConfigError for an unknown part."""
    _keep_freed_memory()
    mode, sides = setting.mode, {}
    columns, rows = _columns_and_rows(model, setting, workloads)
    if mode.image_size:
        sides = {
            "base_size": mode.base_size,
            "whole_resolution": mode.base_size if mode.crop_mode else mode.image_size,
            "local_resolution": mode.image_size,
        }
    return model.architecture.forms.page_totals(
        model.dimensions_in(setting),
        **sides,
        columns=columns,
        rows=rows,
        text_tokens=workloads.text_tokens,
        max_new_tokens=workloads.max_new_tokens,
        batch_size=workloads.batch_size,
        dtype=setting.dtype,
        flash_attention=setting.flash_attention,
    )


def _columns_and_rows(
    model: CountedModel, setting: Setting, workloads: Workloads
) -> tuple[Size, Size]:
    """Columns and rows of a page's grid; 1 and 1 if it is the same for all pages."""
    if not setting.mode.follows_pages:
        return 1, 1
    return model.architecture.forms.model.page_rule.columns_and_rows(workloads.grids)


@cache
def _keep_freed_memory() -> None:
    """Lets glibc keep up to twice this block, or page faults take a third of a sweep's time."""
    np.empty(31 << 20, np.uint8)  # just below glibc's largest threshold


def figures(name: str, work: Work) -> dict[str, Any]:
    """The figures of a pass, page or batch by column."""
    matrix, vector = work.matrix_flops, work.vector_flops  # `flops` would multiply once more
    counts = matrix, vector, matrix + vector, work.bytes_read, work.bytes_written
    return {f"{name}_{figure}": count for figure, count in zip(_FIGURES, counts, strict=True)}


def cost_columns(
    model: CountedModel, setting: Setting, workloads: Workloads, *, are_batches: bool = False
) -> dict[str, Any]:
    """The columns of `PAGE_RESULTS` or `BATCH_RESULTS`, `[n]`: expectations and shares as floats.

    Raises WorkloadError if a count does not fit in 64 bits.
    """
    totals, n = evaluate(model, setting, workloads), len(workloads.grids)
    grid_columns, grid_rows = _columns_and_rows(model, setting, workloads)
    counts = {
        "grid_columns": grid_columns,
        "grid_rows": grid_rows,
        "visual_tokens": totals.visual_tokens,
        "seq_len": totals.seq_len,
        **figures("prefill_pass", totals.prefill),
        **figures("decode_step", totals.decode_step),
        **figures("batch" if are_batches else "page", totals.batch),
        "kv_cache_bytes": totals.kv_cache_bytes,
        "peak_activation_bytes": totals.peak_activation_bytes,
    }
    columns: dict[str, Any] = {name: _int64(name, count, n) for name, count in counts.items()}
    if are_batches:
        columns[_EXPECTED] = np.broadcast_to(
            np.asarray(totals.decode_step_bytes_read_expected, np.float64), n
        )
        pages = np.asarray(workloads.batch_size, np.float64)
        for figure in _FIGURES:
            columns[f"page_{figure}"] = columns[f"batch_{figure}"] / pages
    return {name: columns[name] for name in (BATCH_RESULTS if are_batches else PAGE_RESULTS)}


def row_columns(
    model: CountedModel,
    setting: Setting,
    workloads: Workloads,
    sizes: Integers,
    *,
    are_batches: bool = False,
) -> dict[str, Any]:
    """Pages of sizes `[2, n]` in pixels, and `cost_columns`; each column `[n]`."""
    n = len(workloads.grids)
    return {
        **dict(zip(("page_width", "page_height"), sizes, strict=True)),
        **{
            name: pa.repeat(value, n)
            for name, value in model.keys_in(setting).items()
            if value is not None
        },
        **{
            name: np.broadcast_to(getattr(workloads, name), n)
            for name in Workloads._fields[1 : 3 + are_batches]
        },
        **cost_columns(model, setting, workloads, are_batches=are_batches),
    }


def _int64(name: str, counts: Any, n: int) -> Integers:
    """An integer or an array of integers as int64, `[n]`."""
    if isinstance(counts, int) or counts.dtype == object:
        largest = np.max(counts, initial=0)
        if largest > np.iinfo(np.int64).max:
            raise WorkloadError(
                f"{name} of {largest} does not fit a 64-bit column; "
                "give fewer pages at a time, fewer tokens or smaller views"
            )
    return np.broadcast_to(np.asarray(counts, np.int64), n)
