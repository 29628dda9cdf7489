"""The cost of many pages at once: what `compose` says of each, evaluated on arrays.

A page is its views, its text and its batch. Views depend on their sizes alone and are run once per
distinct set; the decoder is run on symbols, and its polynomials are evaluated once per distinct
batch and length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from dsocr_analyze.architectures.ocr_family.decoder import experts_touched
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.ocr_family.passes import OcrModel
from dsocr_analyze.architectures.ocr_family.symbolic_passes import (
    Look,
    Prompt,
    changes_with_length,
    looks,
    prompt,
    step,
)
from dsocr_analyze.architectures.stages import PageTotals
from dsocr_analyze.dtypes import BFLOAT16, Dtype
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.kernels import NO_WORK, Work
from dsocr_analyze.tape import Size, largest, maximum, minimum
from dsocr_analyze.tape.polynomial import Bounds, Values, highest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["distinct", "page_totals"]

_Rows: TypeAlias = "NDArray[np.int64]"
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

_VIEWS: Final = ("base_size", "whole_resolution", "local_resolution", "columns", "rows")

_LARGEST: Final = 2**63 - 1

_MOST_KEYS: Final = 1 << 24
"""Widest range of distinct values looked up in a table."""

_CHUNK: Final = 1 << 14
"""Elements evaluated at a time if there are many distinct values, so that arrays fit in cache."""


def page_totals(
    model: OcrModel,
    c: ModelDimensions,
    *,
    base_size: Size,
    whole_resolution: Size,
    text_tokens: Size,
    local_resolution: Size = 640,
    columns: Size = 1,
    rows: Size = 1,
    batch_size: Size = 1,
    max_new_tokens: Size = 1,
    dtype: Dtype = BFLOAT16,
    flash_attention: bool = False,
) -> PageTotals:
    """The cost of pages, from arrays of their dimensions.

    Each argument is an integer for all pages, or a one-dimensional array of integers with one
    element per page. A page without local views has a grid of 1 x 1.

    Results are exact: `int64` if they fit, otherwise Python integers in `object` arrays.

    Args:
        model: The relative.
        c: Its dimensions.
        base_size: Pixels per side of the blank patch of a page without local views.
        whole_resolution: Pixels per side of the whole page's view.
        text_tokens: Tokens besides the visual ones, including BOS.
        local_resolution: Pixels per side of a local view.
        columns: Columns of local views.
        rows: Rows of local views.
        batch_size: Pages per batch, all alike.
        max_new_tokens: Tokens generated.
        dtype: Type of weights and features.
        flash_attention: FlashAttention instead of the decoder's eager attention.

    Raises:
        WorkloadError: An argument is not an integer, is too small, or differs in length.
        ConfigError: A part of the model has no closed form.
    """
    given = {
        "base_size": base_size,
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
    if flash_attention:
        model.check_flash(c)
    costs = _Costs(model, c, dtype, flash_attention)
    found, index = _looks(looks(model, c, dtype), [pages[name] for name in _VIEWS])
    counts = [pages[name] for name in ("text_tokens", "batch_size", "max_new_tokens")]
    is_exact = bool(lengths) and lengths != {0} and costs.exceeds_int64(found, *counts)
    if is_exact:
        counts = [n if isinstance(n, int) else n.astype("O") for n in counts]
    look = Look.of([_column(each, index, is_exact=is_exact) for each in zip(*found, strict=True)])
    text, B, new = counts
    T = look.visual_tokens + text
    c.decoder.check_positions(T, new)
    return costs.totals(look, T, B, new - 1)


def _checked(name: str, values: Size) -> Size:
    """Checks that this is an integer or a one-dimensional int64 array, with no value too small."""
    if isinstance(values, int) and not isinstance(values, bool):
        least = values
    else:
        import numpy as np

        values = np.asarray(values)
        if values.ndim == 0 and values.dtype.kind in "iu":
            return _checked(name, int(values))
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise WorkloadError(
                f"{name} is a {values.ndim}-dimensional array of {values.dtype}; give one dimension"
                " of whole numbers",
                arguments=(name,),
            )
        if values.size and values.dtype.kind == "u" and int(values.max()) > _LARGEST:
            raise WorkloadError(
                f"{name}: {values.max()} is too large; give at most {_LARGEST}", arguments=(name,)
            )
        values = values.astype(np.int64, copy=False)
        least = int(values.min()) if values.size else _LEAST[name]
    if least < _LEAST[name]:
        raise WorkloadError(
            f"{name}: {least} is too small; give at least {_LEAST[name]}", arguments=(name,)
        )
    return values


# --- views -----------------------------------------------------------------------------------


def _looks(
    look: Callable[..., tuple[int, ...]], sizes: list[Size]
) -> tuple[list[tuple[int, ...]], _Rows | None]:
    """What each distinct set of views costs, and the place of each page's set among them.

    Args:
        look: Returns what a set costs.
        sizes: `ViewSizes`, each an integer for all pages or an array.
    """
    arrays = [each for each in sizes if not isinstance(each, int)]
    if not arrays:
        return [look(tuple(sizes))], None
    import numpy as np

    rows, index = distinct(arrays) or 2 * (np.arange(len(arrays[0])),)
    columns = [repeat(n) if isinstance(n, int) else n[rows].tolist() for n in sizes]
    found = [look(each) for each in zip(*columns, strict=False)]
    return found or [look(tuple(_LEAST[name] for name in _VIEWS))], index


def _column(values: tuple[int, ...], index: _Rows | None, *, is_exact: bool) -> Size:
    """A count of each page, from those of distinct sets: an integer, or if they differ an array."""
    if len(set(values)) == 1:
        return values[0]
    import numpy as np

    assert index is not None, "sets differ from page to page"
    return np.array(values, "O" if is_exact else np.int64).take(index, mode="clip")


# --- decoder ---------------------------------------------------------------------------------


class _Costs(NamedTuple):
    """A model, and how it runs.

    Attributes:
        model: The relative.
        c: Its dimensions.
        dtype: Type of weights and features.
        flash: FlashAttention instead of the eager product.
        is_bound: Whether arguments are the largest of many, and what is found bounds their values.
    """

    model: OcrModel
    c: ModelDimensions
    dtype: Dtype
    flash: bool
    is_bound: bool = False

    def exceeds_int64(self, found: list[tuple[int, ...]], text: Size, B: Size, new: Size) -> bool:
        """Whether a value may not fit, judged from the largest value of every argument at once."""
        look = Look.of([max(each) for each in zip(*found, strict=True)])
        T, costs = look.visual_tokens + largest(text), self._replace(is_bound=True)
        try:
            totals = costs.totals(look, T, largest(B), largest(new) - 1)
        except OverflowError:
            return True
        works = totals.prefill, totals.decode_step, totals.batch
        sums = [count for work in works for count in (work.flops, work.bytes_moved)]
        most_of_all: int = max(*sums, *totals.counts())
        return most_of_all > _LARGEST

    def totals(self, look: Look, T: Size, B: Size, steps: Size) -> PageTotals:
        """The cost of pages.

        Args:
            look: What their views cost.
            T: Tokens of their prompts.
            B: Pages per batch.
            steps: Decode steps.
        """
        found, tokens = looked_up(self._passes, B, T), B * T
        prompts, decode_step, (layers, head) = found[:5], Work(*found[5:10]), found[10:]
        *linear, beyond_counted = looked_up(self._steps, B)
        prefill = Work(*(
            _dot((batch, page, token), (1, B, tokens), prompt)
            for prompt, batch, page, token in zip(
                prompts, look.per_batch, look.per_page, look.per_token, strict=True
            )
        ))  # fmt: skip
        window = self.c.sliding_window
        kept = T + (steps if window is None else minimum(steps, window))
        held = look.alone + (look.batched - look.alone) * minimum(B - 1, 1)
        embedded = tokens * (self.c.decoder.hidden_size * self.dtype.nbytes)
        cache = self._prompt(int(largest(B) > 1)).cache_bytes
        return PageTotals(
            prefill=prefill,
            decode_step=decode_step,
            batch=self._with_steps(prefill, linear, T, steps),
            visual_tokens=look.visual_tokens,
            seq_len=T,
            kv_cache_bytes=self._values(B=B, T=kept).of(cache),
            decode_step_bytes_read_expected=decode_step.bytes_read + 1.0 * beyond_counted,
            peak_activation_bytes=maximum(maximum(embedded + held, look.left + layers), head),
        )

    def _values(self, **sizes: Size) -> Values:
        return Bounds(sizes, _LARGEST) if self.is_bound else Values(sizes)

    def _passes(self, B: Size, T: Size) -> list[Size]:
        """Work of prompts without their views, and of their first step; most bytes alive.

        The latter in the layers, and in the head.
        """
        is_long = changes_with_length(self.c) * (self.c.max_positions < T)
        found = self._by_kind(self._prompts_of_kind, 1 * (B > 1) + 2 * is_long, B, T)
        *linear, _ = looked_up(self._steps, B)
        return [*found[:5], *self._with_steps(NO_WORK, linear, T, 1), *found[5:]]

    # --- prompts

    def _prompts_of_kind(self, kind: int, B: Size, T: Size) -> list[Size]:
        prompt, values = self._prompt(kind), self._values(B=B, T=T)
        levels = highest(prompt.layers, values), highest(prompt.head, values)
        return [*map(values.of, prompt.work), *levels]

    def _prompt(self, kind: int) -> Prompt:
        """By kind: 1 for several prompts, and 2 more beyond the trained length."""
        return prompt(
            self.model, self.c, self.dtype,
            flash=self.flash, is_batched=kind % 2 > 0, is_long=kind > 1,
        )  # fmt: skip

    # --- steps

    def _steps(self, B: Size) -> list[Size]:
        """Work of a step in each stretch: without cached tokens, and for each of them.

        Last, the bytes of the expected number of experts beyond those that are counted.
        """
        experts = experts_touched(B, self.c.decoder, self.dtype)
        beyond_counted = 0 if experts is None else experts.bytes_beyond_counted
        return [*self._by_kind(self._steps_of_kind, 1 * (B > 1), B), beyond_counted]

    def _steps_of_kind(self, kind: int, B: Size) -> list[Size]:
        has_window, values = self.c.sliding_window is not None, self._values(B=B)
        stretches = 1 + (has_window or changes_with_length(self.c))
        steps = (
            step(
                self.model, self.c, self.dtype, flash=self.flash, is_batched=kind > 0,
                is_long=is_second and not has_window, overwrites=is_second and has_window,
            )
            for is_second in (False, True)[:stretches]
        )  # fmt: skip
        return [values.of(count) for works in steps for work in works for count in work]

    def _with_steps(self, work: Work, linear: list[Size], T: Size, steps: Size) -> Work:
        """Work, and that of all steps, from what `_steps` says of one."""
        amounts = [amount for stretch in self._stretches(T, steps) for amount in stretch]
        return Work(*(_dot(linear[n::5], amounts, count) for n, count in enumerate(work)))

    def _stretches(self, T: Size, steps: Size) -> list[tuple[Size, Size]]:
        """Steps whose work is affine in the cache: how many, and tokens in the caches of all.

        The second are those of a full window, or those beyond the trained length.
        """
        window, trained = self.c.sliding_window, self.c.max_positions
        if window is None and not changes_with_length(self.c):
            return [(steps, _cached(T, steps))]
        if window is None and self.is_bound:  # shorter prompts have more steps in the first stretch
            return 2 * [(steps, _cached(T, steps))]
        first = minimum(steps, maximum(trained - T, 0) if window is None else window)
        rest = steps - first
        cached = _cached(T + first, rest) if window is None else rest * (T + window - 1)
        return [(first, _cached(T, first)), (rest, cached)]

    def _by_kind(self, function: Callable[..., list[Size]], kind: Size, *sizes: Size) -> list[Size]:
        """`function(kind, *sizes)`, element by element; the largest of all kinds for a bound."""
        if self.is_bound:
            kinds = [each for each in range(kind + 1) if each % 2 <= kind % 2]
            bounds = [function(each, *sizes) for each in kinds]
            return [max(each) for each in zip(*bounds, strict=True)]
        if isinstance(kind, int):
            return function(kind, *sizes)
        import numpy as np

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


def _cached(first: Size, steps: Size) -> Size:
    """Cached tokens that steps find, summed: `steps first + steps (steps - 1) / 2`.

    Either `steps` or `steps - 1` is halved before the product, which might not fit otherwise.
    """
    return steps * first + (steps >> 1) * ((steps - 1) | 1)


def _dot(factors: Iterable[Size], amounts: Iterable[Size], total: Size) -> Size:
    """A total and the products of factors and amounts, but for those that are 0 for all pages."""
    for factor, amount in zip(factors, amounts, strict=True):
        if not isinstance(factor, int) or factor:
            is_one = isinstance(amount, int) and amount == 1
            total = total + (factor if is_one else factor * amount)
    return total


# --- evaluation once per distinct combination of values ----------------------------------------


def looked_up(function: Callable[..., list[Size]], *sizes: Size) -> list[Size]:
    """Evaluates `function(*sizes)` once per distinct combination of the arrays' values.

    Millions of pages share few distinct sizes and lengths, so an evaluation over arrays costs one
    evaluation per distinct input plus one lookup per page.

    Args:
        function: A function of integers or arrays, computed element by element.
        sizes: Integers, and arrays of equal length.

    Returns:
        The columns that `function` returns, integers or arrays of that length.
    """
    arrays = [each for each in sizes if not isinstance(each, int)]
    if not arrays or arrays[0].dtype.kind == "O":
        return function(*sizes)
    n, found = len(arrays[0]), distinct(arrays)
    if found is None or 2 * len(found[0]) > n:
        return _in_chunks(function, sizes, n)
    rows, index = found
    columns = function(*_rows_of(sizes, rows))
    return [each if isinstance(each, int) else each.take(index, mode="clip") for each in columns]


def distinct(arrays: Sequence[_Rows]) -> tuple[_Rows, _Rows] | None:
    """Rows with every distinct combination of values, and each row's place among them.

    None for no rows, and if the values span too wide a range for a table.
    """
    import numpy as np

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


def _rows_of(sizes: Iterable[Size], rows: _Rows | slice) -> list[Size]:
    return [n if isinstance(n, int) else n[rows] for n in sizes]


def _in_chunks(function: Callable[..., list[Size]], sizes: Iterable[Size], n: int) -> list[Size]:
    """`function(*sizes)` in chunks small enough for their arrays to stay in the CPU cache."""
    import numpy as np

    chunks = [slice(start, start + _CHUNK) for start in range(0, max(n, 1), _CHUNK)]
    parts = [function(*_rows_of(sizes, chunk)) for chunk in chunks]
    if len(parts) == 1:
        return parts[0]
    lengths = [len(range(n)[chunk]) for chunk in chunks]
    return [
        np.concatenate([*map(np.broadcast_to, column, lengths)])
        for column in zip(*parts, strict=True)
    ]
