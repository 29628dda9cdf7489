"""What a whole list of pages costs: exact totals in memory that does not grow with the list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsocr_analyze.archive.batches import in_batches
from dsocr_analyze.archive.distinct import Measured, distinct_workloads
from dsocr_analyze.archive.exact_sums import weighted_sum
from dsocr_analyze.archive.pages import Malformed, Pages
from dsocr_analyze.columns.evaluate import evaluate
from dsocr_analyze.columns.results import figures
from dsocr_analyze.kernels import NO_WORK, Work

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.archive.batches import DistinctBatches
    from dsocr_analyze.archive.folder import FolderFiles
    from dsocr_analyze.archive.time_totals import ListTimer, TimeTotals
    from dsocr_analyze.columns.counted_model import CountedModel
    from dsocr_analyze.columns.evaluate import Costs
    from dsocr_analyze.columns.setting import Setting

__all__ = ["Archive", "SettingTotals", "add_up"]


def _no_pages() -> NDArray[np.int64]:
    import numpy as np

    return np.zeros(0, np.int64)


@dataclass
class SettingTotals:
    """What the pages cost under one setting.

    Attributes:
        setting: Mode, data type and attention.
        sliding_window: Whether decode steps use a sliding window; None if the model has none.
        visual_tokens: Visual tokens of all pages.
        prompt_tokens: Visual and text tokens of all pages.
        new_tokens: Tokens generated for all pages.
        prefill_pass: Work of all pages' prefill passes.
        page: Work of all pages, decode steps included.
        batches: Number of batches; the number of pages if each runs alone.
        largest_kv_cache_bytes: Largest KV cache of any batch.
        largest_peak_activation_bytes: Most bytes of tensors alive at once in the prefill pass of
            any batch.
        beyond_positions: Pages longer than the positions the decoder was trained for.
        pages_by_tokens: Number of pages whose prompt has 0, 1, 2, ... tokens.
    """

    setting: Setting
    sliding_window: bool | None = None
    visual_tokens: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    prefill_pass: Work = NO_WORK
    page: Work = NO_WORK
    batches: int = 0
    largest_kv_cache_bytes: int = 0
    largest_peak_activation_bytes: int = 0
    beyond_positions: int = 0
    pages_by_tokens: NDArray[np.int64] = field(default_factory=_no_pages)

    @property
    def counts(self) -> dict[str, int]:
        """The work by column name, such as `prefill_pass_flops`."""
        return figures("prefill_pass", self.prefill_pass) | figures("page", self.page)

    def add(self, costs: Costs, distinct: DistinctBatches, max_positions: int) -> None:
        """Add more pages.

        Args:
            costs: Costs of their batches.
            distinct: The batches.
            max_positions: Positions the decoder was trained for.
        """
        import numpy as np

        workloads, batches, pages = distinct
        totals = costs.totals
        self.batches += int(batches.sum())
        lengths = np.asarray(totals.seq_len)
        self.visual_tokens += weighted_sum(totals.visual_tokens, pages)
        self.prompt_tokens += weighted_sum(totals.seq_len, pages)
        self.new_tokens += weighted_sum(workloads.max_new_tokens, pages)
        self.prefill_pass = self.prefill_pass.plus(_summed(totals.prefill, batches))
        self.page = self.page.plus(_summed(totals.batch, batches))
        cache, peak = (
            int(np.max(each)) for each in (totals.kv_cache_bytes, totals.peak_activation_bytes)
        )
        self.largest_kv_cache_bytes = max(self.largest_kv_cache_bytes, cache)
        self.largest_peak_activation_bytes = max(self.largest_peak_activation_bytes, peak)
        is_beyond = lengths + workloads.max_new_tokens - 1 > max_positions
        self.beyond_positions += int(pages[is_beyond].sum())
        self.pages_by_tokens = _with_lengths(self.pages_by_tokens, lengths.astype(np.int64), pages)


@dataclass
class Archive:
    """The totals of a list of pages.

    Attributes:
        pages: Number of rows that are pages.
        malformed: The other rows.
        pages_by_grid: Pages by crop grid (columns, rows) in the modes that cut pages; if there is
            none, every page is (1, 1).
        totals: Costs, one entry per setting.
        times: Seconds, one entry per setting and GPU; empty if no GPU was named.
        files: What the files of a folder are; None for a list of sizes.
        batch_size: Pages in a full batch.
    """

    pages: int
    malformed: Malformed
    pages_by_grid: dict[tuple[int, int], int]
    totals: list[SettingTotals]
    times: list[TimeTotals] = field(default_factory=list)
    files: FolderFiles | None = None
    batch_size: int = 1

    @property
    def rows(self) -> int:
        """All rows of the list."""
        return self.pages + self.malformed.rows


def add_up(
    model: CountedModel,
    settings: Sequence[Setting],
    batches: Iterable[Pages],
    timer: ListTimer | None = None,
    *,
    batch_size: int = 1,
) -> Archive:
    """Totals over all pages, counted one by one or in batches of pages with equal prompts.

    Args:
        model: The model.
        settings: Ways to run it; all pages are counted under each.
        batches: The pages.
        timer: Also sums their seconds, which do not depend on `batch_size`.
        batch_size: Pages in a full batch; the remainder of each prompt makes a smaller batch.

    Raises:
        PageError: The list cannot be read to its end.
        WorkloadError: A column of the list is not numeric, or another argument contradicts it.
        ConfigError: The model has a part without a closed form.
    """
    import numpy as np

    grids = model.architecture.forms.crop_grids
    totals = [SettingTotals(setting, model.window_in(setting)) for setting in settings]
    malformed = Malformed()
    pages_by_code = np.zeros(grids.count, np.int64)

    def workloads() -> Iterator[Measured]:
        for pages in batches:
            malformed.add(pages.malformed)
            if len(pages.numbers):
                found = pages.workloads(grids)
                yield Measured(found, timer.amounts(pages, found) if timer else None)

    for distinct in distinct_workloads(workloads(), grids.count, at_once=batch_size > 1):
        np.add.at(pages_by_code, distinct.workloads.grids, distinct.pages)
        for sums in totals:
            joined = in_batches(distinct, batch_size, are_cut=sums.setting.mode.crop_mode)
            costs = evaluate(model, sums.setting, joined.workloads)
            sums.add(costs, joined, model.dimensions.max_positions)
        if timer is not None:
            timer.add(distinct)
    codes = np.flatnonzero(pages_by_code)
    columns, rows = grids.columns_and_rows(codes)
    by_grid = zip(columns.tolist(), rows.tolist(), pages_by_code[codes].tolist(), strict=True)
    pages_by_grid = {(column, row): count for column, row, count in by_grid}
    pages_counted = sum(pages_by_grid.values())
    if pages_by_grid and not any(setting.mode.crop_mode for setting in settings):
        pages_by_grid = {(1, 1): pages_counted}
    return Archive(
        pages=pages_counted,
        malformed=malformed,
        pages_by_grid=pages_by_grid,
        totals=totals,
        times=[] if timer is None else timer.totals,
        batch_size=batch_size,
    )


def _summed(work: Work, batches: NDArray[np.int64]) -> Work:
    """The work of all batches, from the work of the distinct ones."""
    return Work(*(weighted_sum(counts, batches) for counts in work))


def _with_lengths(
    pages: NDArray[np.int64], lengths: NDArray[np.int64], more: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Pages by length, with more pages added; float64 is exact for the sums of one batch."""
    import numpy as np

    added = np.bincount(lengths, more, minlength=len(pages)).astype(np.int64)
    added[: len(pages)] += pages
    return added
