"""The public batch function: Arrow in, Arrow out, one row per page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from dsocr_analyze.archive.rows import PageRows, fault_texts, read_rows
from dsocr_analyze.columns.counted_model import CountedModel, published_model
from dsocr_analyze.columns.evaluate import Workloads, evaluate
from dsocr_analyze.columns.results import PAGE_RESULTS, page_columns
from dsocr_analyze.columns.setting import Setting
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = ["count_pages"]

Batch = TypeVar("Batch", bound="pa.RecordBatch | pa.Table")

PROBLEM: Final = "problem"
"""Column that says what is wrong with a row; null for good rows."""


def count_pages(
    batch: Batch,
    *,
    model: CountedModel | None = None,
    mode: str | None = None,
    dtype: str = "bfloat16",
    flash_attention: bool = False,
    text_tokens: int | None = None,
    max_new_tokens: int = 1024,
) -> Batch:
    """What each page of a batch costs on its own (batch size 1).

    A pure function that does not need torch. It works unchanged in Ray Data's
    `map_batches(count_pages, batch_format="pyarrow")`, with `fn_kwargs` for the keywords.

    Args:
        batch: Columns `width` and `height` (pixels), and optionally `text_tokens` and
            `max_new_tokens`, which then replace the keywords; whole numbers of any numeric type,
            or as text. Other columns are passed through.
        model: The model; by default the published one.
        mode: A mode, or sizes like `1024/640` (crops) or `640` (no crops); by default the model's
            default mode.
        dtype: Data type of weights and activations.
        flash_attention: Whether to use FlashAttention instead of the decoder's eager attention.
        text_tokens: Prompt tokens in addition to the visual ones, BOS included; by default those of
            the model's usual prompt.
        max_new_tokens: Tokens generated per page; the prefill pass generates the first.

    Returns:
        The batch, rows in the same order, with the columns `PAGE_RESULTS` (int64) appended: the
        crop grid, tokens, and FLOPs, bytes read and bytes written of the prefill pass, of one
        decode step and of the whole page. The last column is `problem` (text): what is wrong with
        a row that is not a page; the results of such a row are null.

    Raises:
        WorkloadError: A column is missing or not numeric, the batch already has a column with the
            name of a result, a keyword is invalid, or a count does not fit in 64 bits.
        DeviceError: The type is unknown.
    """
    taken = sorted({*PAGE_RESULTS, PROBLEM}.intersection(batch.schema.names))
    if taken:
        raise WorkloadError(f"the batch already has a column {taken[0]!r}; rename or drop it")
    model = published_model() if model is None else model
    setting = Setting.named(model.architecture, mode, dtype, flash_attention=flash_attention)
    # Planning any page checks the lengths and fills in the usual prompt.
    lengths = model.architecture.plan(
        page=(1, 1), text_tokens=text_tokens, max_new_tokens=max_new_tokens
    )
    pages = read_rows(batch)
    workloads = Workloads(
        model.architecture.forms.crop_grids.codes(pages.widths, pages.heights),
        lengths.text_tokens if pages.text_tokens is None else pages.text_tokens,
        max_new_tokens if pages.max_new_tokens is None else pages.max_new_tokens,
    )
    return _joined(batch, pages, page_columns(evaluate(model, setting, workloads)))


def _joined(batch: Batch, pages: PageRows, results: dict[str, NDArray[np.int64]]) -> Batch:
    """The batch with results, null in faulty rows, and problems appended to its columns."""
    import pyarrow as pa

    is_faulty = ~pages.is_good if pages.faults.any() else None
    arrays: list[Any] = [
        *batch.columns,
        *(pa.array(results[name], pa.int64(), mask=is_faulty) for name in PAGE_RESULTS),
        _problems(pages),
    ]
    schema = pa.schema(
        [
            *batch.schema,
            *(pa.field(name, pa.int64()) for name in PAGE_RESULTS),
            pa.field(PROBLEM, pa.string()),
        ],
        metadata=batch.schema.metadata,
    )
    joined: Batch = type(batch).from_arrays(arrays, schema=schema)
    return joined


def _problems(pages: PageRows) -> Any:
    """What is wrong with each row, `[n]`; null for good rows."""
    import pyarrow as pa

    if not pages.faults.any():
        return pa.nulls(len(pages.faults), pa.string())
    return pa.array(fault_texts(), pa.string()).take(pa.array(pages.faults))
