"""The cost of many pages at once: what `compose` says of each, evaluated on arrays.

Views run once per distinct set of sizes. The decoder runs on symbols, B prompts of T tokens and K
in the cache before a step; its polynomials are evaluated on the arrays of all pages.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.decoder import experts_touched
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.ocr_family.ocr_model import OcrModel
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.figures import PageTotals
from dsocr_analyze.kernels import BFLOAT16, NO_WORK, Dtype, Work
from dsocr_analyze.tape import Size, largest, maximum, minimum
from dsocr_analyze.tape.polynomial import (
    LevelSpans,
    Polynomial,
    Symbol,
    SymbolicTape,
    Values,
    highest,
)
from dsocr_analyze.workload import PageWorkload

_Rows: TypeAlias = NDArray[np.int64]
"""Places: of pages, or of what several pages share."""

_LEAST: Final = {
    "base_size": 64,
    "whole_resolution": 64,
    "local_resolution": 64,
    "columns": 1,
    "rows": 1,
    "text_tokens": 1,
    "batch_size": 1,
    "max_new_tokens": 1,
}
"""The least of each dimension of a page, those of its views first."""

_LARGEST: Final = 2**63 - 1

_SHORTEST: Final = 3
"""Tokens of the shortest prompt: one of a view, the separator and BOS."""

_MOST_SPANS: Final = 4096
"""Calls of vision modules that are remembered, each a kilobyte."""

_MOST_KEYS: Final = 1 << 24
"""Widest range of values looked up in a table."""


def page_totals(
    model: OcrModel,
    c: ModelDimensions,
    *,
    text_tokens: Size,
    base_size: Size = 64,
    whole_resolution: Size = 64,
    local_resolution: Size = 64,
    columns: Size = 1,
    rows: Size = 1,
    batch_size: Size = 1,
    max_new_tokens: Size = 1,
    dtype: Dtype = BFLOAT16,
    flash_attention: bool = False,
) -> PageTotals:
    """The cost of pages, exact: `int64`, or Python integers in `object` arrays.

    Each size is an integer for all pages, or an integer array `[n]`.

    Args:
        model: The relative.
        c: Its dimensions.
        base_size: Pixels per side of the blank patch of a page without local views.
        whole_resolution: Pixels per side of the whole page's view.
        text_tokens: Tokens besides the visual ones, including BOS.
        local_resolution: Pixels per side of a local view.
        columns: Of local views; 1 x 1 stands for none.
        rows: Of local views.
        batch_size: Pages per batch.
        max_new_tokens: Tokens generated.
        dtype: Of weights and features.
        flash_attention: Instead of eager attention.

    Raises:
        WorkloadError: A size is no integer, too small or too large, or arrays differ in length.
        ConfigError: A part of the model has no closed form.
    """
    views = base_size, whole_resolution, local_resolution, columns, rows
    pages, n = _checked_pages((*views, text_tokens, batch_size, max_new_tokens))
    deciding = pages[model.views_of]
    if flash_attention:
        model.check_flash(c)
    costs = _Costs(model, c, dtype, flash_attention)
    view_sizes, view_place = _distinct_rows(deciding)
    least = tuple(_LEAST.values())[model.views_of]
    found = _looks(looks(model, c, dtype), view_sizes, least)
    counts = pages[len(views) :]
    is_exact = n > 0 and costs.exceeds_int64(found, *counts)
    if is_exact:
        counts = [n if isinstance(n, int) else n.astype("O") for n in counts]
    tables = [_table(each, is_exact=is_exact) for each in zip(*found, strict=True)]
    text, B, new = counts
    look = ViewsCost.of([
        each if isinstance(each, int | float) else each.take(view_place, mode="clip")
        for each in tables
    ])  # fmt: skip
    c.decoder.check_positions(look.visual_tokens + text, new)
    figures = costs.totals(costs.without_steps(look, text, B), B, new)
    prefill, decode_step, batch = (Work(*figures[start : start + 5]) for start in (0, 5, 10))
    return PageTotals(prefill, decode_step, batch, *figures[15:])


def _checked_pages(given: Iterable[Size]) -> tuple[list[Size], int]:
    """The dimensions of `_LEAST`, and the number of pages; 0 if all are integers."""
    pages = [_checked(name, values) for name, values in zip(_LEAST, given, strict=True)]
    lengths = {len(values) for values in pages if not isinstance(values, int)}
    if len(lengths) > 1:
        raise WorkloadError(
            f"arrays of {', '.join(map(str, sorted(lengths)))} pages; give arrays of one length"
        )
    return pages, max(lengths, default=0)


def _checked(name: str, values: Size) -> Size:
    """An integer or an int64 array `[n]`, with no value too small or too large."""
    array, least = np.asarray(values), _LEAST[name]
    is_whole = array.ndim < 2 and array.dtype.kind in "iu"
    if not is_whole or (array.size and not least <= array.min() <= array.max() <= _LARGEST):
        raise WorkloadError(
            f"{name} is {values}; give whole numbers from {least} to {_LARGEST}, one or an array of"
            " one dimension",
            arguments=(name,),
        )
    return array.astype(np.int64, copy=False) if array.ndim else int(array)


# --- views ----------------------------------------------------------------------------------


class ViewsCost(NamedTuple):
    """What views cost: integers, or arrays `[n]` for many pages.

    Attributes:
        visual_tokens: Tokens of the page.
        alone: Most bytes alive besides embeddings, with one page in the batch.
        batched: The same with several.
        left: Bytes that remain until the decoder has finished.
        per_batch: Work of a batch; the others are of a page, and of a token of a prompt.
    """

    visual_tokens: Size
    alone: Size
    batched: Size
    left: Size
    per_batch: Work
    per_page: Work
    per_token: Work

    @classmethod
    def of(cls, counts: Sequence[Size]) -> Self:
        """From all counts in a row."""
        works = (Work(*counts[start : start + 5]) for start in (4, 9, 14))
        return cls(*counts[:4], *works)


@lru_cache(maxsize=64)
def looks(
    model: OcrModel, c: ModelDimensions, dtype: Dtype
) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """A cached function from sizes of views to the counts of a `ViewsCost`."""
    spans: LevelSpans = {}
    batch = Pass(_SEVERAL, Polynomial.size("T", least=_SHORTEST))

    @lru_cache(maxsize=1 << 14)
    def look(sizes: tuple[int, ...]) -> tuple[int, ...]:
        if len(spans) > _MOST_SPANS:
            spans.clear()
        page = model.page_with(sizes)
        if c.decoder.is_of_transformers:
            return _packed(model, c, dtype, page)
        work, batched, left = _looked(model, c, dtype, batch, page, spans)
        _, alone, _ = _looked(model, c, dtype, Pass(1, page.seq_len), page, spans)
        parts: tuple[Any, ...] = ((), ("B",), ("B", "T"))
        works = (Polynomial.of(count).terms.get(names, 0) for names in parts for count in work)
        return page.visual_tokens, alone, batched, left, *works

    return look


def _packed(model: OcrModel, c: Any, dtype: Dtype, page: PageWorkload) -> tuple[int, ...]:
    """The counts of a `ViewsCost` that has the whole prefill pass of a batch."""
    t, p, number = SymbolicTape(dtype), Pass(page.batch_size, page.seq_len), Values({}).of
    t.call("", model.whole_model, c, p, page)
    embedded = p.tokens * c.decoder.hidden_size * dtype.nbytes
    held, nothing = number(max(t.levels(""))) - embedded, (0,) * len(Work._fields)
    return page.visual_tokens, held, held, 0, *map(number, t.work("")), *nothing, *nothing


def _looked(
    model: OcrModel,
    c: ModelDimensions,
    dtype: Dtype,
    p: Pass,
    page: PageWorkload,
    spans: LevelSpans,
) -> tuple[Work, int, int]:
    """Work of views; bytes alive besides embeddings, the most and those left."""
    t = SymbolicTape(dtype, {"embed_tokens": "embed_tokens"}, spans=spans)
    embeds, seen = model.embedded_page(t, c, p, page)
    embedded = embeds.nbytes
    left = t.alive - embedded
    del embeds, seen
    t.check_nothing_is_left()
    number = Values({}).of  # of what depends on no size
    return t.work(""), max(number(level - embedded) for level in t.levels("")), number(left)


def _looks(
    look: Callable[..., tuple[int, ...]], sizes: list[Size], least: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """What `look` says of each set of sizes; of none, that of the smallest."""
    if all(isinstance(n, int) for n in sizes):
        return [look(tuple(sizes))]
    columns = [repeat(n) if isinstance(n, int) else n.tolist() for n in sizes]
    found = [look(each) for each in zip(*columns, strict=False)]
    return found or [look(least)]


def _table(values: tuple[int, ...], *, is_exact: bool) -> Size:
    """A count by distinct set; one integer if all are equal."""
    if len(set(values)) == 1:
        return values[0]
    return np.array(values, "O" if is_exact else np.int64)


# --- decoder ---------------------------------------------------------------------------------


_SEVERAL: Final = Polynomial.size("B", least=2)
"""Prompts of a batch."""


class PromptCost(NamedTuple):
    """A prefill pass without views, in terms of B and T.

    Attributes:
        layers: The most bytes alive while embeddings are, without what views left.
        head: The most bytes alive after that.
        cache_bytes: Keys and values that it leaves.
    """

    work: Work
    layers: tuple[Size, ...]
    head: tuple[Size, ...]
    cache_bytes: Size


class _Costs(NamedTuple):
    """A model, and how it runs."""

    model: OcrModel
    c: ModelDimensions
    dtype: Dtype
    flash: bool

    def exceeds_int64(self, found: list[tuple[int, ...]], text: Size, B: Size, new: Size) -> bool:
        """Whether a value may not fit: each grows with every argument, so the largest of all do.

        What wraps around on the way to a sum that fits does no harm.
        """
        look, most = ViewsCost.of([max(each) for each in zip(*found, strict=True)]), largest(B)
        figures = self.totals(self.without_steps(look, largest(text), most), most, largest(new))
        works = (Work(*figures[start : start + 5]) for start in (0, 5, 10))
        sums = [count for work in works for count in (work.flops, work.bytes_moved)]
        most_of_all: int = max(*sums, *figures)
        return most_of_all > _LARGEST

    def without_steps(self, look: ViewsCost, text: Size, B: Size) -> list[Size]:
        """What does not depend on the number of decode steps.

        Visual tokens, prompt tokens, expected bytes read by a step, most bytes alive, work of the
        prefill pass and of a step, and what `_steps` says.
        """
        T = look.visual_tokens + text
        *prompts, layers, head = self._prompts(B, T)
        *linear, beyond_counted = self._steps(B)
        decode_step, tokens = self._with_steps(NO_WORK, linear, T, 1), B * T
        prefill = (
            _dot((batch, page, token), (1, B, tokens), prompt)
            for prompt, batch, page, token in zip(
                prompts, look.per_batch, look.per_page, look.per_token, strict=True
            )
        )
        held = look.alone + (look.batched - look.alone) * minimum(B - 1, 1)
        embedded = tokens * (self.c.decoder.hidden_size * self.dtype.nbytes)
        expected = decode_step.bytes_read + 1.0 * beyond_counted
        most = maximum(maximum(embedded + held, look.left + layers), head)
        return [look.visual_tokens, T, expected, most, *prefill, *decode_step, *linear]

    def totals(self, without_steps: list[Size], B: Size, new: Size) -> list[Size]:
        """The counts of `PageTotals` in a row."""
        visual_tokens, T, expected, most, *works = without_steps
        window, steps = self.c.decoder.sliding_window, new - 1
        kept = T + (steps if window is None else minimum(steps, window))
        cache = Values({"B": B, "T": kept}).of(self._prompt(int(largest(B) > 1)).cache_bytes)
        batch = self._with_steps(Work(*works[:5]), works[10:], T, steps)
        return [*works[:10], *batch, visual_tokens, T, cache, expected, most]

    @property
    def _changes_with_length(self) -> bool:
        """Whether passes differ in kind beyond the trained length; plain attention is refused."""
        return self.c.decoder.rope_scaling == "dynamic" and self.c.decoder.use_mla

    def _length(self, name: str, shortest: int, longest: int, is_long: bool) -> Size:
        """A number of tokens, up to the longest or beyond it where passes change in kind."""
        if not self._changes_with_length:
            return Polynomial.size(name, least=shortest)
        if is_long:
            return Polynomial.size(name, least=max(shortest, longest + 1))
        return Polynomial.size(name, least=shortest, most=max(shortest, longest))

    # --- prompts

    def _prompts(self, B: Size, T: Size) -> list[Size]:
        """Work of prompts without views; most bytes alive in the layers, and in the head."""
        if self.c.decoder.is_of_transformers:  # views and prompts are counted as one
            return [0] * (len(Work._fields) + 2)
        is_long = self._changes_with_length * (self.c.decoder.max_position_embeddings < T)
        return self._by_kind(self._prompts_of_kind, 1 * (B > 1) + 2 * is_long, B, T)

    def _prompts_of_kind(self, kind: int, B: Size, T: Size) -> list[Size]:
        prompt, values = self._prompt(kind), Values({"B": B, "T": T})
        levels = highest(prompt.layers, values), highest(prompt.head, values)
        return [*map(values.of, prompt.work), *levels]

    @lru_cache(maxsize=256)  # noqa: B019  # a model lives as long as the process
    def _prompt(self, kind: int) -> PromptCost:
        """By kind: 1 for several prompts, 2 more beyond the trained length."""
        longest = self.c.decoder.max_position_embeddings
        T = self._length("T", _SHORTEST, longest, kind > 1)
        t = SymbolicTape(self.dtype, {"model": "model"})
        p = Pass(_SEVERAL if kind % 2 else 1, T, flash=self.flash)
        cache = t.call("", self.model.whole_model, self.c, p, None)
        cache_bytes = sum(keys.nbytes + values.nbytes for keys, values, *_ in cache)
        del cache
        t.check_nothing_is_left()
        return PromptCost(t.work("model", ""), t.levels("model"), t.levels(""), cache_bytes)

    # --- steps

    def _steps(self, B: Size) -> list[Size]:
        """Work of a step in each stretch, without cached tokens and per cached token.

        Last, the bytes of experts expected beyond those counted.
        """
        experts = experts_touched(B, self.c.decoder, self.dtype)
        beyond_counted = 0 if experts is None else experts.bytes_beyond_counted
        return [*self._by_kind(self._steps_of_kind, 1 * (B > 1), B), beyond_counted]

    def _steps_of_kind(self, kind: int, B: Size) -> list[Size]:
        has_two = self.c.decoder.sliding_window is not None or self._changes_with_length
        stretches, values = (False, True)[: 1 + has_two], Values({"B": B})
        steps = (self._step(kind > 0, is_second) for is_second in stretches)
        return [values.of(count) for works in steps for work in works for count in work]

    @lru_cache(maxsize=256)  # noqa: B019  # the same
    def _step(self, is_batched: bool, is_second: bool) -> tuple[Work, Work]:
        """A step of a stretch in terms of B: over no cache, and what each cached token adds."""
        overwrites = is_second and self.c.decoder.sliding_window is not None
        longest = self.c.decoder.max_position_embeddings - 1
        K = self._length("K", 1, longest, is_second and not overwrites)
        t = SymbolicTape(self.dtype)
        p = Pass(_SEVERAL if is_batched else 1, 1, K, flash=self.flash, overwrites=overwrites)
        t.call("", self.model.whole_model, self.c, p, None)
        base, slope = zip(
            *(_affine(Polynomial.of(count), "K") for count in t.work("")), strict=True
        )
        return Work(*base), Work(*slope)

    def _with_steps(self, work: Work, linear: list[Size], T: Size, steps: Size) -> Work:
        """Work, and that of all steps."""
        amounts = [amount for stretch in self._stretches(T, steps) for amount in stretch]
        return Work(*(_dot(linear[n::5], amounts, count) for n, count in enumerate(work)))

    def _stretches(self, T: Size, steps: Size) -> list[tuple[Size, Size]]:
        """Steps whose work is affine in the cache: their number, and tokens in all their caches.

        Those of a full window, or beyond the trained length, come second.
        """
        window, trained = self.c.decoder.sliding_window, self.c.decoder.max_position_embeddings
        if window is None and not self._changes_with_length:
            return [(steps, _cached(T, steps))]
        first = minimum(steps, maximum(trained - T, 0) if window is None else window)
        rest = steps - first
        cached = _cached(T + first, rest) if window is None else rest * (T + window - 1)
        return [(first, _cached(T, first)), (rest, cached)]

    def _by_kind(self, function: Callable[..., list[Size]], kind: Size, *sizes: Size) -> list[Size]:
        """`function(kind, *sizes)` by element."""
        if isinstance(kind, int):
            return function(kind, *sizes)
        pages = np.bincount(kind.astype(np.int64), minlength=1)
        common, *others = np.argsort(-pages)[: max(1, np.count_nonzero(pages))].tolist()
        columns = function(common, *sizes)
        if others:  # their rows are overwritten
            dtype = next(n.dtype for n in sizes if not isinstance(n, int))
            columns = [np.full(len(kind), each, dtype) for each in columns]
        for other in others:
            rows = np.flatnonzero(kind == other)
            some = function(other, *_rows_of(sizes, rows))
            for column, values in zip(columns, some, strict=True):
                column[rows] = values
        return columns


def _affine(size: Polynomial, name: str) -> tuple[Size, Size]:
    """A polynomial without the terms of a size, and these divided by it.

    Raises ArithmeticError if another term depends on the size.
    """
    base: dict[tuple[Symbol, ...], int] = {}
    slope: dict[tuple[Symbol, ...], int] = {}
    for monomial, coefficient in size.terms.items():
        rest = tuple(each for each in monomial if each != name)
        if len(monomial) - len(rest) > 1 or any(_depends_on(name, each) for each in rest):
            raise ArithmeticError(f"{size} is not affine in {name}")
        (base if len(rest) == len(monomial) else slope)[rest] = coefficient
    return Polynomial(base), Polynomial(slope)


def _depends_on(name: str, size: Symbol) -> bool:
    return any(
        each == name or _depends_on(name, each)
        for argument in size.sizes
        for monomial in Polynomial.of(argument).terms
        for each in monomial
    )


def _cached(first: Size, steps: Size) -> Size:
    """Cached tokens that all steps find: `steps first + steps (steps - 1) / 2`.

    The even one of `steps` and `steps - 1` is halved first, so that the product fits.
    """
    return steps * first + (steps >> 1) * ((steps - 1) | 1)


def _dot(factors: Iterable[Size], amounts: Iterable[Size], total: Size) -> Size:
    """A total and the products of factors and amounts."""
    for factor, amount in zip(factors, amounts, strict=True):
        if not isinstance(factor, int) or factor:
            if isinstance(amount, int) and amount == 1:
                total = total + factor
            else:
                product = factor * amount
                product += total
                total = product
    return total


# --- distinct combinations of values -------------------------------------------------------------


def _distinct_rows(sizes: Sequence[Size]) -> tuple[list[Size], Size]:
    """Distinct combinations of values, or those of every page, and each page's place in them."""
    arrays = [each for each in sizes if not isinstance(each, int)]
    if not arrays:
        return list(sizes), 0
    rows, place = _distinct(arrays) or 2 * (np.arange(len(arrays[0])),)
    return _rows_of(sizes, rows), place


def _distinct(arrays: Sequence[_Rows]) -> tuple[_Rows, _Rows] | None:
    """Rows with every distinct combination of values, and each row's place among them.

    None for no rows, and for too wide a range of values.
    """
    n, count = len(arrays[0]), 1
    index: Size = 0
    for array in arrays:
        low = int(array.min()) if n else 0
        width = (int(array.max()) - low + 1) * count if n else 0
        if not 0 < width <= min(_MOST_KEYS, 64 * n + 4096):
            return None
        key = (array - low) * count + index
        seen = np.zeros(width, dtype=bool)
        seen[key] = True
        found = np.flatnonzero(seen)
        place = np.empty(width, dtype=np.int64)
        place[found] = np.arange(len(found))
        count, index = len(found), place.take(key, mode="clip")
    rows = np.empty(count, dtype=np.int64)
    rows[index] = np.arange(n)
    return rows, index


def _rows_of(sizes: Iterable[Size], rows: _Rows) -> list[Size]:
    return [n if isinstance(n, int) else n[rows] for n in sizes]
