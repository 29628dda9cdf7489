"""What a whole list of pages costs: exact totals and histograms, in memory that does not grow.

Pages of one crop grid and one pair of lengths cost the same, so a batch becomes its distinct
workloads and how often each occurs. They are evaluated when there are many, and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.sweep.evaluate import COUNTS, evaluate
from dsocr_analyze.sweep.exact import weighted_sum
from dsocr_analyze.sweep.grids import GRID_CODES, crop_grid_codes, grid_of_code
from dsocr_analyze.sweep.rows import PageRows, fault_column, fault_text, read_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.model.dimensions import ModelDimensions
    from dsocr_analyze.sweep.page_list import PageBatch
    from dsocr_analyze.sweep.settings import Setting

__all__ = ["REPORTED_ROWS", "SUMMED", "Archive", "Malformed", "SettingTotals", "add_up"]

REPORTED_ROWS: Final = 10
"""Malformed rows that are named; the others are only counted."""

SUMMED: Final = tuple(name for name in COUNTS if name.startswith(("prefill_pass_", "page_")))
"""Columns whose sum over pages means something."""

_MOST_PENDING: Final = 1 << 18
_MANY: Final = 1 << 15
"""Distinct workloads of a batch that are not worth keeping to merge with the next one's."""

_LENGTH_BITS: Final = 21
_LENGTH_MASK: Final = (1 << _LENGTH_BITS) - 1


@dataclass
class Malformed:
    """Rows that describe no page.

    Attributes:
        rows: How many.
        reported: Number and reason of the first `REPORTED_ROWS` of them.
    """

    rows: int = 0
    reported: list[tuple[int, str]] = field(default_factory=list)

    def add(self, count: int, described: Iterable[tuple[int, str]]) -> None:
        """Counts more of them.

        Args:
            count: How many.
            described: Number and reason of each; read only as far as they are reported.
        """
        self.rows += count
        free = REPORTED_ROWS - len(self.reported)
        if free > 0:
            self.reported += [item for item, _ in zip(described, range(free), strict=False)]


def _no_pages() -> NDArray[np.int64]:
    import numpy as np

    return np.zeros(0, np.int64)


@dataclass
class SettingTotals:
    """What the pages cost under one setting.

    Attributes:
        setting: Mode, element type and attention.
        visual_tokens: Of all pages.
        prompt_tokens: Of all pages, visual and text tokens.
        new_tokens: Of all pages.
        counts: Every column of `SUMMED`, summed over the pages.
        largest_kv_cache_bytes: KV cache of the page that needs most.
        beyond_positions: Pages that reach beyond the positions the decoder was trained for.
        pages_by_tokens: Pages whose prompt has 0, 1, 2, ... tokens.
    """

    setting: Setting
    visual_tokens: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    beyond_positions: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SUMMED, 0))
    largest_kv_cache_bytes: int = 0
    pages_by_tokens: NDArray[np.int64] = field(default_factory=_no_pages)


@dataclass
class Archive:
    """A list of pages, added up.

    Attributes:
        pages: Rows that describe a page.
        malformed: The others.
        pages_by_grid: Pages by crop grid (columns, rows), as crop mode would cut them.
        totals: Costs, one for each setting.
    """

    pages: int
    malformed: Malformed
    pages_by_grid: dict[tuple[int, int], int]
    totals: list[SettingTotals]

    @property
    def rows(self) -> int:
        """All rows of the list."""
        return self.pages + self.malformed.rows


def add_up(
    batches: Iterable[PageBatch],
    settings: Sequence[Setting],
    dimensions: ModelDimensions,
    *,
    text_tokens: int,
    max_new_tokens: int,
    on_batch: Callable[[PageBatch, PageRows], None] | None = None,
) -> Archive:
    """Totals over all pages, each counted alone (a batch size of 1).

    Args:
        batches: The list.
        settings: Ways to run the model; all pages are counted under each.
        dimensions: The model.
        text_tokens: Tokens besides the visual ones, where the list does not say.
        max_new_tokens: Tokens generated, where the list does not say.
        on_batch: Called with each batch when it has been added.

    Raises:
        PageError: The list cannot be read to its end.
        WorkloadError: A column holds no numbers.
        ConfigError: The model has a part without a closed form.
    """
    import numpy as np

    sums = _Sums(dimensions, settings)
    malformed = Malformed()
    grids = np.zeros(GRID_CODES, np.int64)
    for batch in batches:
        pages = read_rows(batch.rows)
        is_good = pages.is_good
        _note_malformed(malformed, batch, pages)
        codes = crop_grid_codes(pages.widths, pages.heights)
        text: Any = text_tokens if pages.text_tokens is None else pages.text_tokens[is_good]
        new: Any = max_new_tokens if pages.max_new_tokens is None else pages.max_new_tokens[is_good]
        codes = codes[is_good]
        grids += np.bincount(codes, minlength=GRID_CODES)
        sums.add(codes, text, new)
        if on_batch is not None:
            on_batch(batch, pages)
    return Archive(
        pages=int(grids.sum()),
        malformed=malformed,
        pages_by_grid={grid_of_code(int(code)): int(grids[code]) for code in np.flatnonzero(grids)},
        totals=sums.finished(),
    )


def _note_malformed(malformed: Malformed, batch: PageBatch, pages: PageRows) -> None:
    """Counts the batch's malformed rows, the rejected among them, in the order of their numbers."""
    import numpy as np

    faulty = np.flatnonzero(pages.faults)
    count = len(faulty) + len(batch.rejected)
    if not count:
        return

    def described(index: int) -> tuple[int, str]:
        fault = int(pages.faults[index])
        value = batch.rows.column(fault_column(fault))[index].as_py()
        return int(batch.numbers[index]), fault_text(fault, value)

    named = [described(int(index)) for index in faulty[:REPORTED_ROWS]]
    named += sorted(batch.rejected.items())[:REPORTED_ROWS]
    malformed.add(count, sorted(named))


class _Sums:
    """Distinct workloads that wait to be evaluated, and the totals of those that have been."""

    def __init__(self, dimensions: ModelDimensions, settings: Sequence[Setting]) -> None:
        self._dimensions = dimensions
        self._totals = [SettingTotals(setting) for setting in settings]
        self._keys: list[Any] = []
        self._weights: list[Any] = []
        self._pending = 0

    def add(
        self,
        codes: NDArray[np.int64],
        text_tokens: NDArray[np.int64] | int,
        max_new_tokens: NDArray[np.int64] | int,
    ) -> None:
        """Adds n pages.

        Args:
            codes: Crop grids, `[n]`.
            text_tokens: For each or for all.
            max_new_tokens: For each or for all.
        """
        import numpy as np

        if isinstance(text_tokens, int) and isinstance(max_new_tokens, int):
            by_code = np.bincount(codes, minlength=GRID_CODES)
            codes = np.flatnonzero(by_code)
            weights = by_code[codes]
        else:
            weights = None
        keys = _packed(codes, text_tokens, max_new_tokens)
        if weights is None:
            keys, weights = np.unique(keys, return_counts=True)
        if len(keys) > _MANY:
            self._evaluate(keys, weights)
            return
        self._keys.append(keys)
        self._weights.append(weights)
        self._pending += len(keys)
        if self._pending > _MOST_PENDING:
            self._merge()
            if 2 * self._pending > _MOST_PENDING:
                self._evaluate_all()

    def finished(self) -> list[SettingTotals]:
        """The totals of everything added."""
        if self._pending:
            self._merge()
            self._evaluate_all()
        return self._totals

    def _merge(self) -> None:
        """One entry for each distinct workload."""
        import numpy as np

        keys, place = np.unique(np.concatenate(self._keys), return_inverse=True)
        weights = np.zeros(len(keys), np.int64)
        np.add.at(weights, place, np.concatenate(self._weights))
        self._keys, self._weights, self._pending = [keys], [weights], len(keys)

    def _evaluate_all(self) -> None:
        """Adds what waits, when it is merged, to the totals."""
        self._evaluate(self._keys[0], self._weights[0])
        self._keys, self._weights, self._pending = [], [], 0

    def _evaluate(self, keys: NDArray[np.int64], weights: NDArray[np.int64]) -> None:
        """Adds distinct workloads to the totals."""
        import numpy as np

        codes, text_tokens, max_new_tokens = _unpacked(keys)
        for totals in self._totals:
            results = evaluate(self._dimensions, totals.setting, codes, text_tokens, max_new_tokens)
            for name in SUMMED:
                totals.counts[name] += weighted_sum(results[name], weights)
            largest = int(results["kv_cache_bytes"].max())
            totals.largest_kv_cache_bytes = max(totals.largest_kv_cache_bytes, largest)
            totals.visual_tokens += weighted_sum(results["visual_tokens"], weights)
            totals.prompt_tokens += weighted_sum(results["seq_len"], weights)
            totals.new_tokens += weighted_sum(max_new_tokens, weights)
            reach = results["seq_len"] + max_new_tokens - 1
            is_beyond = reach > self._dimensions.decoder.max_position_embeddings
            totals.beyond_positions += int(weights[is_beyond].sum())
            totals.pages_by_tokens = _with_lengths(
                totals.pages_by_tokens, results["seq_len"].astype(np.int64), weights
            )


def _with_lengths(
    pages: NDArray[np.int64], lengths: NDArray[np.int64], weights: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Pages by length with more pages added; float64 holds the sums of one batch exactly."""
    import numpy as np

    added = np.bincount(lengths, weights, minlength=len(pages)).astype(np.int64)
    added[: len(pages)] += pages
    return added


def _packed(
    codes: NDArray[np.int64],
    text_tokens: NDArray[np.int64] | int,
    max_new_tokens: NDArray[np.int64] | int,
) -> NDArray[np.int64]:
    """Workloads as single numbers: at most 7 bits of grid and 21 of each length."""
    keys: NDArray[np.int64] = (
        ((codes << _LENGTH_BITS) | text_tokens) << _LENGTH_BITS
    ) | max_new_tokens
    return keys


def _unpacked(
    keys: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Grid codes, text tokens and new tokens of `_packed` numbers."""
    return (
        keys >> (2 * _LENGTH_BITS),
        (keys >> _LENGTH_BITS) & _LENGTH_MASK,
        keys & _LENGTH_MASK,
    )
