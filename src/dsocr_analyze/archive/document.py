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
        reason: Why it is none.
    """

    row: int
    reason: str


class MalformedRows(msgspec.Struct, frozen=True):
    """Rows that are not pages.

    Attributes:
        rows: Their number.
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
    """What all pages cost under one setting; exact integers.

    Attributes:
        mode: Name of the mode, or its sizes.
        base_size: Pixels per side of the global view in crop mode.
        image_size: Pixels per side of a local view in crop mode, else of the only view.
        crop_mode: Whether pages are cut into local views.
        dtype: Type of weights and activations.
        attention: The decoder's attention implementation.
        sliding_window: Whether decode steps use the sliding window; null if there is none.
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
        batches: Number of batches; of pages if each runs alone.
        largest_kv_cache_bytes: The largest KV cache of a batch.
        largest_peak_activation_bytes: The largest peak of live tensors in the prefill pass of a
            batch, without weights and inputs.
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
    """How long all pages take on a GPU under one setting: predicted, not measured.

    Attributes:
        gpu: Name of the GPU.
        runtime: What runs the model.
        mode: Name of the mode, or its sizes.
        base_size: Pixels per side of the global view in crop mode.
        image_size: Pixels per side of a local view in crop mode, else of the only view.
        crop_mode: Whether pages are cut into local views.
        dtype: Type of weights and activations.
        attention: The decoder's attention implementation.
        sliding_window: Whether decode steps use the sliding window; null if there is none.
        concurrency: Pages in flight.
        gpu_hours: Hours of one GPU.
        low: Lower end of their band.
        high: Upper end of their band.
        pages_per_second: Mean throughput of one GPU.
        cost: Cost of all pages, in the price's currency; null without a price.
        deadline_hours: Hours until the deadline; null without one.
        gpus_for_deadline: GPUs needed to meet it; null without one.
        bound: What takes most of the time: launches, memory, compute or host (which includes
            preprocessing).
        pages_that_wait: Pages of which fewer than `concurrency` fit in memory.
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
    """Files of one kind with a counted page.

    Attributes:
        files: Number of files.
        pages: Number of their pages.
    """

    files: int
    pages: int


class OtherFiles(msgspec.Struct, frozen=True):
    """Files of one extension that are neither images nor PDFs.

    Attributes:
        extension: Lower case with a dot, or empty; `others` for long ones and for those after the
            first thousand.
        files: Number of files.
    """

    extension: str
    files: int


class FilesDocument(msgspec.Struct):
    """The files that were counted, and those that were not.

    Attributes:
        images: Images. Every frame of a TIFF is a page; of others the first.
        pdfs: PDFs.
        pdf_dpi: Resolution at which PDFs are rendered, in pixels per inch.
        pdfs_without_reader: PDFs that are not counted without the extra `pdf`.
        not_counted: Other files, most frequent extension first.
        hidden: Files and folders whose names start with a dot, ignored.
        linked_folders: Links to folders, not followed.
        images_with_more_frames: Animations and the like, whose first frame is a page.
        tiff_copies: Smaller copies and masks in TIFFs, not pages.
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
        batch_size: Pages in a full batch. Pages with equal prompts run together, the last of them
            in a smaller batch; 1 if each runs alone.
        malformed: Rows that are not pages.
        pages_by_grid: Pages by crop grid in modes with `crop_mode`; [1, 1] for all if there is no
            such mode.
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
