"""Every combination of the axes, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.columns.evaluate import Workloads, evaluate
from dsocr_analyze.columns.results import batch_columns
from dsocr_analyze.columns.setting import Setting, setting_columns, settings_of
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    import pyarrow as pa

    from dsocr_analyze.columns.counted_model import CountedModel
    from dsocr_analyze.dtypes import Dtype
    from dsocr_analyze.sweep.axes import NumberAxis, PageAxis
    from dsocr_analyze.workload import Mode

__all__ = ["Sweep"]

BATCH_ROWS: Final = 65_536

_MOST_ROWS: Final = 2**62
"""Rows that an int64 can number."""


@dataclass(frozen=True)
class Sweep:
    """The product of all axes.

    Attributes:
        pages: Page sizes.
        modes: Modes.
        text_tokens: Tokens besides the visual ones.
        max_new_tokens: Tokens generated.
        batch_sizes: Equal pages at a time.
        dtypes: Types of weights and activations.
        attentions: Whether attention is FlashAttention.
    """

    pages: PageAxis
    modes: tuple[Mode, ...]
    text_tokens: NumberAxis
    max_new_tokens: NumberAxis
    batch_sizes: NumberAxis
    dtypes: tuple[Dtype, ...]
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

    def settings(self) -> list[Setting]:
        """Every combination of type, attention and mode, the mode running fastest."""
        return settings_of(self.dtypes, self.attentions, self.modes)

    def check(self, model: CountedModel) -> None:
        """Refuses, before any work, what has to fail later.

        Args:
            model: The model.

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
        smallest_page = np.array([1])
        batch_size = np.array([self.batch_sizes.largest])
        largest = Workloads(
            model.architecture.crop_grids.codes(smallest_page, smallest_page),
            self.text_tokens.largest,
            self.max_new_tokens.largest,
            batch_size,
        )
        modes = {max(self.modes, key=_image_size), max(self.modes, key=_base_size)}
        for setting in replace(self, modes=tuple(modes)).settings():
            batch_columns(evaluate(model, setting, largest), batch_size)

    def batches(self, model: CountedModel) -> Iterator[pa.RecordBatch]:
        """All rows in order: by setting, then pages, texts, new tokens, and batch sizes fastest.

        Args:
            model: The model.

        Raises:
            WorkloadError: A count does not fit 64 bits.
            ConfigError: The model has a part without a closed form.
        """
        total = self._rows_of_setting
        for setting in self.settings():
            for start in range(0, total, BATCH_ROWS):
                yield self._batch(model, setting, start, min(start + BATCH_ROWS, total))

    def _batch(
        self, model: CountedModel, setting: Setting, start: int, stop: int
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
        widths, heights = self.pages.take(np.arange(first, int(page_index[-1]) + 1))
        grids = model.architecture.crop_grids.codes(widths, heights)
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
            **setting_columns(setting, n),
            "text_tokens": workloads.text_tokens,
            "max_new_tokens": workloads.max_new_tokens,
            "batch_size": batch_size,
            **batch_columns(evaluate(model, setting, workloads), batch_size),
            "weights_bytes": pa.repeat(pa.scalar(weights_bytes, pa.int64()), n),
        }
        return pa.RecordBatch.from_pydict(columns)


def _image_size(mode: Mode) -> int:
    return mode.image_size


def _base_size(mode: Mode) -> int:
    return mode.base_size
