"""A sweep: every combination of its axes, as Arrow batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.archive import axes, evaluate
from dsocr_analyze.archive.setting import CountedModel, CountOpening, Setting, settings_of
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.extras import require_extra
from dsocr_analyze.kernels import dtype_named
from dsocr_analyze.workload import BOUNDS, Mode

if TYPE_CHECKING:
    import pandas as pd

    from dsocr_analyze.archive.seconds import TimeRequested

BATCH_ROWS: Final = 65_536

_MOST_ROWS: Final = 2**62
"""So that an int64 can number them."""

_MOST_HELD: Final = 10_000_000

Pages: TypeAlias = str | tuple[int, int] | Sequence[str | tuple[int, int]]
"""Text like `"a4@100:300:50"`, a (width, height) in pixels, or several of either."""

Numbers: TypeAlias = int | str | Sequence[int]
"""One or several numbers, or text like `"10,100:1000:100"`."""

Names: TypeAlias = str | Sequence[str]
"""One or several names, or comma-separated text."""

Switches: TypeAlias = bool | Sequence[bool]


@dataclass(frozen=True)
class Sweep:
    """The product of all axes; lengths are those of `Workloads`, by column and in its order."""

    pages: evaluate.Integers
    """Widths and heights in pixels, `[2, n]`."""
    settings: Sequence[Setting]
    lengths: Mapping[str, evaluate.Integers]
    time: TimeRequested | None = None

    @property
    def rows(self) -> int:
        """Workloads, times the number of GPUs if there are any."""
        gpus = 1 if self.time is None else len(self.time.profiles)
        return gpus * len(self.settings) * math.prod(self._shape)

    @property
    def modes(self) -> list[Mode]:
        """The distinct modes."""
        return list(dict.fromkeys(each.mode for each in self.settings))

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(map(len, (self.pages[0], *self.lengths.values())))

    def check(self, model: CountedModel) -> None:
        """Raises early what `batches` would, or WorkloadError for too many rows.

        Raises PageError for a page that the model's processor refuses.
        """
        if self.rows > _MOST_ROWS:
            raise WorkloadError(
                f"the sweep has {self.rows} rows; give shorter ranges, for at most {_MOST_ROWS}"
            )
        rule = model.architecture.forms.model.page_rule
        for page in np.flatnonzero(rule.codes(*self.pages) == 0)[:1]:
            rule.grid(*self.pages[:, page].tolist())  # raises
        modes = [max(self.modes, key=attrgetter(side)) for side in ("image_size", "base_size")]
        settings = [each for each in self.settings if each.mode in modes]
        for end, time in ((np.max, None), (np.min, self.time)):
            ends = {name: np.array([end(axis)]) for name, axis in self.lengths.items()}
            # One row of each way to count; none is kept.
            list(Sweep(np.ones((2, 1), np.int64), settings, ends, time).batches(model))

    def batches(self, model: CountedModel) -> Iterator[pa.RecordBatch]:
        """All rows, by GPU, setting, page, text tokens, new tokens and batch size.

        Raises:
            WorkloadError: A count does not fit in 64 bits.
            ConfigError: The model has a part without a closed form, or one that can't be served.
            DeviceError: A GPU lacks a data type.
        """
        total = math.prod(self._shape)
        parameters = model.architecture.forms.parameter_count(model.dimensions)
        # Without a time, rows have no seconds.
        ways: Iterable[Any] = zip(self.settings, itertools.repeat(None)) if self.time is None else (
            self.time.timers(model, self.settings)
        )  # fmt: skip
        for setting, timer in ways:
            for start in range(0, total, BATCH_ROWS):
                indices = np.arange(start, min(start + BATCH_ROWS, total))
                workloads, sizes = self._workloads(model, indices)
                columns = evaluate.row_columns(model, setting, workloads, sizes, are_batches=True)
                columns["weights_bytes"] = pa.repeat(
                    pa.scalar(parameters * setting.dtype.nbytes, pa.int64()), len(indices)
                )
                if self.time is not None:
                    columns |= self.time.columns(timer, setting.mode, workloads, sizes)
                yield pa.RecordBatch.from_pydict(columns)

    def _workloads(
        self, model: CountedModel, indices: Any
    ) -> tuple[evaluate.Workloads, evaluate.Integers]:
        """Some combinations within a setting, and the sizes of their pages."""
        page, *places = np.unravel_index(indices, self._shape)
        # Pages vary slowest: an Arrow batch has few distinct ones, and they are contiguous.
        sizes, page = self.pages[:, page[0] : page[-1] + 1], page - page[0]
        numbers = [axis[place] for axis, place in zip(self.lengths.values(), places, strict=True)]
        grids = model.architecture.forms.model.page_rule.codes(*sizes)[page]
        return evaluate.Workloads(grids, *numbers), sizes[:, page]


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
    time: TimeRequested | None = None,
) -> Sweep:
    """The sweep over these axes; None is the architecture's default.

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
    given = {
        "text_tokens": architecture.text_tokens if text_tokens is None else text_tokens,
        "max_new_tokens": max_new_tokens,
        "batch_size": batch_size,
    }
    lengths = {
        name: axes.parse_numbers(name, _numbers(name, asked), *BOUNDS[name][:2])
        for name, asked in given.items()
    }
    dtypes = dict.fromkeys(map(dtype_named, axes.parse_names("dtype", _names(dtype))))
    pages = axes.parse_pages("page", ",".join(_pages(page)))
    modes = axes.parse_modes("mode", _names(mode or architecture.default_mode), architecture)
    attentions = _switches("flash_attention", flash_attention)
    windows = _switches("sliding_window", True if sliding_window is None else sliding_window)
    return Sweep(pages, settings_of(dtypes, attentions, modes, windows), lengths, time)


def _numbers(argument: str, asked: Numbers) -> str:
    several = asked if isinstance(asked, list | tuple | range) else [asked]
    if any(isinstance(value, bool) or not isinstance(value, str | int) for value in several):
        raise WorkloadError(
            f"{argument}={asked!r} is not a whole number; give one, several, or text like"
            " '10,100:1000:100'",
            arguments=[argument],
        )
    return ",".join(map(str, several))


def _pages(page: Pages) -> Iterator[str]:
    is_one = isinstance(page, str) or _is_size(page) or not isinstance(page, Sequence)
    several: Any = [page] if is_one else page
    for each in several:
        if not isinstance(each, str) and not _is_size(each):
            raise WorkloadError(
                f"page={page!r} is invalid; give pages like 'a4', 'a4@100:300:50' or (1240, 1754)",
                arguments=["page"],
            )
        yield each if isinstance(each, str) else "{}x{}".format(*each)


def _is_size(page: Any) -> bool:
    return isinstance(page, tuple | list) and [*map(type, page)] == [int, int]


def _names(names: Names) -> str:
    return names if isinstance(names, str) else ",".join(names)


def _switches(argument: str, values: Switches) -> tuple[bool, ...]:
    several = tuple(values) if isinstance(values, Iterable) else (values,)
    if not several or not all(isinstance(value, bool) for value in several):
        raise WorkloadError(
            f"{argument}={values!r} is invalid; give True, False or both", arguments=[argument]
        )
    return tuple(dict.fromkeys(several))


@dataclass(frozen=True)
class SweepRows:
    """A sweep's rows, as `dsocr-analyze sweep` writes them, and how they were counted."""

    opening: CountOpening
    table: pa.Table

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas table. Needs the extra `pandas`.

        Raises:
            ExtraError: pandas is not installed.
        """
        require_extra("a table", "pandas", "pandas")
        return self.table.to_pandas()


def rows_of(sweep: Sweep, model: CountedModel, opening: CountOpening) -> SweepRows:
    """All rows; raises what `Sweep.check` does, or WorkloadError if they can't be held."""
    sweep.check(model)
    if sweep.rows > _MOST_HELD:
        raise WorkloadError(
            f"the sweep has {sweep.rows:,} rows; give shorter ranges, for at most {_MOST_HELD:,},"
            " or let `dsocr-analyze sweep` write them to a file"
        )
    return SweepRows(opening, pa.Table.from_batches(list(sweep.batches(model))))
