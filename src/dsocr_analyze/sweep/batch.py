"""The public batch function: Arrow in, Arrow out, a row a page."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.model.dimensions import ModelDimensions
from dsocr_analyze.model.directory import REFERENCE_DIRECTORY
from dsocr_analyze.sweep.evaluate import RESULTS, check_int64, evaluate
from dsocr_analyze.sweep.grids import crop_grid_codes
from dsocr_analyze.sweep.rows import PageRows, fault_texts, read_rows
from dsocr_analyze.sweep.settings import Setting
from dsocr_analyze.workload import plan_workload
from dsocr_analyze.workload.workload import DEFAULT_TEXT_TOKENS

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


Batch = TypeVar("Batch", bound="pa.RecordBatch | pa.Table")

__all__ = ["count_pages", "reference_dimensions"]

PROBLEM = "problem"
"""Column that says what is wrong with a row; null where nothing is."""


def count_pages(
    batch: Batch,
    *,
    dimensions: ModelDimensions | None = None,
    mode: str = "gundam",
    dtype: str = "bfloat16",
    flash_attention: bool = False,
    text_tokens: int = DEFAULT_TEXT_TOKENS,
    max_new_tokens: int = 1024,
) -> Batch:
    """What each page of a batch costs, page by page (a batch size of 1).

    A pure function that needs no torch: it runs as it is in Ray Data's
    `map_batches(count_pages, batch_format="pyarrow")`, with `fn_kwargs` for the keywords.

    Args:
        batch: Columns `width` and `height` (pixels), and optionally `text_tokens` and
            `max_new_tokens`, which then stand in for the keywords; whole numbers of any numeric
            type, or as text. Other columns are handed through.
        dimensions: The model; the published one where none is given.
        mode: A mode, or sizes like `1024/640` (crops) or `640` (does not).
        dtype: Type of weights and activations.
        flash_attention: FlashAttention in place of the decoder's eager attention.
        text_tokens: Tokens besides the visual ones, BOS included.
        max_new_tokens: Tokens that a page yields; the prefill pass yields the first.

    Returns:
        The batch with its rows in their order and the columns `RESULTS` (int64) behind its own: the
        crop grid, tokens, and FLOPs, bytes read and bytes written of the prefill pass, of one
        decode step and of the whole page. Then `problem` (text): what is wrong with a row that
        describes no page; the results of such a row are null.

    Raises:
        WorkloadError: A column is missing or holds no numbers, the batch has a column called like a
            result, a keyword is not possible, or a count does not fit 64 bits.
        DeviceError: The type is unknown.
    """
    import pyarrow as pa

    setting = Setting.named(mode, dtype, flash_attention=flash_attention)
    check_lengths(text_tokens, max_new_tokens)
    taken = sorted({*RESULTS, PROBLEM}.intersection(batch.schema.names))
    if taken:
        raise WorkloadError(f"the batch has a column {taken[0]!r} already; rename or drop it")
    pages = read_rows(batch)
    results = check_int64(
        costs_of_rows(
            reference_dimensions() if dimensions is None else dimensions,
            setting,
            pages,
            text_tokens,
            max_new_tokens,
        )
    )
    has_faults = bool(pages.faults.any())
    is_faulty = pages.faults != 0 if has_faults else None
    arrays: list[Any] = [
        *batch.columns,
        *(pa.array(results[name], pa.int64(), mask=is_faulty) for name in RESULTS),
        _problems(pages, has_faults),
    ]
    schema = pa.schema(
        [
            *batch.schema,
            *(pa.field(name, pa.int64()) for name in RESULTS),
            pa.field(PROBLEM, pa.string()),
        ],
        metadata=batch.schema.metadata,
    )
    counted: Batch = type(batch).from_arrays(arrays, schema=schema)
    return counted


def _problems(pages: PageRows, has_faults: bool) -> Any:
    import pyarrow as pa

    if not has_faults:
        return pa.nulls(len(pages.faults), pa.string())
    return pa.array(fault_texts(), pa.string()).take(pa.array(pages.faults))


def costs_of_rows(
    dimensions: ModelDimensions,
    setting: Setting,
    pages: PageRows,
    text_tokens: int,
    max_new_tokens: int,
) -> dict[str, NDArray[Any]]:
    """The columns of `RESULTS` of all rows; those of a faulty row mean nothing.

    Args:
        dimensions: The model.
        setting: Mode, element type and attention.
        pages: The rows.
        text_tokens: Where the rows name none.
        max_new_tokens: Where the rows name none.
    """
    return evaluate(
        dimensions,
        setting,
        crop_grid_codes(pages.widths, pages.heights),
        text_tokens if pages.text_tokens is None else pages.text_tokens,
        max_new_tokens if pages.max_new_tokens is None else pages.max_new_tokens,
    )


def check_lengths(text_tokens: int, max_new_tokens: int) -> None:
    """Raises WorkloadError for a number of tokens that is not possible."""
    plan_workload(page=(1, 1), text_tokens=text_tokens, max_new_tokens=max_new_tokens)


@cache
def reference_dimensions() -> ModelDimensions:
    """Dimensions of the published model."""
    return ModelDimensions.from_file(REFERENCE_DIRECTORY / "config.json")
