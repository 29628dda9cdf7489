"""The cost of many pages at once: what `compose` says of each, evaluated on arrays.

A page is its views, its text and its batch. Views depend on their sizes alone and are run once per
distinct set; the decoder is run on symbols, and its polynomials are evaluated once per distinct
batch and length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dsocr_analyze.architectures.architecture import PageTotals
from dsocr_analyze.architectures.ocr_family.composition import check_positions
from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions
from dsocr_analyze.architectures.ocr_family.lookup import combinations, looked_up, taken
from dsocr_analyze.architectures.ocr_family.mixture import experts_touched
from dsocr_analyze.architectures.ocr_family.network import Network
from dsocr_analyze.architectures.ocr_family.symbolic_passes import (
    Look,
    Prompt,
    Step,
    changes_with_length,
    looks,
    prompt,
    step,
)
from dsocr_analyze.dtypes import BFLOAT16, Dtype
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.kernels import NO_WORK, Work
from dsocr_analyze.tape.integers import largest, maximum, minimum
from dsocr_analyze.tape.polynomial import Bounds, Values, highest

__all__ = ["page_totals"]

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


def page_totals(
    network: Network,
    c: RelativeDimensions,
    *,
    base_size: Any,
    whole_resolution: Any,
    text_tokens: Any,
    local_resolution: Any = 640,
    columns: Any = 1,
    rows: Any = 1,
    batch_size: Any = 1,
    max_new_tokens: Any = 1,
    dtype: Dtype = BFLOAT16,
    flash_attention: bool = False,
) -> PageTotals:
    """The cost of pages, from arrays of their dimensions.

    Each argument is an integer for all pages, or a one-dimensional array of integers with one
    element per page. A page without local views has a grid of 1 x 1.

    Results are exact: `int64` if they fit, otherwise Python integers in `object` arrays.

    Args:
        network: The relative.
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
        network.check_flash(c)
    model = _Model(network, c, dtype, flash_attention)
    found, index = _looks(looks(network, c, dtype), [pages[name] for name in _VIEWS])
    counts = [pages[name] for name in ("text_tokens", "batch_size", "max_new_tokens")]
    is_exact = bool(lengths) and lengths != {0} and model.exceeds_int64(found, *counts)
    if is_exact:
        counts = [n if isinstance(n, int) else n.astype(object) for n in counts]
    look = _columns(found, index, is_exact=is_exact)
    text, B, new = counts
    T = look.visual_tokens + text
    check_positions(c.decoder, T, new)
    return model.totals(look, T, B, new - 1)


def _checked(name: str, values: Any) -> Any:
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


def _looks(look: Callable[..., Look], sizes: list[Any]) -> tuple[list[Look], Any]:
    """What each distinct set of views costs, and the place of each page's set among them.

    Args:
        look: Returns what a set costs.
        sizes: `ViewSizes`, each an integer for all pages or an array.
    """
    arrays = [each for each in sizes if not isinstance(each, int)]
    if not arrays:
        return [look(tuple(sizes))], None
    import numpy as np

    found = combinations(arrays) if len(arrays[0]) else None
    chosen, index = (arrays, np.arange(len(arrays[0]))) if found is None else found
    listed, n = iter([each.tolist() for each in chosen]), len(chosen[0])
    columns = [n * [each] if isinstance(each, int) else next(listed) for each in sizes]
    return [look(each) for each in zip(*columns, strict=True)], index


def _columns(found: list[Look], index: Any, *, is_exact: bool) -> Look:
    """What each page's views cost: integers that are the same for all, or arrays `[n]`."""
    if index is None:
        return found[0]
    import numpy as np

    if not found:
        none = np.array([], np.int64)
        return Look(none, none, none, none, NO_WORK, NO_WORK, NO_WORK)

    def column(values: tuple[int, ...]) -> Any:
        if len(set(values)) == 1:
            return values[0]
        return taken(np.array(values, object if is_exact else np.int64), index)

    def columns(each: tuple[Any, ...]) -> Any:
        if isinstance(each[0], tuple):
            return tuple(column(values) for values in zip(*each, strict=True))
        return column(each)

    return Look(*map(columns, zip(*found, strict=True)))


# --- decoder ---------------------------------------------------------------------------------
class _Model(NamedTuple):
    """A model, and how it runs.

    Attributes:
        network: The relative.
        c: Its dimensions.
        dtype: Type of weights and features.
        flash: FlashAttention instead of the eager product.
        is_bound: Whether arguments are the largest of many, and what is found bounds their values.
    """

    network: Network
    c: RelativeDimensions
    dtype: Dtype
    flash: bool
    is_bound: bool = False

    def exceeds_int64(self, found: list[Look], text: Any, B: Any, new: Any) -> bool:
        """Whether a value may not fit, judged from the largest value of every argument at once."""
        views: Look = Look(*(
            tuple(map(max, zip(*each, strict=True))) if isinstance(each[0], tuple) else max(each)
            for each in zip(*found, strict=True)
        ))  # fmt: skip
        model = self._replace(is_bound=True)
        try:
            totals = model.totals(
                views, views.visual_tokens + largest(text), largest(B), largest(new) - 1
            )
        except OverflowError:
            return True
        works = totals.prefill, totals.decode_step, totals.batch
        sums = [count for work in works for count in (work.flops, work.bytes_moved)]
        most_of_all: int = max(*sums, *totals.counts())
        return most_of_all > _LARGEST

    def totals(self, look: Look, T: Any, B: Any, steps: Any) -> PageTotals:
        """The cost of pages.

        Args:
            look: What their views cost.
            T: Tokens of their prompts.
            B: Pages per batch.
            steps: Decode steps.
        """
        find = _direct if self.is_bound else looked_up
        found = find(self._prompts, B, T)
        prompts, first_step, (layers, head) = found[:5], Work(*found[5:10]), found[10:]
        *linear, beyond_counted = find(self._steps, B)
        prefill = Work(*(
            _dot((prompt, 1), (batch, 1), (page, B), (token, B * T))
            for prompt, batch, page, token in zip(
                prompts, look.per_batch, look.per_page, look.per_token, strict=True
            )
        ))  # fmt: skip
        stretches = [factor for stretch in self._stretches(T, steps) for factor in stretch]
        batch = Work(*(
            _dot((count, 1), *zip(linear[place::5], stretches, strict=True))
            for place, count in enumerate(prefill)
        ))  # fmt: skip
        window = self.c.sliding_window
        kept = T + (steps if window is None else minimum(steps, window))
        any_prompt = self._prompt(int(largest(B) > 1), 0)
        held = _dot((look.alone, 1), (look.several - look.alone, minimum(B - 1, 1)))
        embedded = B * T * (self.c.decoder.hidden_size * self.dtype.nbytes)
        return PageTotals(
            prefill=prefill,
            decode_step=first_step,
            batch=batch,
            visual_tokens=look.visual_tokens,
            seq_len=T,
            kv_cache_bytes=self._values(B=B, T=kept).of(any_prompt.cache_bytes),
            decode_step_bytes_read_expected=first_step.bytes_read + 1.0 * beyond_counted,
            peak_activation_bytes=maximum(maximum(embedded + held, look.left + layers), head),
        )

    def _values(self, **sizes: Any) -> Values:
        return Bounds(sizes, _LARGEST) if self.is_bound else Values(sizes)

    # --- by kind: 1 for several prompts, and 2 more for each pass beyond the trained length

    def _prompt(self, several: int, beyond: int) -> Prompt:
        return prompt(
            self.network, self.c, self.dtype,
            flash=self.flash, is_several=several > 0, is_long=beyond > 1,
        )  # fmt: skip

    def _step(self, several: int, beyond: int, *, overwrites: bool = False) -> Step:
        return step(
            self.network, self.c, self.dtype, flash=self.flash, is_several=several > 0,
            is_long=beyond > 0, overwrites=overwrites,
        )  # fmt: skip

    def _prompts(self, B: Any, T: Any) -> list[Any]:
        """Work of prompts without views, and of their first step; bytes alive: layers, head."""
        kind = 1 * (B > 1)
        if changes_with_length(self.c):
            trained = self.c.max_positions
            kind = kind + 2 * (trained < T + 1) + 2 * (trained < T)
        return self._by_kind(self._prompts_of_kind, kind, B, T)

    def _prompts_of_kind(self, kind: int, B: Any, T: Any) -> list[Any]:
        beyond, several = divmod(kind, 2)
        pass_, step = self._prompt(several, beyond), self._step(several, beyond)
        values = self._values(B=B, T=T)
        # Sizes derived in a step, such as its experts, are named like those of a prompt.
        values_of_step = self._values(B=B, T=T)
        return [
            *map(values.of, pass_.work),
            *map(values_of_step.of, step.over("T")),
            highest(pass_.layers, values),
            highest(pass_.head, values),
        ]

    def _steps(self, B: Any) -> list[Any]:
        """Work of steps in each stretch, without cached tokens and for each of them.

        Last, the bytes of the expected number of experts beyond those that are counted.
        """
        experts = experts_touched(B, self.c.decoder, self.dtype)
        beyond = 0 if experts is None else experts.bytes_beyond_counted
        return [*self._by_kind(self._steps_of_kind, 1 * (B > 1), B), beyond]

    def _steps_of_kind(self, several: int, B: Any) -> list[Any]:
        values, steps = self._values(B=B), [self._step(several, 0)]
        if self.c.sliding_window is not None:
            steps.append(self._step(several, 0, overwrites=True))
        elif changes_with_length(self.c):
            steps.append(self._step(several, 1))
        return [values.of(count) for each in steps for work in each for count in work]

    def _stretches(self, T: Any, steps: Any) -> list[tuple[Any, Any]]:
        """Steps whose work is affine in the cache: how many, and tokens in the caches of all."""
        window, trained = self.c.sliding_window, self.c.max_positions
        if window is not None:
            growing = minimum(steps, window)
            full = steps - growing
            return [(growing, _cached(T, growing)), (full, full * (T + window - 1))]
        if not changes_with_length(self.c):
            return [(steps, _cached(T, steps))]
        if self.is_bound:  # shorter prompts have more steps in the first stretch
            return 2 * [(steps, _cached(T, steps))]
        short = minimum(steps, maximum(trained - T, 0))
        long = steps - short
        return [(short, _cached(T, short)), (long, _cached(T + short, long))]

    def _by_kind(self, function: Callable[..., list[Any]], kind: Any, *sizes: Any) -> list[Any]:
        """`function(kind, *sizes)`, element by element; the largest of all kinds for a bound."""
        if self.is_bound:
            kinds = [each for each in range(kind + 1) if each % 2 <= kind % 2]
            bounds = [function(each, *sizes) for each in kinds]
            return [max(each) for each in zip(*bounds, strict=True)]
        if isinstance(kind, int):
            return function(kind, *sizes)
        import numpy as np

        pages = np.bincount(kind.astype(np.int64), minlength=1)
        # Most pages are alike; the others overwrite their rows below.
        common = int(pages.argmax())
        found = function(common, *sizes)
        for other in np.flatnonzero(pages).tolist():
            if other == common:
                continue
            rows = np.flatnonzero(kind == other)
            some = function(other, *(n if isinstance(n, int) else n[rows] for n in sizes))
            dtype = next(n.dtype for n in sizes if not isinstance(n, int))
            for place, values in enumerate(some):
                if isinstance(found[place], int):
                    found[place] = np.full(len(kind), found[place], dtype)
                found[place][rows] = values
        return found


def _direct(function: Callable[..., list[Any]], *sizes: Any) -> list[Any]:
    return function(*sizes)


def _cached(first: Any, steps: Any) -> Any:
    """Cached tokens that steps find, summed: `steps first + steps (steps - 1) / 2`.

    Either `steps` or `steps - 1` is halved before the product, which might not fit otherwise.
    """
    return steps * first + (steps >> 1) * ((steps - 1) | 1)


def _dot(*factors: tuple[Any, Any]) -> Any:
    """The sum of products; those that are 0 for all pages are not added."""
    total: Any = 0
    for a, b in factors:
        if not any(isinstance(each, int) and each == 0 for each in (a, b)):
            product = a if isinstance(b, int) and b == 1 else a * b
            total = product if isinstance(total, int) and total == 0 else total + product
    return total
