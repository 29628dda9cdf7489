"""What many workloads cost and how long they take, as table columns.

Modules that predict seconds are imported only by what needs them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dsocr_analyze.architectures import PageRequest
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.page_totals import PageTotals
from dsocr_analyze.archive.setting import CountedModel, Setting
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.kernels import Work
from dsocr_analyze.tape import Size
from dsocr_analyze.workload import Mode

if TYPE_CHECKING:
    from dsocr_analyze.hardware.timed_device import Device
    from dsocr_analyze.timing.assumptions import Assumptions
    from dsocr_analyze.timing.page_times import ManyPages, PageTimer

__all__ = [
    "BATCH_RESULTS",
    "COST",
    "PAGE_RESULTS",
    "TimeRequested",
    "Workloads",
    "cost_columns",
    "evaluate",
    "figures",
    "many_pages",
    "row_columns",
    "time_columns",
]

Integers = NDArray[np.int64]

_LARGEST_BLOCK_BYTES: Final = 31 << 20
"""Just below glibc's largest threshold, 32 MiB."""

_LARGEST_INT64: Final = 2**63 - 1

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
"""Columns for the costs of a page that runs alone."""

BATCH_RESULTS: Final = (
    *_TOKENS, *_PARTS["prefill_pass"], *_PARTS["decode_step"], _EXPECTED, *_PARTS["batch"],
    *_PARTS["page"], *_MEMORY,
)  # fmt: skip
"""Columns for the costs of a batch of identical pages; `page_` columns are one page's share.

`bytes_read_expected` assumes the number of routed experts expected from independent choices instead
of the maximum. `peak_activation_bytes` are alive in the prefill pass besides weights and inputs.
"""


class Workloads(NamedTuple):
    """n workloads by column; a single integer applies to all."""

    grids: Integers
    """Crop grid codes from `Architecture.crop_grids`, `[n]`."""
    text_tokens: Integers | int
    """Prompt tokens in addition to the visual ones."""
    max_new_tokens: Integers | int
    batch_size: Integers | int = 1
    """Identical pages per batch."""


def evaluate(model: CountedModel, setting: Setting, workloads: Workloads) -> PageTotals:
    """The exact tokens and costs of n workloads; grids matter only if the mode cuts pages.

    Raises:
        ConfigError: The model has a part without a closed form.
    """
    _keep_freed_memory()
    mode = setting.mode
    columns, rows = _columns_and_rows(model, setting, workloads)
    return model.architecture.forms.page_totals(
        model.dimensions_in(setting),
        base_size=mode.base_size,
        whole_resolution=mode.base_size if mode.crop_mode else mode.image_size,
        local_resolution=mode.image_size,
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
    """Columns and rows of local views; 1 and 1 if the mode does not cut pages."""
    if not setting.mode.crop_mode:
        return 1, 1
    return model.architecture.forms.crop_grids.columns_and_rows(workloads.grids)


@cache
def _keep_freed_memory() -> None:
    """Let glibc keep the memory of freed columns, up to twice the largest block ever unmapped.

    Without it, a third of a sweep's time is page faults of columns that were just given back.
    """
    np.empty(_LARGEST_BLOCK_BYTES, np.uint8)


def figures(name: str, work: Work) -> dict[str, Any]:
    """The figures of a pass, a page or a batch by column, the same as in a report's `total`."""
    matrix, vector = work.matrix_flops, work.vector_flops  # `flops` would multiply once more
    figures = matrix, vector, matrix + vector, work.bytes_read, work.bytes_written
    return {f"{name}_{figure}": count for figure, count in zip(_FIGURES, figures, strict=True)}


def cost_columns(
    model: CountedModel, setting: Setting, workloads: Workloads, *, are_batches: bool = False
) -> dict[str, Any]:
    """The columns of `PAGE_RESULTS`, or of `BATCH_RESULTS` for batches, `[n]`.

    They are integers, but floats for expectations and shares.

    Raises:
        WorkloadError: A count does not fit in 64 bits.
        ConfigError: The model has a part without a closed form.
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
    """Rows of a table by column, `[n]`: pages, how they run, their lengths and what they cost.

    Sizes are widths and heights in pixels, `[2, n]`. Pages that run alone have no column of their
    number, models without a sliding window none for that.

    Raises:
        WorkloadError: A count does not fit in 64 bits.
        ConfigError: The model has a part without a closed form.
    """
    n, lengths = len(workloads.grids), ("text_tokens", "max_new_tokens", "batch_size")
    return {
        **dict(zip(("page_width", "page_height"), sizes, strict=True)),
        **{
            name: pa.repeat(value, n)
            for name, value in model.keys_in(setting).items()
            if value is not None
        },
        **{
            name: np.broadcast_to(getattr(workloads, name), n)
            for name in lengths[: 2 + are_batches]
        },
        **cost_columns(model, setting, workloads, are_batches=are_batches),
    }


def _int64(name: str, counts: Any, n: int) -> Integers:
    """A single integer or an array of integers as an int64 array, `[n]`."""
    if isinstance(counts, int) or counts.dtype == object:
        largest = np.max(counts, initial=0)
        if largest > _LARGEST_INT64:
            raise WorkloadError(
                f"{name} of {largest} does not fit a 64-bit column; "
                "give fewer pages at a time, fewer tokens or smaller views"
            )
    return np.broadcast_to(np.asarray(counts, np.int64), n)


# --- predicted seconds ---------------------------------------------------------------------------

_SECONDS: Final = (
    "ttft_seconds",
    "tpot_seconds",
    "page_seconds",
    "pages_per_second",
    "tokens_per_second",
)
COST: Final = "cost_per_thousand_pages"


@dataclass(frozen=True)
class TimeRequested:
    """GPUs on which pages are timed, at least one, and how: assumptions, also in words."""

    profiles: Sequence[Device]
    job: Assumptions
    sentences: tuple[str, ...] = ()

    def sentences_of(self, architecture: Architecture) -> tuple[str, ...]:
        """The assumptions in words, with corrections from benchmarks on these GPUs."""
        return (
            *self.sentences,
            *(
                said
                for each in self.profiles
                for said in self.job.corrections.of(
                    each, self.job.host, architecture.name
                ).sentences()
            ),
        )

    def timers(
        self, model: CountedModel, settings: Sequence[Setting]
    ) -> Iterator[tuple[Setting, PageTimer]]:
        """A timer for pages in each setting, GPU by GPU.

        Raises:
            ConfigError: The model can't be served.
            DeviceError: No times are known for a data type.
        """
        from dsocr_analyze.timing.page_times import PageTimer, TimedModel

        for profile, setting in itertools.product(self.profiles, settings):
            timed = TimedModel(
                model.architecture, model.dimensions_in(setting), setting.dtype,
                setting.flash_attention, profile,
            )  # fmt: skip
            yield setting, PageTimer(timed, self.job)


def many_pages(
    architecture: Architecture,
    mode: Mode,
    workloads: Workloads,
    sizes: Integers,
    prepare: NDArray[np.float64] | float,
) -> ManyPages:
    """Pages of one mode as a timer takes them, with one page for each crop grid.

    Sizes are widths and heights of pages with these grids in pixels, `[2, n]`; each takes CPU
    seconds to prepare, `[n]` or the same for all. Batch sizes are the numbers of pages in
    flight at a time.
    """
    from dsocr_analyze.timing.page_times import ManyPages

    codes = workloads.grids * mode.crop_mode
    _, first, kind = np.unique(codes, return_index=True, return_inverse=True)
    kinds = [
        PageRequest(
            architecture=architecture, page=(width, height), base_size=mode.base_size,
            image_size=mode.image_size, crop_mode=mode.crop_mode, text_tokens=1,
        ).workload_of_page
        for width, height in sizes[:, first].T.tolist()
    ]  # fmt: skip
    text_tokens, max_new_tokens, concurrency, seconds = (
        np.broadcast_to(each, len(kind)) for each in (*workloads[1:], prepare)
    )
    return ManyPages(kinds, kind, text_tokens, max_new_tokens, seconds, concurrency)


def time_columns(
    timer: PageTimer, mode: Mode, workloads: Workloads, sizes: Integers
) -> dict[str, Any]:
    """The GPU, a page's predicted times, whether it fits and, with a price, its cost: Arrow data.

    Arguments are those of `many_pages`.

    Raises:
        DeviceError: The GPU lacks a data type.
        WorkloadError: A number of new tokens is invalid.
    """
    from dsocr_analyze.timing import cost_per_thousand_pages
    from dsocr_analyze.timing.assumptions import estimated_preprocessing_of_pages

    architecture, job = timer.model.architecture, timer.assumptions
    prepare: Any = job.preprocess_seconds
    if prepare is None:
        prepare = estimated_preprocessing_of_pages(architecture, mode, *sizes)
    times = timer.times(many_pages(architecture, mode, workloads, sizes, prepare))
    seconds = {name: getattr(times, name) for name in _SECONDS}
    columns: dict[str, Any] = {
        "gpu": pa.repeat(timer.model.device.gpu.name, len(workloads.grids)),
        **{name: pa.array(each, mask=np.isnan(each)) for name, each in seconds.items()},
        "fits": pa.array(times.fits, pa.bool_()),
    }
    if (price := job.price_per_hour) is not None:
        columns[COST] = pa.array(cost_per_thousand_pages(price, times.pages_per_second))
    return columns
