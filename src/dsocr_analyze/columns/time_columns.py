"""Predicted seconds as table columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.timing.assumptions import estimated_preprocessing_of_pages
from dsocr_analyze.timing.many_pages import ManyPages, PageTimer
from dsocr_analyze.timing.predict import TimedModel
from dsocr_analyze.timing.prediction import cost_per_thousand_pages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.columns.evaluate import Workloads
    from dsocr_analyze.columns.setting import CountedModel, Setting
    from dsocr_analyze.hardware.profile import Profile
    from dsocr_analyze.timing.assumptions import JobAssumptions
    from dsocr_analyze.workload import Mode, Workload

    Integers = NDArray[np.int64]

__all__ = [
    "COST",
    "TimeRequested",
    "page_timer",
    "pages_of_grids",
    "preprocessing_of_pages",
    "time_columns",
]

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
    seconds = job.preprocess_seconds
    if seconds is None:
        seconds = estimated_preprocessing_of_pages(architecture, mode, widths, heights)
    return np.broadcast_to(np.asarray(seconds, np.float64), len(widths))


def pages_of_grids(
    architecture: Architecture,
    mode: Mode,
    grids: Integers,
    widths: Integers,
    heights: Integers,
) -> tuple[list[Workload], Integers]:
    """One page per crop grid, and the index of each page's equivalent among them, `[n]`.

    Args:
        architecture: The model's architecture.
        mode: The mode; if it does not cut pages, they are all alike.
        grids: Crop grid codes, `[n]`.
        widths: Pixels of pages with these grids, `[n]`.
        heights: Pixels of pages with these grids, `[n]`.
    """
    codes = grids if mode.crop_mode else np.zeros_like(grids)
    _, first, kind = np.unique(codes, return_index=True, return_inverse=True)
    kinds = [
        architecture.plan(
            page=(int(widths[index]), int(heights[index])), base_size=mode.base_size,
            image_size=mode.image_size, crop_mode=mode.crop_mode, text_tokens=1,
        )
        for index in first
    ]  # fmt: skip
    return kinds, kind


def time_columns(
    timer: PageTimer, kinds: Sequence[Workload], kind: Integers, prepare: Any, workloads: Workloads
) -> dict[str, Any]:
    """The GPU, a page's predicted times, whether it fits and, with a price, its cost.

    Each column is Arrow data, `[n]`.

    Args:
        timer: The timer.
        kinds: One page per crop grid.
        kind: Index of each page's equivalent in `kinds`, `[n]`.
        prepare: CPU seconds to prepare each page, `[n]`.
        workloads: Their lengths; the batch size is the number of pages in flight at a time.

    Raises:
        DeviceError: The GPU lacks a data type.
        WorkloadError: A number of new tokens is invalid.
    """
    n = len(kind)
    lengths = (workloads.text_tokens, workloads.max_new_tokens)
    text_tokens, max_new_tokens = (np.broadcast_to(each, n) for each in lengths)
    concurrency = np.broadcast_to(workloads.batch_size, n)
    pages = ManyPages(kinds, kind, text_tokens, max_new_tokens, prepare, concurrency)
    times = timer.times(pages)
    columns: dict[str, Any] = {"gpu": pa.repeat(timer.model.device.name, n)}
    for name in _SECONDS:
        seconds = getattr(times, name)
        columns[name] = pa.array(seconds, pa.float64(), mask=np.isnan(seconds))
    columns["fits"] = pa.array(times.fits, pa.bool_())
    price = timer.job.price_per_hour
    if price is not None:
        columns[COST] = pa.array(cost_per_thousand_pages(price, times.pages_per_second))
    return columns
