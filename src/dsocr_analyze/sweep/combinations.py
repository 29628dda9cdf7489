"""Every combination of the axes, as Arrow batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.columns.evaluate import Workloads, evaluate
from dsocr_analyze.columns.results import batch_columns
from dsocr_analyze.columns.setting import Setting, setting_columns, settings_of
from dsocr_analyze.columns.time_columns import (
    TimeRequested,
    page_timer,
    pages_of_grids,
    preprocessing_of_pages,
    time_columns,
)
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    import pyarrow as pa

    from dsocr_analyze.columns.counted_model import CountedModel
    from dsocr_analyze.dtypes import Dtype
    from dsocr_analyze.hardware.profile import Profile
    from dsocr_analyze.sweep.axes import NumberAxis, PageAxis
    from dsocr_analyze.timing.many_pages import PageTimer
    from dsocr_analyze.workload import Mode

__all__ = ["Sweep"]

BATCH_ROWS: Final = 65_536

_MOST_ROWS: Final = 2**62
"""Rows that can be numbered with an int64."""


@dataclass(frozen=True)
class Sweep:
    """The product of all axes.

    Attributes:
        pages: Page sizes.
        modes: Modes.
        text_tokens: Prompt tokens in addition to the visual ones.
        max_new_tokens: Tokens generated.
        batch_sizes: Identical pages per batch.
        dtypes: Data types of weights and activations.
        attentions: Whether attention is FlashAttention.
        windows: Whether the model's sliding window is on.
        time: GPUs to predict times for; None for none.
    """

    pages: PageAxis
    modes: tuple[Mode, ...]
    text_tokens: NumberAxis
    max_new_tokens: NumberAxis
    batch_sizes: NumberAxis
    dtypes: tuple[Dtype, ...]
    attentions: tuple[bool, ...] = (False,)
    windows: tuple[bool, ...] = (True,)
    time: TimeRequested | None = None

    @property
    def rows(self) -> int:
        """Total number of workloads, times the number of GPUs if there are any."""
        return len(self._profiles) * len(self.settings()) * self._rows_of_setting

    @property
    def _profiles(self) -> Sequence[Profile | None]:
        return (None,) if self.time is None else self.time.profiles

    @property
    def _rows_of_setting(self) -> int:
        lengths = len(self.text_tokens) * len(self.max_new_tokens) * len(self.batch_sizes)
        return len(self.pages) * lengths

    def settings(self) -> list[Setting]:
        """Every combination of data type, attention, window and mode; the mode varies fastest."""
        return settings_of(self.dtypes, self.attentions, self.modes, self.windows)

    def check(self, model: CountedModel) -> None:
        """Fail before any work if the sweep would fail later.

        Args:
            model: The model.

        Raises:
            WorkloadError: There are more rows than can be numbered, or the longest text in the
                largest batch does not fit 64-bit columns even on an uncut page.
            ConfigError: The model has a part without a closed form, or one that can't be served.
            DeviceError: A GPU lacks a data type.
        """
        import numpy as np

        if self.rows > _MOST_ROWS:
            raise WorkloadError(
                f"the sweep has {self.rows} rows; give shorter ranges, for at most {_MOST_ROWS}"
            )
        smallest_page = np.array([1])
        batch_size = np.array([self.batch_sizes.largest])
        largest = Workloads(
            model.architecture.forms.crop_grids.codes(smallest_page, smallest_page),
            self.text_tokens.largest,
            self.max_new_tokens.largest,
            batch_size,
        )
        modes = {max(self.modes, key=_image_size), max(self.modes, key=_base_size)}
        for setting in replace(self, modes=tuple(modes)).settings():
            batch_columns(evaluate(model, setting, largest), batch_size)
            if self.time is not None:
                self._check_time(model, setting, self.time)

    def _check_time(self, model: CountedModel, setting: Setting, time: TimeRequested) -> None:
        """Time the smallest page on every GPU, which raises if something cannot be timed."""
        import numpy as np

        one = np.array([1])
        grids = model.architecture.forms.crop_grids.codes(one, one)
        smallest = Workloads(grids, 1, self.max_new_tokens.smallest)
        kinds, kind = pages_of_grids(model.architecture, setting.mode, grids, one, one)
        for profile in time.profiles:
            timer = page_timer(model, setting, profile, time.job)
            time_columns(timer, kinds, kind, np.zeros(1), smallest)

    def batches(self, model: CountedModel) -> Iterator[pa.RecordBatch]:
        """All rows by GPU, setting, page, text tokens, new tokens and batch size.

        The batch size varies fastest.

        Args:
            model: The model.

        Raises:
            WorkloadError: A count does not fit in 64 bits.
            ConfigError: The model has a part without a closed form, or one that can't be served.
            DeviceError: A GPU lacks a data type.
        """
        total = self._rows_of_setting
        for profile, setting in itertools.product(self._profiles, self.settings()):
            timer = None
            if self.time is not None and profile is not None:
                timer = page_timer(model, setting, profile, self.time.job)
            for start in range(0, total, BATCH_ROWS):
                yield self._batch(model, setting, timer, start, min(start + BATCH_ROWS, total))

    def _batch(
        self,
        model: CountedModel,
        setting: Setting,
        timer: PageTimer | None,
        start: int,
        stop: int,
    ) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        n = stop - start
        rest = np.arange(start, stop)
        rest, batch_index = np.divmod(rest, len(self.batch_sizes))
        rest, new_index = np.divmod(rest, len(self.max_new_tokens))
        page_index, text_index = np.divmod(rest, len(self.text_tokens))
        # Pages vary slowest: an Arrow batch has few distinct ones, and they are contiguous.
        first = int(page_index[0])
        widths, heights = self.pages.take(np.arange(first, int(page_index[-1]) + 1))
        architecture, mode = model.architecture, setting.mode
        grids = architecture.forms.crop_grids.codes(widths, heights)
        page_index -= first
        batch_size = self.batch_sizes.take(batch_index)
        workloads = Workloads(
            grids[page_index],
            self.text_tokens.take(text_index),
            self.max_new_tokens.take(new_index),
            batch_size,
        )
        weights_bytes = model.parameters * setting.dtype.nbytes
        columns: dict[str, Any] = {
            "page_width": widths[page_index],
            "page_height": heights[page_index],
            **setting_columns(setting, n, model.window_in(setting)),
            "text_tokens": workloads.text_tokens,
            "max_new_tokens": workloads.max_new_tokens,
            "batch_size": batch_size,
            **batch_columns(evaluate(model, setting, workloads), batch_size),
            "weights_bytes": pa.repeat(pa.scalar(weights_bytes, pa.int64()), n),
        }
        if timer is not None:
            kinds, kind = pages_of_grids(architecture, mode, grids, widths, heights)
            prepare = preprocessing_of_pages(architecture, mode, timer.job, widths, heights)
            columns |= time_columns(
                timer, kinds, kind[page_index], prepare[page_index], workloads
            )  # fmt: skip
        return pa.RecordBatch.from_pydict(columns)


def _image_size(mode: Mode) -> int:
    return mode.image_size


def _base_size(mode: Mode) -> int:
    return mode.base_size
