"""What many workloads cost and how long they take, as table columns.

Costs come from the closed forms of their architecture. Modules that predict seconds are imported
only by what needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.stages import PageTotals
from dsocr_analyze.columns.setting import CountedModel, Setting
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.kernels import Work
from dsocr_analyze.tape import Size
from dsocr_analyze.workload import Mode

if TYPE_CHECKING:
    from dsocr_analyze.hardware.profile import Profile
    from dsocr_analyze.timing.assumptions import JobAssumptions
    from dsocr_analyze.timing.many_pages import ManyPages, PageTimer

__all__ = [
    "BATCH_RESULTS",
    "COST",
    "PAGE_RESULTS",
    "Costs",
    "TimeRequested",
    "Workloads",
    "batch_columns",
    "count_columns",
    "evaluate",
    "figures",
    "many_pages",
    "page_timer",
    "preprocessing_of_pages",
    "setting_columns",
    "time_columns",
]

Integers = NDArray[np.int64]

_LARGEST_BLOCK_BYTES: Final = 31 << 20
"""Just below glibc's largest threshold, 32 MiB."""

_LARGEST_INT64: Final = 2**63 - 1

_FIGURES: Final = ("matrix_flops", "vector_flops", "flops", "bytes_read", "bytes_written")


def _figure_names(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}_{figure}" for name in names for figure in _FIGURES)


_TOKENS: Final = ("grid_columns", "grid_rows", "visual_tokens", "seq_len")
_MEMORY: Final = ("kv_cache_bytes", "peak_activation_bytes")
_PASSES: Final = _figure_names("prefill_pass", "decode_step")

PAGE_RESULTS: Final = (*_TOKENS, *_PASSES, *_figure_names("page"), *_MEMORY)
"""Columns for the costs of a page that runs alone."""

_EXPECTED: Final = "decode_step_bytes_read_expected"

BATCH_RESULTS: Final = (
    *_TOKENS, *_PASSES, _EXPECTED, *_figure_names("batch", "page"), *_MEMORY
)  # fmt: skip
"""Columns for the costs of a batch of identical pages; `page_` columns are one page's share.

`bytes_read_expected` is bytes read if each step touches the number of routed experts expected from
independent choices, instead of the maximum. `peak_activation_bytes` is the most that is alive at
once in the prefill pass, excluding weights and inputs.
"""


class Workloads(NamedTuple):
    """n workloads by column; a single integer applies to all of them."""

    grids: Integers
    """Crop grid codes from `Architecture.crop_grids`, `[n]`."""
    text_tokens: Integers | int
    """Prompt tokens in addition to the visual ones."""
    max_new_tokens: Integers | int
    batch_size: Integers | int = 1
    """Identical pages per batch."""


class Costs(NamedTuple):
    """What n workloads cost.

    Attributes:
        n: Number of workloads.
        grid_columns: Columns of local views; 1 if the page is not cut.
        grid_rows: Rows of local views; 1 if the page is not cut.
        totals: Tokens and work.
    """

    n: int
    grid_columns: Size
    grid_rows: Size
    totals: PageTotals


def evaluate(model: CountedModel, setting: Setting, workloads: Workloads) -> Costs:
    """The exact costs of n workloads.

    Args:
        model: The model.
        setting: Mode, data type, attention and window of all of them.
        workloads: The workloads; their grids matter only if the mode cuts pages.

    Raises:
        ConfigError: The model has a part without a closed form.
    """
    _keep_freed_memory()
    mode = setting.mode
    columns: Any = 1
    rows: Any = 1
    if mode.crop_mode:
        columns, rows = model.architecture.forms.crop_grids.columns_and_rows(workloads.grids)
    totals = model.architecture.forms.page_totals(
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
    return Costs(len(workloads.grids), columns, rows, totals)


@cache
def _keep_freed_memory() -> None:
    """Let the C library keep the memory of freed columns for the next ones.

    glibc takes small blocks from its heap, and gives up to twice the largest block that it ever
    unmapped back to the system only when more is free. Until one such block is freed, a third of
    a sweep's time is page faults of columns that were just given back.
    """
    np.empty(_LARGEST_BLOCK_BYTES, np.uint8)


def setting_columns(model: CountedModel, setting: Setting, n: int) -> dict[str, Any]:
    """The setting as Arrow columns by name, `[n]` each; the window only if the model has one."""
    keys = model.keys_in(setting)
    return {name: pa.repeat(value, n) for name, value in keys.items() if value is not None}


def figures(name: str, work: Work) -> dict[str, Any]:
    """The figures of some work by column, the same as in a report's `total`.

    Args:
        name: Prefix of the columns: a pass, a page, a batch.
        work: Integers, or arrays of them.
    """
    return {f"{name}_{figure}": getattr(work, figure) for figure in _FIGURES}


def count_columns(costs: Costs, whole: str = "page") -> dict[str, Integers]:
    """The columns of `PAGE_RESULTS`, `[n]`.

    Args:
        costs: Costs of pages that run alone, or of batches.
        whole: Column prefix for a workload's prefill pass and decode steps together.

    Raises:
        WorkloadError: A count does not fit in 64 bits.
    """
    totals = costs.totals
    counts: dict[str, Any] = {
        "grid_columns": costs.grid_columns,
        "grid_rows": costs.grid_rows,
        "visual_tokens": totals.visual_tokens,
        "seq_len": totals.seq_len,
        **figures("prefill_pass", totals.prefill),
        **figures("decode_step", totals.decode_step),
        **figures(whole, totals.batch),
        "kv_cache_bytes": totals.kv_cache_bytes,
        "peak_activation_bytes": totals.peak_activation_bytes,
    }
    return {name: _int64(name, count, costs.n) for name, count in counts.items()}


def batch_columns(costs: Costs, batch_size: Integers) -> dict[str, Integers | NDArray[np.float64]]:
    """The columns of `BATCH_RESULTS`, `[n]`: integers, but floats for expectations and shares.

    Args:
        costs: Costs of batches.
        batch_size: Pages in each batch, `[n]`.

    Raises:
        WorkloadError: A count does not fit in 64 bits.
    """
    counts = count_columns(costs, "batch")
    shares = {f"page_{figure}": counts[f"batch_{figure}"] / batch_size for figure in _FIGURES}
    expected = np.asarray(costs.totals.decode_step_bytes_read_expected, np.float64)
    columns: dict[str, Any] = {**counts, **shares, _EXPECTED: np.broadcast_to(expected, costs.n)}
    return {name: columns[name] for name in BATCH_RESULTS}


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
    """GPUs on which pages are timed, and how.

    Attributes:
        profiles: The GPUs' profiles, at least one.
        job: The runtime and all other assumptions.
        sentences: The assumptions in words.
    """

    profiles: Sequence[Profile]
    job: JobAssumptions
    sentences: tuple[str, ...] = ()

    def sentences_of(self, architecture: Architecture) -> tuple[str, ...]:
        """The assumptions in words, with corrections from benchmarks on these GPUs."""
        found = (self.job.correction_of(architecture, each) for each in self.profiles)
        return (*self.sentences, *(said for each in found for said in each.sentences()))


def page_timer(
    model: CountedModel, setting: Setting, profile: Profile, job: JobAssumptions
) -> PageTimer:
    """A timer for pages in one setting on one GPU.

    Args:
        model: The model.
        setting: Mode, data type and attention.
        profile: The GPU's profile.
        job: The runtime and all other assumptions.

    Raises:
        ConfigError: The model can't be served.
    """
    from dsocr_analyze.hardware.timed_device import Device
    from dsocr_analyze.timing.many_pages import PageTimer
    from dsocr_analyze.timing.predict import TimedModel

    timed = TimedModel(
        model.architecture, model.dimensions_in(setting), setting.dtype,
        setting.flash_attention, Device(profile),
    )  # fmt: skip
    return PageTimer(timed, job)


def preprocessing_of_pages(
    architecture: Architecture,
    mode: Mode,
    job: JobAssumptions,
    widths: Integers,
    heights: Integers,
) -> NDArray[np.float64]:
    """CPU seconds to prepare each page for the model, `[n]`.

    Args:
        architecture: The model's architecture.
        mode: The mode.
        job: Gives the seconds, or leaves them to be estimated.
        widths: Pixels, `[n]`.
        heights: Pixels, `[n]`.
    """
    from dsocr_analyze.timing.assumptions import estimated_preprocessing_of_pages

    seconds: Any = job.preprocess_seconds
    if seconds is None:
        seconds = estimated_preprocessing_of_pages(architecture, mode, widths, heights)
    return np.broadcast_to(np.asarray(seconds, np.float64), len(widths))


def many_pages(
    architecture: Architecture,
    mode: Mode,
    widths: Integers,
    heights: Integers,
    workloads: Workloads,
    prepare: NDArray[np.float64],
) -> ManyPages:
    """Pages of one mode as a timer takes them, with one page for each crop grid.

    Args:
        architecture: The model's architecture.
        mode: The mode; if it does not cut pages, their grids are all alike.
        widths: Pixels of pages with the workloads' grids, `[n]`.
        heights: Pixels of pages with these grids, `[n]`.
        workloads: Grids and lengths; the batch size is the number of pages in flight at a time.
        prepare: CPU seconds to prepare each page, `[n]`.
    """
    from dsocr_analyze.timing.many_pages import ManyPages

    codes = workloads.grids if mode.crop_mode else np.zeros_like(workloads.grids)
    _, first, kind = np.unique(codes, return_index=True, return_inverse=True)
    kinds = [
        architecture.plan(
            page=(int(widths[index]), int(heights[index])), base_size=mode.base_size,
            image_size=mode.image_size, crop_mode=mode.crop_mode, text_tokens=1,
        )
        for index in first
    ]  # fmt: skip
    lengths = (np.broadcast_to(each, len(codes)) for each in workloads[1:])
    text_tokens, max_new_tokens, concurrency = lengths
    return ManyPages(kinds, kind, text_tokens, max_new_tokens, prepare, concurrency)


def time_columns(
    timer: PageTimer, mode: Mode, widths: Integers, heights: Integers, workloads: Workloads
) -> dict[str, Any]:
    """The GPU, a page's predicted times, whether it fits and, with a price, its cost.

    Each column is Arrow data, `[n]`.

    Args:
        timer: The timer.
        mode: The mode of all pages.
        widths: Pixels, `[n]`.
        heights: Pixels, `[n]`.
        workloads: The same pages; the batch size is the number of pages in flight at a time.

    Raises:
        DeviceError: The GPU lacks a data type.
        WorkloadError: A number of new tokens is invalid.
    """
    from dsocr_analyze.timing.prediction import cost_per_thousand_pages

    architecture, price = timer.model.architecture, timer.job.price_per_hour
    prepare = preprocessing_of_pages(architecture, mode, timer.job, widths, heights)
    times = timer.times(many_pages(architecture, mode, widths, heights, workloads, prepare))
    columns: dict[str, Any] = {"gpu": pa.repeat(timer.model.device.name, len(widths))}
    for name in _SECONDS:
        seconds = getattr(times, name)
        columns[name] = pa.array(seconds, pa.float64(), mask=np.isnan(seconds))
    columns["fits"] = pa.array(times.fits, pa.bool_())
    if price is not None:
        columns[COST] = pa.array(cost_per_thousand_pages(price, times.pages_per_second))
    return columns
