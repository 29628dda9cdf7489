"""What is counted, and how; and its documents."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Self

from msgspec import Struct

from dsocr_analyze.analytic import ATTENTION_NAMES, UNIFORM_ROUTING_NOTE
from dsocr_analyze.architectures import DEFAULT, PageRequest
from dsocr_analyze.architectures.architecture import Architecture, ModelDimensions
from dsocr_analyze.kernels import Dtype
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.report.opening import (
    CONVENTIONS,
    NO_OPTIONS,
    SCHEMA_VERSION,
    ModelOpening,
    Options,
)
from dsocr_analyze.version import VERSION
from dsocr_analyze.workload import LARGEST_SIDE, AnyWorkload, Mode

_MOST_WARNINGS: Final = 6


@dataclass(frozen=True)
class Setting:
    """One way to run a model on any page."""

    mode: Mode
    dtype: Dtype
    flash_attention: bool = False
    """FlashAttention instead of the decoder's eager attention."""
    sliding_window: bool = True
    """Whether decode steps use the model's sliding window, if it has one."""

    @property
    def attention(self) -> str:
        """The kind of attention, as in a report's metadata."""
        return ATTENTION_NAMES[self.flash_attention]

    @property
    def attention_label(self) -> str:
        """The kind of attention, and whether its window is off."""
        return self.attention if self.sliding_window else f"{self.attention}, no window"


def settings_of(
    dtypes: Iterable[Dtype],
    attentions: Iterable[bool],
    modes: Iterable[Mode],
    windows: Iterable[bool] = (True,),
) -> list[Setting]:
    """Every combination; the mode varies fastest."""
    return [
        Setting(mode, dtype, flash, window)
        for dtype, flash, window, mode in itertools.product(dtypes, attentions, windows, modes)
    ]


def warnings_of_modes(architecture: Architecture, modes: Iterable[Mode]) -> list[str]:
    """What is odd about the sizes of these modes; only the first few are listed."""
    warnings = [
        f"mode {mode.name}: {warning}"
        for mode in dict.fromkeys(modes)
        for warning in architecture.warnings_of(_largest_page(architecture, mode))
    ]
    shown, more = warnings[:_MOST_WARNINGS], len(warnings) - _MOST_WARNINGS
    return [*shown, f"{more:,} more warnings about the sizes of modes"] if more > 0 else shown


def _largest_page(architecture: Architecture, mode: Mode) -> AnyWorkload:
    """A page that is cut if the mode cuts pages at all."""
    return PageRequest(
        architecture=architecture, page=(LARGEST_SIDE, LARGEST_SIDE), base_size=mode.base_size,
        image_size=mode.image_size, crop_mode=mode.crop_mode,
    ).workload  # fmt: skip


@dataclass(frozen=True)
class CountedModel:
    """A model as the analytic engine sees it."""

    architecture: Architecture
    dimensions: ModelDimensions
    warnings: tuple[str, ...] = ()
    """Keys of its config that have no effect."""
    without_window: ModelDimensions | None = None
    """Its sizes with its sliding window off, if it has one."""

    @classmethod
    def from_directory(cls, directory: ModelDirectory) -> Self:
        """The model built by a directory's code; ConfigError if its config is not modelled."""
        architecture, without_window = directory.architecture, None
        if architecture.has_window:
            config = architecture.without_window(directory.config)
            without_window = architecture.forms.dimensions(config, directory.code)
        return cls(
            architecture,
            directory.dimensions(),
            directory.config_findings.warnings,
            without_window,
        )

    def dimensions_in(self, setting: Setting) -> ModelDimensions:
        """Its sizes under a setting, with or without its sliding window."""
        return (not setting.sliding_window and self.without_window) or self.dimensions

    def keys_in(self, setting: Setting) -> dict[str, Any]:
        """A setting by column and key; that of the window is None if there is none."""
        is_on = self.dimensions_in(setting).decoder.sliding_window is not None
        return {
            "mode": setting.mode.name,
            "base_size": setting.mode.base_size or None,
            "image_size": setting.mode.image_size or None,
            "crop_mode": setting.mode.crop_mode,
            "dtype": setting.dtype.name,
            "attention": setting.attention,
            "sliding_window": None if self.without_window is None else is_on,
        }


@cache
def published_model() -> CountedModel:
    """The published model of the default architecture."""
    return CountedModel.from_directory(ModelDirectory.read(DEFAULT.reference))


# --- what documents and tables open with ----------------------------------------------------------


class Versions(Struct, frozen=True):
    """Versions of the software.

    Attributes:
        tool: Version of this program.
    """

    tool: str


class CountMetadata(Struct, frozen=True, kw_only=True):
    """How the figures were counted.

    Attributes:
        versions: Versions of the software.
        engine: Always analytic: closed forms were evaluated.
        conventions: How each quantity is counted.
        notes: Caveats about the figures.
    """

    versions: Versions
    engine: str
    conventions: tuple[str, ...]
    notes: tuple[str, ...]


class CountOpening(ModelOpening, frozen=True, kw_only=True):
    """The first keys of a document of analytic figures, and the metadata of a table.

    Attributes:
        metadata: How the figures were counted.
    """

    metadata: CountMetadata


def opening_of(
    directory: ModelDirectory,
    architecture: Architecture,
    modes: Iterable[Mode],
    notes: Iterable[str] = (),
    *,
    command: str = "",
    options: Options = NO_OPTIONS,
) -> CountOpening:
    """The opening of analytic figures of some modes; no command in Python."""
    of_modes = (
        note for mode in modes for note in architecture.notes_of(_largest_page(architecture, mode))
    )
    return CountOpening(
        schema_version=SCHEMA_VERSION,
        command=command,
        options=options,
        model=directory.source(architecture.name),
        metadata=CountMetadata(
            versions=Versions(tool=VERSION),
            engine="analytic",
            conventions=CONVENTIONS,
            notes=(
                *directory.config_findings.warnings,
                *([UNIFORM_ROUTING_NOTE] if architecture.routed_expert else []),
                *dict.fromkeys(of_modes),
                *directory.assumptions,
                *notes,
            ),
        ),
    )


# --- what a list of pages costs -------------------------------------------------------------------


class MalformedRow(Struct, frozen=True):
    """A row that is not a page.

    Attributes:
        row: Its number, from 1.
        reason: Why it is none.
    """

    row: int
    reason: str


class MalformedRows(Struct, frozen=True):
    """Rows that are not pages.

    Attributes:
        rows: Their number.
        reported: The first of them.
    """

    rows: int
    reported: tuple[MalformedRow, ...]


class PagesOfGrid(Struct, frozen=True):
    """Pages that are cut alike.

    Attributes:
        grid: Columns and rows of local views; [1, 1] for uncut pages.
        pages: Number of pages.
    """

    grid: tuple[int, int]
    pages: int


class PagesOfLength(Struct, frozen=True):
    """Pages whose prompts are of similar length.

    Attributes:
        tokens: Range of prompt tokens, from and to.
        pages: Number of pages.
    """

    tokens: str
    pages: int


class ModeDocument(Struct, frozen=True, kw_only=True):
    """A mode.

    Attributes:
        mode: Name of the mode, or its sizes.
        base_size: Pixels per side of the global view in crop mode; null, as image_size, where a
            processor chooses the sides of the only view.
        image_size: Pixels per side of a local view in crop mode, else of the only view.
        crop_mode: Whether pages are cut into local views.
    """

    mode: str
    base_size: int | None
    image_size: int | None
    crop_mode: bool


class SettingDocument(ModeDocument, frozen=True, kw_only=True):
    """A setting.

    Attributes:
        dtype: Type of weights and activations.
        attention: The decoder's attention implementation.
        sliding_window: Whether decode steps use the sliding window; null if there is none.
    """

    dtype: str
    attention: str
    sliding_window: bool | None


class TotalsDocument(SettingDocument, frozen=True, kw_only=True):
    """What all pages cost under one setting; exact integers.

    Attributes:
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


class _TimedSetting(SettingDocument, frozen=True):
    """A setting on a GPU; keys that can be given by position come first.

    Attributes:
        gpu: Name of the GPU.
        runtime: What runs the model.
        host: `eager`, or the serving engine.
    """

    gpu: str
    runtime: str
    host: str


class TimeDocument(_TimedSetting, frozen=True, kw_only=True):
    """How long all pages take on a GPU under one setting: predicted, not measured.

    Attributes:
        concurrency: Pages in flight.
        gpu_hours: Hours of one GPU.
        low: Lower end of their band.
        high: Upper end of their band.
        pages_per_second: Mean throughput of one GPU.
        cost: Cost of all pages, in the price's currency; null without a price.
        deadline_hours: Hours until the deadline; null without one.
        gpus_for_deadline: GPUs needed to meet it; null without one.
        bound: What takes most of the time: launches, memory, compute, host, or workers (those of
            the CPU, which prepare pages).
        pages_that_wait: Pages of which fewer than `concurrency` fit in memory.
        assumptions: What the prediction assumes.
        notes: Those assumptions that make it doubtful, or that correct it.
    """

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
    notes: tuple[str, ...]


class CountedFiles(Struct):
    """Files of one kind with a counted page.

    Attributes:
        files: Number of files.
        pages: Number of their pages.
    """

    files: int
    pages: int


class OtherFiles(Struct, frozen=True):
    """Files of one extension that are neither images nor PDFs.

    Attributes:
        extension: Lower case with a dot, or empty; `others` for long ones and for those after the
            first thousand.
        files: Number of files.
    """

    extension: str
    files: int


class FilesDocument(Struct):
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
