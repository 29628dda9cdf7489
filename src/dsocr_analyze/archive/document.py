"""What a list of pages costs, as a JSON document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dsocr_analyze.archive.files_document import FilesDocument, files_document
from dsocr_analyze.archive.histogram import token_bars
from dsocr_analyze.columns.metadata import CountOpening

if TYPE_CHECKING:
    from dsocr_analyze.archive.time_totals import TimeTotals
    from dsocr_analyze.archive.totals import Archive, SettingTotals

__all__ = ["ArchiveDocument", "archive_document"]


class MalformedRow(msgspec.Struct, frozen=True):
    """A row that is not a page.

    Attributes:
        row: Its number, from 1.
        reason: Why it is not a page.
    """

    row: int
    reason: str


class MalformedRows(msgspec.Struct, frozen=True):
    """Rows that are not pages.

    Attributes:
        rows: Number of such rows.
        reported: The first of them.
    """

    rows: int
    reported: tuple[MalformedRow, ...]


class PagesOfGrid(msgspec.Struct, frozen=True):
    """Pages that are cut alike.

    Attributes:
        grid: Columns and rows of local views; [1, 1] for uncut pages.
        pages: Number of pages.
    """

    grid: tuple[int, int]
    pages: int


class PagesOfLength(msgspec.Struct, frozen=True):
    """Pages whose prompts are of similar length.

    Attributes:
        tokens: Range of prompt tokens, from and to.
        pages: Number of pages.
    """

    tokens: str
    pages: int


class TotalsDocument(msgspec.Struct, frozen=True):
    """What all pages together cost under one setting; exact integers.

    Attributes:
        mode: Name of the mode, or its sizes.
        base_size: Side of the global view in crop mode, in pixels.
        image_size: Side of a local view in crop mode, or of the only view otherwise, in pixels.
        crop_mode: Whether pages are cut into local views.
        dtype: Data type of weights and activations.
        attention: The decoder's attention implementation.
        sliding_window: Whether decode steps use the model's sliding window; null if it has none.
        visual_tokens: Visual tokens of all pages.
        prompt_tokens: Visual and text tokens of all prompts.
        new_tokens: Tokens generated for all pages.
        prefill_pass_matrix_flops: FLOPs of matrix operators in the prefill passes.
        prefill_pass_vector_flops: FLOPs of all other operators in the prefill passes.
        prefill_pass_flops: All FLOPs of the prefill passes.
        prefill_pass_bytes_read: Bytes of all inputs in the prefill passes.
        prefill_pass_bytes_written: Bytes of all outputs in the prefill passes.
        page_matrix_flops: FLOPs of matrix operators, decode steps included.
        page_vector_flops: FLOPs of all other operators, decode steps included.
        page_flops: All FLOPs, decode steps included.
        page_bytes_read: Bytes of all inputs, decode steps included.
        page_bytes_written: Bytes of all outputs, decode steps included.
        batches: Number of batches; the number of pages if each runs alone.
        largest_kv_cache_bytes: The largest KV cache of any batch.
        largest_peak_activation_bytes: Most bytes of tensors alive at once in the prefill pass of
            any batch, excluding weights and inputs.
        pages_beyond_max_position_embeddings: Pages longer than max_position_embeddings.
        pages_by_prompt_tokens: Pages by length of their prompts.
    """

    mode: str
    base_size: int
    image_size: int
    crop_mode: bool
    dtype: str
    attention: str
    sliding_window: bool | None
    visual_tokens: int
    prompt_tokens: int
    new_tokens: int
    prefill_pass_matrix_flops: int
    prefill_pass_vector_flops: int
    prefill_pass_flops: int
    prefill_pass_bytes_read: int
    prefill_pass_bytes_written: int
    page_matrix_flops: int
    page_vector_flops: int
    page_flops: int
    page_bytes_read: int
    page_bytes_written: int
    batches: int
    largest_kv_cache_bytes: int
    largest_peak_activation_bytes: int
    pages_beyond_max_position_embeddings: int
    pages_by_prompt_tokens: tuple[PagesOfLength, ...]


class TimeDocument(msgspec.Struct, frozen=True):
    """How long all pages take on one GPU under one setting: predicted, not measured.

    Attributes:
        gpu: Name of the GPU.
        runtime: What runs the model.
        mode: Name of the mode, or its sizes.
        base_size: Side of the global view in crop mode, in pixels.
        image_size: Side of a local view in crop mode, or of the only view otherwise, in pixels.
        crop_mode: Whether pages are cut into local views.
        dtype: Data type of weights and activations.
        attention: The decoder's attention implementation.
        sliding_window: Whether decode steps use the model's sliding window; null if it has none.
        concurrency: Pages in flight at a time.
        gpu_hours: Hours of one GPU.
        low: Lower end of the band of `gpu_hours`.
        high: Upper end of the band of `gpu_hours`.
        pages_per_second: Mean throughput of one GPU.
        cost: Cost of all pages, in the currency of the price; null without a price.
        deadline_hours: Hours until the deadline; null without a deadline.
        gpus_for_deadline: GPUs needed to meet the deadline; null without a deadline.
        bound: What takes most of the time: launches, memory, compute or host (which includes
            preprocessing).
        pages_that_wait: Pages so large that fewer than `concurrency` of them fit in memory.
        assumptions: What the prediction assumes.
    """

    gpu: str
    runtime: str
    mode: str
    base_size: int
    image_size: int
    crop_mode: bool
    dtype: str
    attention: str
    sliding_window: bool | None
    concurrency: int
    gpu_hours: float
    low: float
    high: float
    pages_per_second: float
    cost: float | None
    deadline_hours: float | None
    gpus_for_deadline: int | None
    bound: str
    pages_that_wait: int
    assumptions: tuple[str, ...]


class ArchiveDocument(CountOpening, frozen=True, kw_only=True, omit_defaults=True):
    """What a list of pages costs.

    Attributes:
        rows: Rows of the list.
        pages: Rows that are pages.
        batch_size: Pages in a full batch. Pages with equal prompts run together, with a smaller
            batch for the remainder of each prompt; 1 if each page runs alone.
        malformed: Rows that are not pages.
        pages_by_grid: Pages by crop grid in the modes with `crop_mode`; if there is none, [1, 1]
            for all pages. The other modes never cut pages.
        totals: One entry per setting.
        time: One entry per GPU and setting; absent if no GPU was named.
        files: The files of a folder; absent for a list of sizes.
    """

    rows: int
    pages: int
    batch_size: int
    malformed: MalformedRows
    pages_by_grid: tuple[PagesOfGrid, ...]
    totals: tuple[TotalsDocument, ...]
    time: tuple[TimeDocument, ...] = ()
    files: FilesDocument | None = None


def archive_document(archive: Archive, opening: CountOpening) -> ArchiveDocument:
    """The document of a list of pages.

    Args:
        archive: The list's totals.
        opening: The model, and how it was counted.
    """
    malformed = archive.malformed
    return ArchiveDocument(
        **msgspec.structs.asdict(opening),
        rows=archive.rows,
        pages=archive.pages,
        batch_size=archive.batch_size,
        malformed=MalformedRows(
            malformed.rows, tuple(MalformedRow(row, reason) for row, reason in malformed.reported)
        ),
        pages_by_grid=tuple(
            PagesOfGrid(grid, pages) for grid, pages in sorted(archive.pages_by_grid.items())
        ),
        totals=tuple(_totals_document(totals) for totals in archive.totals),
        time=tuple(_time_document(times) for times in archive.times),
        files=None if archive.files is None else files_document(archive.files),
    )


def _totals_document(totals: SettingTotals) -> TotalsDocument:
    setting, mode = totals.setting, totals.setting.mode
    bars = token_bars(totals.pages_by_tokens)
    return TotalsDocument(
        mode=mode.name,
        base_size=mode.base_size,
        image_size=mode.image_size,
        crop_mode=mode.crop_mode,
        dtype=setting.dtype.name,
        attention=setting.attention,
        sliding_window=totals.sliding_window,
        visual_tokens=totals.visual_tokens,
        prompt_tokens=totals.prompt_tokens,
        new_tokens=totals.new_tokens,
        **totals.counts,
        batches=totals.batches,
        largest_kv_cache_bytes=totals.largest_kv_cache_bytes,
        largest_peak_activation_bytes=totals.largest_peak_activation_bytes,
        pages_beyond_max_position_embeddings=totals.beyond_positions,
        pages_by_prompt_tokens=tuple(PagesOfLength(bar.label, bar.pages) for bar in bars),
    )


def _time_document(times: TimeTotals) -> TimeDocument:
    setting, mode = times.setting, times.setting.mode
    low, high = times.band
    return TimeDocument(
        gpu=times.gpu,
        runtime=times.runtime,
        mode=mode.name,
        base_size=mode.base_size,
        image_size=mode.image_size,
        crop_mode=mode.crop_mode,
        dtype=setting.dtype.name,
        attention=setting.attention,
        sliding_window=times.sliding_window,
        concurrency=times.time.concurrency,
        gpu_hours=times.gpu_hours,
        low=low,
        high=high,
        pages_per_second=times.pages_per_second,
        cost=times.cost,
        deadline_hours=times.time.deadline_hours,
        gpus_for_deadline=times.gpus_for_deadline,
        bound=times.bound,
        pages_that_wait=times.pages_that_wait,
        assumptions=tuple(times.assumptions),
    )
