"""What many pages cost at once: the composition of `compose`, evaluated on arrays.

A page is its views, its text and its batch. Vision depends on the views alone, the decoder on batch
and length alone, so each is evaluated once for every distinct value and looked up for every page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.costs.compose import (
    decode_steps_total,
    decode_total,
    is_dynamic,
    prefill_total,
    vision_totals,
)
from dsocr_analyze.costs.decoder import cache_width
from dsocr_analyze.costs.integers import Count, is_integer, is_nothing
from dsocr_analyze.costs.kv_cache import cache_bytes
from dsocr_analyze.costs.layout import global_layout, local_layout, page_layout, pixel_sum
from dsocr_analyze.costs.sums import combined, scaled
from dsocr_analyze.costs.vision import token_side
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.model.stages import STAGES, Stage
from dsocr_analyze.work import Work

if TYPE_CHECKING:
    from dsocr_analyze.model.dimensions import ModelDimensions

__all__ = ["PageTotals", "page_totals"]

_VISION: Final[tuple[Stage, ...]] = ("sam", "clip", "projector")

_LEAST: Final = {
    "whole_resolution": 64,
    "local_resolution": 64,
    "columns": 1,
    "rows": 1,
    "text_tokens": 1,
    "batch_size": 1,
    "max_new_tokens": 1,
}

_MOST_KEYS: Final = 1 << 24
"""Widest range of distinct values that is looked up in a table."""

_CHUNK: Final = 1 << 14
"""Pages evaluated at a time where distinct values are many: their arrays stay in the cache."""

_LARGEST: Final = 2**63 - 1

_HEADROOM: Final = 4
"""Intermediate sums may exceed a result, and a few costs shrink with size; never by so much."""


@dataclass(frozen=True)
class PageTotals:
    """Costs of n pages; every count an integer (for n pages alike) or an array `[n]`.

    Attributes:
        stages: Work by stage: for "decode" one step, for the others their part of the prefill pass.
        prefill: The whole prefill pass.
        decode_step: One step over a cache of `seq_len` tokens.
        page: The prefill pass and all decode steps.
        visual_tokens: Visual tokens of a page.
        seq_len: Tokens of a page's prompt.
        kv_cache_bytes: Cache of the batch at the end of the page.
    """

    stages: dict[Stage, Work]
    prefill: Work
    decode_step: Work
    page: Work
    visual_tokens: Count
    seq_len: Count
    kv_cache_bytes: Count

    def counts(self) -> Iterable[Count]:
        """Every count."""
        for work in (*self.stages.values(), self.prefill, self.decode_step, self.page):
            yield from work
        yield from (self.visual_tokens, self.seq_len, self.kv_cache_bytes)


def page_totals(
    dimensions: ModelDimensions,
    *,
    whole_resolution: Any,
    text_tokens: Any,
    local_resolution: Any = 640,
    columns: Any = 1,
    rows: Any = 1,
    batch_size: Any = 1,
    max_new_tokens: Any = 1,
    element_bytes: int = 2,
    flash_attention: bool = False,
) -> PageTotals:
    """What pages cost, from arrays of their dimensions.

    Each argument is an integer for all pages, or a one-dimensional array of integers with one for
    each page. A page without local views has a grid of 1 x 1.

    Results are exact: `int64` where that holds them, else Python integers in `object` arrays.

    Args:
        dimensions: The model.
        whole_resolution: Pixels a side of the view of the whole page.
        text_tokens: Tokens besides the visual ones, BOS included.
        local_resolution: Pixels a side of a local view.
        columns: Local views side by side.
        rows: Local views one above the other.
        batch_size: Pages of a batch, all alike.
        max_new_tokens: Tokens generated.
        element_bytes: Bytes of a weight and a feature.
        flash_attention: FlashAttention in place of the decoder's eager attention.

    Raises:
        WorkloadError: An argument is no integer, too small, or of another length.
        ConfigError: The model has a part without a closed form.
    """
    given = {
        "whole_resolution": whole_resolution,
        "local_resolution": local_resolution,
        "columns": columns,
        "rows": rows,
        "text_tokens": text_tokens,
        "batch_size": batch_size,
        "max_new_tokens": max_new_tokens,
    }
    pages = {name: _checked(name, values) for name, values in given.items()}
    lengths = {len(values) for values in pages.values() if not isinstance(values, int)}
    if len(lengths) > 1:
        raise WorkloadError(
            f"arrays of {', '.join(map(str, sorted(lengths)))} pages; give arrays of one length"
        )
    evaluation = _Evaluation(dimensions, element_bytes, flash_attention)
    if lengths and lengths != {0} and evaluation.exceeds_int64(pages):
        pages = {
            name: values if isinstance(values, int) else values.astype(object)
            for name, values in pages.items()
        }
    return evaluation.totals(**pages)


def _checked(name: str, values: Any) -> Any:
    """A Python integer, or a one-dimensional int64 array; no value below its least."""
    if isinstance(values, int) and not isinstance(values, bool):
        least = values
    else:
        import numpy as np

        values = np.asarray(values)
        if values.ndim == 0 and values.dtype.kind in "iu":
            return _checked(name, int(values))
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise WorkloadError(
                f"{name}: a {values.ndim}-dimensional array of {values.dtype} is not possible; "
                "give one dimension of whole numbers"
            )
        if values.size and values.dtype.kind == "u" and int(values.max()) > _LARGEST:
            raise WorkloadError(f"{name}: {values.max()} is too large; give at most {_LARGEST}")
        values = values.astype(np.int64, copy=False)
        least = int(values.min()) if values.size else _LEAST[name]
    if least < _LEAST[name]:
        raise WorkloadError(f"{name}: {least} is too small; give at least {_LEAST[name]}")
    return values


class _Evaluation:
    """The composition for one model, type and attention."""

    def __init__(self, dimensions: ModelDimensions, element_bytes: int, flash: bool) -> None:
        self.dimensions = dimensions
        self.element_bytes = element_bytes
        self.flash = flash
        self.d_in = dimensions.clip.width + dimensions.sam.out_channels
        self.d = dimensions.decoder.hidden_size

    def exceeds_int64(self, pages: dict[str, Any]) -> bool:
        """Whether int64 might not hold every count: asked of the largest of everything at once."""
        largest = {
            name: values if isinstance(values, int) else int(values.max())
            for name, values in pages.items()
        }
        bounds = list(self.totals(**largest).counts())
        if is_dynamic(self.dimensions.decoder):
            beyond = self.dimensions.decoder.max_position_embeddings + 1
            bounds.extend(self._step(largest["batch_size"], beyond))
        return _HEADROOM * max(bounds) > _LARGEST

    def totals(
        self,
        *,
        whole_resolution: Count,
        local_resolution: Count,
        columns: Count,
        rows: Count,
        text_tokens: Count,
        batch_size: Count,
        max_new_tokens: Count,
    ) -> PageTotals:
        """Costs of all pages, from checked arguments."""
        views = _looked_up(self._views, whole_resolution, local_resolution, columns, rows)
        visual_tokens, first_look, layout, *vision = views
        visual = visual_tokens.macs
        T = visual + text_tokens
        (prompt,) = _looked_up(self._prompt, batch_size, T)
        stages: dict[Stage, Work] = {
            stage: scaled(work, batch_size) for stage, work in zip(_VISION, vision, strict=True)
        }
        placing = page_layout(T, visual, self.d, self.element_bytes)
        pages = scaled(combined((layout, placing)), batch_size)
        stages["prefill"] = combined((prompt, pages, first_look))
        prefill = combined(stages.values())
        stages["decode"], steps = self._decode(batch_size, T, max_new_tokens - 1)
        decoder = self.dimensions.decoder
        return PageTotals(
            stages={stage: stages[stage] for stage in STAGES},
            prefill=prefill,
            decode_step=stages["decode"],
            page=combined((prefill, steps)),
            visual_tokens=visual,
            seq_len=T,
            kv_cache_bytes=cache_bytes(
                batch_size,
                T + max_new_tokens - 1,
                decoder.layers,
                cache_width(decoder, flash=self.flash),
                self.element_bytes,
            ),
        )

    def _views(self, whole: Count, local: Count, columns: Count, rows: Count) -> list[Work]:
        """What depends on a page's views alone.

        Returns:
            Visual tokens (as a Work's first count), the first look at the pixels (once a
            batch), the layout, and the three vision stages.
        """
        dimensions, element_bytes = self.dimensions, self.element_bytes
        N = columns * rows
        is_cut = 1 * (N > 1)
        q = token_side(whole, dimensions.sam)
        visual = q * (q + 1) + 1
        look = pixel_sum(1, whole, element_bytes)
        calls = [vision_totals(1, whole, dimensions, element_bytes)]
        layout = [
            global_layout(q, self.d_in, self.d, element_bytes),
            scaled(look, 1 - is_cut),
        ]
        if not is_nothing(is_cut):
            local_q = token_side(local, dimensions.sam)
            visual = visual + is_cut * (local_q * columns + 1) * (local_q * rows)
            on_local = vision_totals(N, local, dimensions, element_bytes)
            calls.append({stage: scaled(work, is_cut) for stage, work in on_local.items()})
            picture = local_layout(columns, rows, local_q, self.d_in, self.d, element_bytes)
            layout.append(scaled(picture, is_cut))
            layout.append(scaled(pixel_sum(N, local, element_bytes), is_cut))
        vision = (combined(call[stage] for call in calls) for stage in _VISION)
        return [Work(visual), look, combined(layout), *vision]

    def _prompt(self, B: Count, T: Count) -> list[Work]:
        return [prefill_total(B, T, self.dimensions, self.element_bytes, flash=self.flash)]

    def _step(self, B: Count, cached: Count) -> Work:
        return decode_total(B, cached, self.dimensions, self.element_bytes, flash=self.flash)

    def _decode(self, B: Count, T: Count, steps: Count) -> tuple[Work, Work]:
        """One step over T cached tokens, and `steps` steps from there on.

        A step is affine in the cache's length, but for "dynamic" rotary positions.
        """
        if is_dynamic(self.dimensions.decoder):
            (step,) = _looked_up(lambda *bt: [self._step(*bt)], B, T)
            return step, decode_steps_total(
                B, T, steps, self.dimensions, self.element_bytes, flash=self.flash
            )
        base, slope = _looked_up(self._affine, B)
        lengths = steps * T + steps * (steps - 1) // 2
        return (
            combined((base, scaled(slope, T))),
            combined((scaled(base, steps), scaled(slope, lengths))),
        )

    def _affine(self, B: Count) -> list[Work]:
        base = self._step(B, 0)
        return [base, combined((self._step(B, 1), scaled(base, -1)))]


def _looked_up(function: Callable[..., list[Work]], *arguments: Any) -> list[Work]:
    """`function(*arguments)`, evaluated once for each distinct combination of the arrays' values.

    Args:
        function: Works of integers or arrays, element by element.
        arguments: Integers, and arrays of one length.
    """
    arrays = [argument for argument in arguments if not is_integer(argument)]
    if not arrays or not len(arrays[0]) or arrays[0].dtype == object:
        return function(*arguments)
    found = _combinations(arrays)
    if found is None:
        return _in_chunks(function, arguments, len(arrays[0]))
    chosen, index = found
    works = function(*_replaced(arguments, chosen))
    return [
        Work(*(c if is_integer(c) else _taken(c, index) for c in work))  # one for each page
        for work in works
    ]


def _taken(counts: Any, index: Any) -> Any:
    """`counts[index]`; the index is known to be within."""
    return counts.take(index, mode="clip")


def _combinations(arrays: list[Any]) -> tuple[list[Any], Any] | None:
    """Distinct combinations of the arrays' values, and each page's place among them.

    None where there are too many for a look-up to pay.
    """
    pairs = []
    for array in arrays:
        pair = _distinct(array)
        if pair is None:
            return None
        pairs.append(pair)
    key = pairs[0][1]
    for values, codes in pairs[1:]:
        key = key * len(values) + codes
    joint = _distinct(key)
    if joint is None or 2 * len(joint[0]) > len(key):
        return None
    keys, index = joint
    chosen = []
    for values, _ in reversed(pairs):
        chosen.append(values[keys % len(values)])
        keys = keys // len(values)
    return chosen[::-1], index


def _distinct(array: Any) -> tuple[Any, Any] | None:
    """An array's distinct values, ascending, and the place of each element's value among them.

    None where the values lie too far apart for a table of all between them.
    """
    import numpy as np

    low = int(array.min())
    width = int(array.max()) - low + 1
    if width > min(_MOST_KEYS, 64 * len(array) + 4096):
        return None
    offsets = array - low if low else array
    seen = np.zeros(width, dtype=bool)
    seen[offsets] = True
    values = np.flatnonzero(seen)
    if len(values) == width:
        return values + low, offsets
    place = np.empty(width, dtype=np.int64)
    place[values] = np.arange(len(values))
    return values + low, place.take(offsets, mode="clip")


def _replaced(arguments: Iterable[Any], arrays: Iterable[Any]) -> list[Any]:
    """The arguments with their arrays, in order, exchanged for others."""
    new = iter(arrays)
    return [argument if is_integer(argument) else next(new) for argument in arguments]


def _in_chunks(function: Callable[..., list[Work]], arguments: Iterable[Any], n: int) -> list[Work]:
    """`function(*arguments)`, so many pages at a time that their arrays stay in the cache."""
    import numpy as np

    parts = [
        function(*(a if is_integer(a) else a[start : start + _CHUNK] for a in arguments))
        for start in range(0, n, _CHUNK)
    ]
    if len(parts) == 1:
        return parts[0]
    joined = []
    for works in zip(*parts, strict=True):
        counts: list[Any] = [
            column[0] if is_integer(column[0]) else np.concatenate(column)
            for column in zip(*works, strict=True)
        ]
        joined.append(Work(*counts))
    return joined
