"""What a list of pages costs, from its distinct workloads: exactly, in bounded memory."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from dsocr_analyze.archive import evaluate
from dsocr_analyze.archive.evaluate import Floats, Integers, Workloads
from dsocr_analyze.archive.pages import Pages, together
from dsocr_analyze.archive.setting import (
    ArchiveDocument,
    CountedModel,
    CountOpening,
    FilesDocument,
    MalformedRows,
    PagesOfGrid,
    PagesOfLength,
    Setting,
    TotalsDocument,
)
from dsocr_analyze.kernels import Work
from dsocr_analyze.workload import LARGEST_COUNT

if TYPE_CHECKING:
    from dsocr_analyze.archive.seconds import ArchiveTimer

_MOST_WAITING: Final = 1 << 16
"""Most distinct workloads that wait for equal ones."""

_LENGTH_BITS: Final = LARGEST_COUNT.bit_length()

_LIMB_BITS: Final = 21
"""2^41 such parts of numbers add up to at most 62 bits."""

_MOST_BARS: Final = 20


class Archive(NamedTuple):
    """What a list of pages costs, and what else readers see."""

    document: ArchiveDocument
    settings: Sequence[Setting]
    """Those of `document.totals`."""
    lengths: Sequence[Integers]
    """Numbers of pages whose prompt has 0, 1, 2, ... tokens, by setting."""
    time: ArchiveTimer | None


class _Totals:
    def __init__(self, model: CountedModel, setting: Setting) -> None:
        self._model, self.setting = model, setting
        self._counts = Counter(dict.fromkeys(TotalsDocument.__struct_fields__, 0))
        self.lengths = np.zeros(0, np.int64)

    def add(self, distinct: Workloads, counts: Integers, batch_size: int) -> None:
        """Adds different pages, and how many there are of each, `[n]`."""
        follow_pages = self.setting.mode.follows_pages
        workloads, batches = _in_batches(distinct, counts, batch_size, follow_pages=follow_pages)
        costs = evaluate.evaluate(self._model, self.setting, workloads)
        pages, lengths = batches * workloads.batch_size, np.asarray(costs.seq_len, np.int64)
        prefill, whole = (
            Work(*(weighted_sum(counts, batches) for counts in work))
            for work in (costs.prefill, costs.batch)
        )
        trained = self._model.dimensions.decoder.max_position_embeddings
        is_beyond = lengths + workloads.max_new_tokens - 1 > trained
        self._counts.update({
            "visual_tokens": weighted_sum(costs.visual_tokens, pages),
            "prompt_tokens": weighted_sum(costs.seq_len, pages),
            "new_tokens": weighted_sum(workloads.max_new_tokens, pages),
            **evaluate.figures("prefill_pass", prefill),
            **evaluate.figures("page", whole),
            "batches": int(batches.sum()),
            "pages_beyond_max_position_embeddings": int(pages[is_beyond].sum()),
        })  # fmt: skip
        for name in ("largest_kv_cache_bytes", "largest_peak_activation_bytes"):
            largest = int(np.max(getattr(costs, name.removeprefix("largest_"))))
            self._counts[name] = max(self._counts[name], largest)
        # float64 is exact for the sums of one batch
        added = np.bincount(lengths, pages, minlength=len(self.lengths)).astype(np.int64)
        added[: len(self.lengths)] += self.lengths
        self.lengths = added

    def document(self) -> TotalsDocument:
        """The figures."""
        [bars] = bars_of_each([self.lengths])
        return TotalsDocument(**{
            **self._counts,
            **self._model.keys_in(self.setting),
            "pages_by_prompt_tokens": tuple(PagesOfLength(*each) for each in bars.items()),
        })  # fmt: skip


def add_up(
    model: CountedModel,
    settings: Sequence[Setting],
    batches: Iterable[Pages],
    opening: CountOpening,
    timer: ArchiveTimer | None = None,
    *,
    batch_size: int = 1,
    files: FilesDocument | None = None,
) -> Archive:
    """Totals over all pages under each setting, and their seconds if there is a timer.

    Pages with equal prompts run in batches of `batch_size`, the last of each prompt in a smaller
    one; seconds do not depend on that. Raises what reading `batches` and the timer do.
    """
    grids: Any = model.architecture.forms.model.page_rule
    are_cut = any(setting.mode.crop_mode for setting in settings)
    totals = [_Totals(model, setting) for setting in settings]
    bad: list[MalformedRows] = []
    pages_by_code = np.zeros(grids.count, np.int64)

    def workloads() -> Iterator[tuple[Workloads, Floats]]:
        for pages in batches:
            bad.append(pages.malformed)
            if not len(pages):
                continue
            ones = np.ones((1, len(pages)))
            yield (
                pages.workloads,
                ones if timer is None else np.concatenate([ones, timer.preparation.seconds(pages)]),
            )

    for distinct, sums in distinct_workloads(workloads(), at_once=batch_size > 1):
        counts, amounts = sums[0].astype(np.int64), sums[1:]
        np.add.at(pages_by_code, distinct.grids * are_cut, counts)
        for each in totals:
            each.add(distinct, counts, batch_size)
        if timer is not None:
            timer.add(distinct, counts, amounts)
    pages_counted = int(pages_by_code.sum())
    malformed = together(bad)
    document = ArchiveDocument(
        **msgspec.structs.asdict(opening),
        rows=pages_counted + malformed.rows,
        pages=pages_counted,
        batch_size=batch_size,
        malformed=malformed,
        # In order of codes, that of columns and rows; 0 if no mode cuts pages.
        pages_by_grid=tuple(
            PagesOfGrid(grids.columns_and_rows(code) if code else (1, 1), count)
            for code, count in enumerate(pages_by_code.tolist())
            if count
        ),
        totals=tuple(each.document() for each in totals),
        time=() if timer is None else timer.documents(),
        files=files,
    )
    lengths = [each.lengths for each in totals]
    return Archive(document, settings, lengths, timer)


# --- distinct workloads --------------------------------------------------------------------------


_Counted = tuple[Integers, Floats]
"""Ascending keys of workloads, `[n]`, and m amounts of each, `[m, n]`."""


def distinct_workloads(
    batches: Iterable[tuple[Workloads, Floats]], *, at_once: bool = False
) -> Iterator[tuple[Workloads, Floats]]:
    """Different workloads of some batches, and sums of the m amounts of each, `[m, n]`.

    Memory is bounded, so a workload may come again later, unless all come `at_once`.
    """
    waiting: list[_Counted] = []
    for workloads, amounts in batches:
        waiting.append(_merged([(_packed(workloads), amounts)]))
        if sum(len(keys) for keys, _ in waiting) > _MOST_WAITING:
            waiting = [_merged(waiting)]
            if 2 * len(waiting[0][0]) > _MOST_WAITING and not at_once:
                keys, sums = waiting.pop()
                yield _unpacked(keys), sums
    if waiting:
        keys, sums = _merged(waiting)
        yield _unpacked(keys), sums


def _merged(parts: Iterable[_Counted]) -> _Counted:
    all_keys, all_sums = zip(*parts, strict=True)
    keys, place = np.unique(np.concatenate(all_keys), return_inverse=True)
    sums = np.concatenate(all_sums, axis=1)
    return keys, np.array([np.bincount(place, each, minlength=len(keys)) for each in sums])


def _packed(workloads: Workloads) -> Integers:
    """Each workload as one number, `[n]`: the grid's bits, then the lengths'."""
    prompts: Integers = (workloads.grids << _LENGTH_BITS) | workloads.text_tokens
    return (prompts << _LENGTH_BITS) | workloads.max_new_tokens


def _unpacked(keys: Integers) -> Workloads:
    mask = (1 << _LENGTH_BITS) - 1
    return Workloads(keys >> (2 * _LENGTH_BITS), (keys >> _LENGTH_BITS) & mask, keys & mask)


def _in_batches(
    workloads: Workloads, pages: Integers, batch_size: int, *, follow_pages: bool
) -> tuple[Workloads, Integers]:
    """Different batches, full and smaller, and their numbers, `[n]`."""
    if batch_size == 1:
        return workloads, pages
    alike = workloads._replace(grids=workloads.grids * follow_pages)  # else all prompts are equal
    keys, [together] = _merged([(_packed(alike), np.array([pages], np.float64))])
    full, rest = np.divmod(together.astype(np.int64), batch_size)
    batches = np.concatenate([full, rest > 0])
    sizes = np.concatenate([np.full_like(full, batch_size), rest])
    some = batches > 0
    return _unpacked(np.tile(keys, 2)[some])._replace(batch_size=sizes[some]), batches[some]


# --- sums and histograms -------------------------------------------------------------------------


def weighted_sum(values: Any, weights: Integers) -> int:
    """`sum(value * weight)`, exactly, for values `[n]` or one value, none negative.

    Sums of three parts, `v = l0 + 2^21 l1 + 2^42 l2`, fit in int64 if the values do and weights are
    at most 2^41 in total; other values are Python integers (dtype object).
    """
    values, mask = np.broadcast_to(values, weights.shape), (1 << _LIMB_BITS) - 1
    limbs = (values & mask, (values >> _LIMB_BITS) & mask, values >> 2 * _LIMB_BITS)
    return sum(int(np.dot(limb, weights)) << _LIMB_BITS * k for k, limb in enumerate(limbs))


def bars_of_each(all_pages: Sequence[Integers]) -> list[dict[str, int]]:
    """Bars of counts of pages by tokens of the prompt, in the same at most 20 round bins."""
    occurring = [np.flatnonzero(pages) for pages in all_pages]
    lengths = np.concatenate(occurring)
    if not len(lengths):
        return [{} for _ in all_pages]
    least, most = int(lengths.min()), int(lengths.max())
    widths = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    width = next(each for each in widths if most // each - least // each < _MOST_BARS)
    starts = range(least // width * width, most + 1, width)
    labels = [str(at) if width == 1 else f"{at} to {at + width - 1}" for at in starts]
    sums = (
        np.bincount((each - starts[0]) // width, pages[each], minlength=len(starts))
        for each, pages in zip(occurring, all_pages, strict=True)
    )
    return [dict(zip(labels, each.astype(np.int64).tolist(), strict=True)) for each in sums]
