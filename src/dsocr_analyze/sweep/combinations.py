"""A sweep: its axes from Python values or text, and every combination of them as Arrow batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from dsocr_analyze.columns.evaluate import Workloads, batch_columns, evaluate, setting_columns
from dsocr_analyze.columns.setting import Setting, settings_of
from dsocr_analyze.columns.time_columns import (
    TimeRequested,
    page_timer,
    pages_of_grids,
    preprocessing_of_pages,
    time_columns,
)
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.report.frame import require_pandas
from dsocr_analyze.sweep.axes import (
    NumberAxis,
    PageAxis,
    parse_modes,
    parse_names,
    parse_numbers,
    parse_pages,
)
from dsocr_analyze.workload.workload import LARGEST_COUNT

if TYPE_CHECKING:
    import pandas as pd

    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.columns.metadata import CountOpening
    from dsocr_analyze.columns.setting import CountedModel
    from dsocr_analyze.dtypes import Dtype
    from dsocr_analyze.hardware.profile import Profile
    from dsocr_analyze.timing.many_pages import PageTimer
    from dsocr_analyze.workload import Mode

__all__ = [
    "Names",
    "Numbers",
    "Pages",
    "Sweep",
    "SweepRows",
    "Switches",
    "rows_of",
    "sweep_over",
]

BATCH_ROWS: Final = 65_536

_MOST_ROWS: Final = 2**62
"""Rows that can be numbered with an int64."""

_MOST_HELD: Final = 10_000_000
"""Rows that are held at once for Python."""

_SMALLEST_PAGE: Final = PageAxis(((range(1, 2), range(1, 2)),))

Pages: TypeAlias = str | tuple[int, int] | Sequence[str | tuple[int, int]]
"""Text like `"a4@100:300:50"`, a (width, height) in pixels, or several of either."""

Numbers: TypeAlias = int | str | Sequence[int]
"""One or several numbers, or text like `"10,100:1000:100"`."""

Names: TypeAlias = str | Sequence[str]
"""One or several names, or comma-separated text."""

Switches: TypeAlias = bool | Sequence[bool]
"""One or both values."""


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
        if self.rows > _MOST_ROWS:
            raise WorkloadError(
                f"the sweep has {self.rows} rows; give shorter ranges, for at most {_MOST_ROWS}"
            )
        modes = {max(self.modes, key=attrgetter(side)) for side in ("image_size", "base_size")}
        on_pages = replace(self, pages=_SMALLEST_PAGE, modes=tuple(modes))
        largest = replace(
            on_pages, text_tokens=_one(self.text_tokens.largest),
            max_new_tokens=_one(self.max_new_tokens.largest),
            batch_sizes=_one(self.batch_sizes.largest), time=None,
        )  # fmt: skip
        smallest = replace(
            on_pages, text_tokens=_one(1), max_new_tokens=_one(self.max_new_tokens.smallest),
            batch_sizes=_one(1),
        )  # fmt: skip
        for sweep in (largest,) if self.time is None else (largest, smallest):
            for setting, timer in sweep._ways(model):
                sweep._batch(model, setting, timer, 0, 1)

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
        for setting, timer in self._ways(model):
            for start in range(0, total, BATCH_ROWS):
                yield self._batch(model, setting, timer, start, min(start + BATCH_ROWS, total))

    def _ways(self, model: CountedModel) -> Iterator[tuple[Setting, PageTimer | None]]:
        """Every setting with a timer for each GPU."""
        for profile, setting in itertools.product(self._profiles, self.settings()):
            timer = None
            if self.time is not None and profile is not None:
                timer = page_timer(model, setting, profile, self.time.job)
            yield setting, timer

    def _batch(
        self,
        model: CountedModel,
        setting: Setting,
        timer: PageTimer | None,
        start: int,
        stop: int,
    ) -> pa.RecordBatch:
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


def _one(value: int) -> NumberAxis:
    return NumberAxis((range(value, value + 1),))


def sweep_over(
    architecture: Architecture,
    *,
    page: Pages,
    mode: Names | None,
    text_tokens: Numbers | None,
    max_new_tokens: Numbers,
    batch_size: Numbers,
    dtype: Names,
    flash_attention: Switches,
    sliding_window: Switches | None,
) -> Sweep:
    """The sweep over these axes; for None the architecture's default is used.

    Raises:
        WorkloadError: A value is invalid.
        PageError: A page's size is invalid.
        DeviceError: A type is unknown.
    """
    if sliding_window is not None and not architecture.has_window:
        raise WorkloadError(
            f"sliding_window={sliding_window!r} is not supported: {architecture.name} has no"
            " sliding window; leave it out",
            arguments=["sliding_window"],
        )

    def numbers(argument: str, asked: Numbers) -> str:
        several = asked if isinstance(asked, list | tuple | range) else [asked]
        for value in several:
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise WorkloadError(
                    f"{argument}={asked!r} is not a whole number; give one, several, or text like"
                    " '10,100:1000:100'",
                    arguments=[argument],
                )
        return ",".join(map(str, several))

    lengths = {
        "text_tokens": architecture.text_tokens if text_tokens is None else text_tokens,
        "max_new_tokens": max_new_tokens,
        "batch_size": batch_size,
    }
    axes = {
        name: parse_numbers(name, numbers(name, asked), 1, LARGEST_COUNT)
        for name, asked in lengths.items()
    }
    dtypes = dict.fromkeys(map(dtype_named, parse_names("dtype", _names(dtype))))
    return Sweep(
        pages=parse_pages("page", ",".join(_pages(page))),
        modes=parse_modes("mode", _names(mode or architecture.default_mode), architecture),
        text_tokens=axes["text_tokens"],
        max_new_tokens=axes["max_new_tokens"],
        batch_sizes=axes["batch_size"],
        dtypes=tuple(dtypes),
        attentions=_switches("flash_attention", flash_attention),
        windows=_switches("sliding_window", True if sliding_window is None else sliding_window),
    )


def _pages(page: Pages) -> list[str]:
    """Each page as text."""
    if isinstance(page, str):
        return [page]
    several: Any = [page] if _is_size(page) or not isinstance(page, Sequence) else page
    found = []
    for each in several:
        if not isinstance(each, str) and not _is_size(each):
            raise WorkloadError(
                f"page={page!r} is invalid; give pages like 'a4', 'a4@100:300:50' or (1240, 1754)",
                arguments=["page"],
            )
        found.append(each if isinstance(each, str) else "{}x{}".format(*each))
    return found


def _is_size(page: Any) -> bool:
    """Whether this is a (width, height)."""
    is_pair = isinstance(page, tuple | list) and len(page) == 2
    return is_pair and all(type(each) is int for each in page)


def _names(names: Names) -> str:
    return names if isinstance(names, str) else ",".join(names)


def _switches(argument: str, values: Switches) -> tuple[bool, ...]:
    several = (values,) if isinstance(values, bool) else tuple(dict.fromkeys(values))
    if not several or not all(isinstance(value, bool) for value in several):
        raise WorkloadError(
            f"{argument}={values!r} is invalid; give True, False or both", arguments=[argument]
        )
    return several


@dataclass(frozen=True)
class SweepRows:
    """The rows of a sweep.

    Attributes:
        opening: The model, and how it was counted.
        table: One row per combination, as written by `dsocr-analyze sweep`.
    """

    opening: CountOpening
    table: pa.Table

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas table. Needs the extra `pandas`.

        Raises:
            FormatError: pandas is not installed.
        """
        require_pandas()
        return self.table.to_pandas()


def rows_of(sweep: Sweep, model: CountedModel, opening: CountOpening) -> SweepRows:
    """All rows of a sweep.

    Args:
        sweep: The axes.
        model: The model.
        opening: The same model, and how it is counted.

    Raises:
        WorkloadError: There are too many rows to hold at once, or a count does not fit in 64 bits.
        ConfigError: The model has a part without a closed form.
    """
    sweep.check(model)
    if sweep.rows > _MOST_HELD:
        raise WorkloadError(
            f"the sweep has {sweep.rows:,} rows; give shorter ranges, for at most {_MOST_HELD:,},"
            " or let `dsocr-analyze sweep` write them to a file"
        )
    return SweepRows(opening, pa.Table.from_batches(list(sweep.batches(model))))
