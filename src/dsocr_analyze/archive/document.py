"""What a list of pages costs: the figures, as they are written as JSON."""

from __future__ import annotations

import msgspec

from dsocr_analyze.archive.setting import CountOpening

__all__ = [
    "ArchiveDocument",
    "CountedFiles",
    "FilesDocument",
    "MalformedRow",
    "MalformedRows",
    "OtherFiles",
    "PagesOfGrid",
    "PagesOfLength",
    "TimeDocument",
    "TotalsDocument",
]


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
        base_size: Pixels per side of the global view in crop mode.
        image_size: Pixels per side of a local view in crop mode, else of the only view.
        crop_mode: Whether pages are cut into local views.
        dtype: Data type of weights and activations.
        attention: The decoder's attention implementation.
        sliding_window: Whether decode steps use the model's sliding window; null if it has none.
        visual_tokens: Visual tokens of all pages.
        prompt_tokens: Visual and text tokens of all prompts.
        new_tokens: Tokens generated for all pages.
        prefill_pass_matrix_flops: Prefill passes, matrix operators.
        prefill_pass_vector_flops: Prefill passes, other operators.
        prefill_pass_flops: Prefill passes, all operators.
        prefill_pass_bytes_read: Prefill passes, all inputs.
        prefill_pass_bytes_written: Prefill passes, all outputs.
        page_matrix_flops: Prefill and decode, matrix operators.
        page_vector_flops: Prefill and decode, other operators.
        page_flops: Prefill and decode, all operators.
        page_bytes_read: Prefill and decode, all inputs.
        page_bytes_written: Prefill and decode, all outputs.
        batches: Number of batches; the number of pages if each runs alone.
        largest_kv_cache_bytes: The largest KV cache of any batch.
        largest_peak_activation_bytes: The largest peak of live tensors in the prefill pass of
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
        base_size: Pixels per side of the global view in crop mode.
        image_size: Pixels per side of a local view in crop mode, else of the only view.
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


class CountedFiles(msgspec.Struct):
    """Files of one kind with at least one counted page.

    Attributes:
        files: Number of files.
        pages: Number of pages in them.
    """

    files: int
    pages: int


class OtherFiles(msgspec.Struct, frozen=True):
    """Files of one extension that are neither images nor PDFs.

    Attributes:
        extension: Lower case with a dot; empty if there is none; `others` for overlong extensions
            and for those after the first thousand.
        files: Number of files.
    """

    extension: str
    files: int


class FilesDocument(msgspec.Struct):
    """The files that were counted, and those that were not.

    Attributes:
        images: Images. Every frame of a TIFF is a page; of other images only the first.
        pdfs: PDFs.
        pdf_dpi: Resolution assumed for rendering PDF pages, in pixels per inch.
        pdfs_without_reader: PDFs that are not counted because the extra `pdf` is not installed.
        not_counted: Other files, most frequent extension first.
        hidden: Files and folders whose names start with a dot, which are ignored.
        linked_folders: Links to folders, which are not followed.
        images_with_more_frames: Animations and the like, of which only the first frame is a page.
        tiff_copies: Smaller copies and masks in TIFFs, which are not pages.
    """

    images: CountedFiles
    pdfs: CountedFiles
    pdf_dpi: int
    pdfs_without_reader: int
    not_counted: tuple[OtherFiles, ...]
    hidden: int
    linked_folders: int
    images_with_more_frames: int
    tiff_copies: int


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
