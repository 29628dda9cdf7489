"""Predicted seconds as the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.timing.assumptions import estimated_preprocessing_of_pages
from dsocr_analyze.timing.many_pages import ManyPages, PageTimer
from dsocr_analyze.timing.predict import TimedModel
from dsocr_analyze.timing.prediction import cost_per_thousand_pages

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.columns.counted_model import CountedModel
    from dsocr_analyze.columns.evaluate import Workloads
    from dsocr_analyze.columns.setting import Setting
    from dsocr_analyze.hardware.profile import Profile
    from dsocr_analyze.timing.assumptions import JobAssumptions
    from dsocr_analyze.workload import Mode, Workload

    Integers = NDArray[np.int64]

__all__ = [
    "COST",
    "TIME_RESULTS",
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
TIME_RESULTS: Final = ("gpu", *_SECONDS, "fits")
"""What a page takes, by column; with a price, `COST` comes after them."""


@dataclass(frozen=True)
class TimeRequested:
    """GPUs on which pages are timed, and how.

    Attributes:
        profiles: Of the GPUs, one at least.
        job: The runtime, and all else that is taken for granted.
        sentences: That in words.
    """

    profiles: Sequence[Profile]
    job: JobAssumptions
    sentences: tuple[str, ...] = ()

    def sentences_of(self, architecture: Architecture) -> tuple[str, ...]:
        """The same, and what benchmarks of servers correct for a model on these GPUs."""
        found = (self.job.correction_of(architecture, each) for each in self.profiles)
        return (*self.sentences, *(said for each in found for said in each.sentences()))


def page_timer(
    model: CountedModel, setting: Setting, profile: Profile, job: JobAssumptions
) -> PageTimer:
    """What times pages in one setting on one GPU.

    Args:
        model: The model.
        setting: Mode, element type and attention.
        profile: The GPU's profile.
        job: The runtime, and all else that is taken for granted.

    Raises:
        ConfigError: The model is not served.
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
    """Seconds of CPU work before the model for each page, `[n]`.

    Args:
        architecture: Whose model it is.
        mode: The mode.
        job: Says how long it takes, or leaves it to be estimated.
        widths: Pixels, `[n]`.
        heights: Pixels, `[n]`.
    """
    import numpy as np

    given = job.preprocess_seconds
    if given is not None:
        return np.full(len(widths), given)
    seconds = estimated_preprocessing_of_pages(architecture, mode, widths, heights)
    return np.broadcast_to(np.asarray(seconds, np.float64), len(widths))


def pages_of_grids(
    architecture: Architecture,
    mode: Mode,
    grids: Integers,
    widths: Integers,
    heights: Integers,
) -> tuple[list[Workload], Integers]:
    """A page of each crop grid, and which of them each page is like, `[n]`.

    Args:
        architecture: Whose model it is.
        mode: The mode; one that does not cut pages makes them all alike.
        grids: Codes of crop grids, `[n]`.
        widths: Pixels of pages of these grids, `[n]`.
        heights: Likewise.
    """
    import numpy as np

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
    """The columns of `TIME_RESULTS` and, with a price, `COST` as Arrow data, `[n]`.

    Args:
        timer: Times them.
        kinds: A page of each crop grid.
        kind: Which of them each page is like, `[n]`.
        prepare: Seconds of CPU work before the model, `[n]`.
        workloads: Their lengths; the batch size is how many pages are under way at a time.

    Raises:
        DeviceError: The GPU lacks an element type.
        WorkloadError: A number of new tokens is not possible.
    """
    import numpy as np
    import pyarrow as pa

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
