"""Sweeps, lists of pages, and which mode a page needs: many workloads at once. No torch.

A model under fixed settings (`setting`) turns columns of workloads into columns of costs
(`evaluate`). A sweep evaluates every combination of sizes, modes, lengths and batches (`axes`,
`combinations`). An archive is a list of pages (`pages`), grouped into distinct workloads, evaluated
and summed (`totals`), and reported (`document`). Advice compares the modes for a page: what each
sees of it, its cost, and accuracy quoted only from published figures, with their limits (`advice`).

The batch function `count_pages` takes and returns Arrow data. numpy and pyarrow are imported only
by modules that need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from dsocr_analyze.architectures import PageRequest
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    import pyarrow as pa

    from dsocr_analyze.archive.setting import CountedModel

__all__ = ["count_pages"]

Batch = TypeVar("Batch", bound="pa.RecordBatch | pa.Table")


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
    import pyarrow as pa

    from dsocr_analyze.archive.axes import mode_or_sizes
    from dsocr_analyze.archive.evaluate import PAGE_RESULTS, Workloads, cost_columns
    from dsocr_analyze.archive.pages import fault_texts, read_rows
    from dsocr_analyze.archive.setting import Setting, published_model
    from dsocr_analyze.dtypes import dtype_named

    if taken := sorted({*PAGE_RESULTS, "problem"}.intersection(batch.schema.names)):
        raise WorkloadError(f"the batch already has a column {taken[0]!r}; rename or drop it")
    model = published_model() if model is None else model
    setting = Setting(
        mode_or_sizes(model.architecture, mode or model.architecture.default_mode),
        dtype_named(dtype), flash_attention,
    )  # fmt: skip
    # Planning any page checks the lengths and fills in the usual prompt.
    planned = PageRequest(
        architecture=model.architecture, text_tokens=text_tokens, max_new_tokens=max_new_tokens
    ).workload_of_page
    values, faults = read_rows(batch)
    workloads = Workloads(
        model.architecture.forms.crop_grids.codes(values["width"], values["height"]),
        values.get("text_tokens", planned.text_tokens),
        values.get("max_new_tokens", planned.max_new_tokens),
    )
    results = cost_columns(model, setting, workloads)
    columns = {name: pa.array(each, mask=faults > 0) for name, each in results.items()}
    columns["problem"] = pa.array(fault_texts(), pa.string()).take(pa.array(faults))
    for name, column in columns.items():
        batch = batch.append_column(name, column)
    return batch
