"""The pages of a list with their individual costs, one row per page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsocr_analyze.columns.evaluate import evaluate
from dsocr_analyze.columns.results import page_columns
from dsocr_analyze.columns.setting import setting_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from dsocr_analyze.archive.pages import Pages
    from dsocr_analyze.columns.counted_model import CountedModel
    from dsocr_analyze.columns.setting import Setting

__all__ = ["page_table"]


def page_table(model: CountedModel, setting: Setting, pages: Pages) -> pa.RecordBatch:
    """One row per page: its number in the list, its size and lengths, and its costs.

    Args:
        model: The model.
        setting: Mode, data type and attention.
        pages: Pages of a list.

    Returns:
        `row` (the number in the list) and, for files, `path` and `file_page`; size, setting and
        lengths as in a sweep; and `PAGE_RESULTS`.

    Raises:
        WorkloadError: A count does not fit in 64 bits.
    """
    import numpy as np
    import pyarrow as pa

    n = len(pages.numbers)
    costs = evaluate(model, setting, pages.workloads(model.architecture.forms.crop_grids))
    columns: dict[str, Any] = {"row": pages.numbers}
    if pages.paths is not None:
        columns |= {"path": pages.paths, "file_page": pages.file_pages}
    columns |= {
        "page_width": pages.widths,
        "page_height": pages.heights,
        **setting_columns(setting, n, model.window_in(setting)),
        "text_tokens": np.broadcast_to(pages.text_tokens, n),
        "max_new_tokens": np.broadcast_to(pages.max_new_tokens, n),
        **page_columns(costs),
    }
    return pa.RecordBatch.from_pydict(columns)
