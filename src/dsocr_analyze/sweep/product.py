"""Every combination of the axes, as Arrow batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.costs.compose import model_params
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.sweep.evaluate import RESULTS, check_int64, evaluate
from dsocr_analyze.sweep.grids import crop_grid_codes
from dsocr_analyze.sweep.settings import Setting

if TYPE_CHECKING:
    import pyarrow as pa

    from dsocr_analyze.model.dimensions import ModelDimensions
    from dsocr_analyze.sweep.axes import NumberAxis, PageAxis
    from dsocr_analyze.workload import Mode

__all__ = ["INPUTS", "Sweep", "setting_columns"]

BATCH_ROWS: Final = 65_536

_MOST_ROWS: Final = 2**62
"""Rows that an int64 can number."""

INPUTS: Final = (
    "page_width",
    "page_height",
    "mode",
    "base_size",
    "image_size",
    "crop_mode",
    "dtype",
    "attention",
    "text_tokens",
    "max_new_tokens",
    "batch_size",
)
"""Columns that say what a row is the cost of."""


@dataclass(frozen=True)
class Sweep:
    """The product of all axes.

    Attributes:
        pages: Page sizes.
        modes: Modes.
        text_tokens: Tokens besides the visual ones.
        max_new_tokens: Tokens generated.
        batch_sizes: Equal pages at a time.
        dtypes: Types of weights and activations, by full name.
        attentions: Whether attention is FlashAttention.
    """

    pages: PageAxis
    modes: tuple[Mode, ...]
    text_tokens: NumberAxis
    max_new_tokens: NumberAxis
    batch_sizes: NumberAxis
    dtypes: tuple[str, ...] = ("bfloat16",)
    attentions: tuple[bool, ...] = (False,)

    @property
    def rows(self) -> int:
        """Workloads in all."""
        settings = len(self.dtypes) * len(self.attentions) * len(self.modes)
        return settings * self._rows_of_setting

    @property
    def _rows_of_setting(self) -> int:
        lengths = len(self.text_tokens) * len(self.max_new_tokens) * len(self.batch_sizes)
        return len(self.pages) * lengths

    def settings(self) -> Iterator[Setting]:
        """Every combination of type, attention and mode, the mode running fastest."""
        for dtype, flash, mode in itertools.product(self.dtypes, self.attentions, self.modes):
            yield Setting(mode, dtype, flash)

    def check(self, dimensions: ModelDimensions) -> None:
        """Refuses, before any work, what has to fail later.

        Args:
            dimensions: The model.

        Raises:
            WorkloadError: There are more rows than can be numbered, or the longest text in the
                largest batch does not fit 64-bit columns even on an uncut page.
            ConfigError: The model has a part without a closed form.
        """
        import numpy as np

        if self.rows > _MOST_ROWS:
            raise WorkloadError(
                f"the sweep has {self.rows} rows; give shorter ranges, for at most {_MOST_ROWS}"
            )
        uncut = np.array([11])
        modes = {max(self.modes, key=_image_size), max(self.modes, key=_base_size)}
        for setting in replace(self, modes=tuple(modes)).settings():
            largest = evaluate(
                dimensions,
                setting,
                uncut,
                self.text_tokens.largest,
                self.max_new_tokens.largest,
                self.batch_sizes.largest,
            )
            check_int64(largest)

    def batches(self, dimensions: ModelDimensions) -> Iterator[pa.RecordBatch]:
        """All rows in order: by setting, then pages, texts, new tokens, and batch sizes fastest.

        Args:
            dimensions: The model.

        Raises:
            WorkloadError: A count does not fit 64 bits.
            ConfigError: The model has a part without a closed form.
        """
        params = sum(model_params(dimensions).values())
        total = self._rows_of_setting
        for setting in self.settings():
            for start in range(0, total, BATCH_ROWS):
                stop = min(start + BATCH_ROWS, total)
                yield self._batch(dimensions, params, setting, start, stop)

    def _batch(
        self, dimensions: ModelDimensions, params: int, setting: Setting, start: int, stop: int
    ) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        n = stop - start
        rest = np.arange(start, stop)
        rest, batch_index = np.divmod(rest, len(self.batch_sizes))
        rest, new_index = np.divmod(rest, len(self.max_new_tokens))
        page_index, text_index = np.divmod(rest, len(self.text_tokens))
        # Pages run slowest: a batch has few of them, one after the other.
        first = int(page_index[0])
        distinct_widths, distinct_heights = self.pages.take(
            np.arange(first, int(page_index[-1]) + 1)
        )
        codes = crop_grid_codes(distinct_widths, distinct_heights)
        page_index -= first
        text = self.text_tokens.take(text_index)
        new = self.max_new_tokens.take(new_index)
        batch_size = self.batch_sizes.take(batch_index)
        results = check_int64(
            evaluate(dimensions, setting, codes[page_index], text, new, batch_size)
        )
        columns: dict[str, Any] = {
            "page_width": distinct_widths[page_index],
            "page_height": distinct_heights[page_index],
            **setting_columns(setting, n),
            "text_tokens": text,
            "max_new_tokens": new,
            "batch_size": batch_size,
            **{name: results[name] for name in RESULTS},
            "weights_bytes": pa.repeat(pa.scalar(params * setting.element_bytes, pa.int64()), n),
        }
        return pa.RecordBatch.from_pydict(columns)


def _image_size(mode: Mode) -> int:
    return mode.image_size


def _base_size(mode: Mode) -> int:
    return mode.base_size


def setting_columns(setting: Setting, n: int) -> dict[str, Any]:
    """The columns of `INPUTS` that a setting stands for, `[n]` each."""
    import pyarrow as pa

    mode = setting.mode
    return {
        "mode": pa.repeat(mode.name, n),
        "base_size": pa.repeat(pa.scalar(mode.base_size, pa.int64()), n),
        "image_size": pa.repeat(pa.scalar(mode.image_size, pa.int64()), n),
        "crop_mode": pa.repeat(mode.crop_mode, n),
        "dtype": pa.repeat(setting.dtype, n),
        "attention": pa.repeat(setting.attention, n),
    }
