"""The rows of an archive with their costs, for those who want every page and not only the sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsocr_analyze.sweep.batch import costs_of_rows
from dsocr_analyze.sweep.evaluate import RESULTS, check_int64
from dsocr_analyze.sweep.product import setting_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from dsocr_analyze.model.dimensions import ModelDimensions
    from dsocr_analyze.sweep.page_list import PageBatch
    from dsocr_analyze.sweep.rows import PageRows
    from dsocr_analyze.sweep.settings import Setting

__all__ = ["page_table"]


def page_table(
    dimensions: ModelDimensions,
    setting: Setting,
    batch: PageBatch,
    pages: PageRows,
    text_tokens: int,
    max_new_tokens: int,
) -> pa.RecordBatch:
    """One row for each row of the batch that describes a page, with the columns of a sweep.

    Args:
        dimensions: The model.
        setting: Mode, element type and attention.
        batch: Rows of a list of pages.
        pages: The numbers in them.
        text_tokens: Where the rows name none.
        max_new_tokens: Where the rows name none.

    Returns:
        `row` (the number in the list) and, of images, `path` before the columns of a sweep.

    Raises:
        WorkloadError: A count does not fit 64 bits.
    """
    import numpy as np
    import pyarrow as pa

    results = check_int64(costs_of_rows(dimensions, setting, pages, text_tokens, max_new_tokens))
    n = len(batch.numbers)
    columns: dict[str, Any] = {"row": batch.numbers}
    if "path" in batch.rows.schema.names:
        columns["path"] = batch.rows.column("path")
    columns |= {
        "page_width": pages.widths,
        "page_height": pages.heights,
        **setting_columns(setting, n),
        "text_tokens": np.full(n, text_tokens) if pages.text_tokens is None else pages.text_tokens,
        "max_new_tokens": np.full(n, max_new_tokens)
        if pages.max_new_tokens is None
        else pages.max_new_tokens,
        **{name: results[name] for name in RESULTS},
    }
    rows = pa.RecordBatch.from_pydict(columns)
    return rows.filter(pa.array(pages.is_good)) if pages.faults.any() else rows
