"""Passes for many workloads at once: the decoder's on symbols, views on integers.

B is prompts in a batch, T tokens of a prompt, K tokens in the cache before a decode step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.ocr_family.passes import (
    OcrModel,
    ViewSizes,
    embedded_page,
    page_with,
    whole_model,
)
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.kernels import Work
from dsocr_analyze.tape import Size
from dsocr_analyze.tape.polynomial import Polynomial, Symbol
from dsocr_analyze.tape.symbolic import LevelSpans, SymbolicTape
from dsocr_analyze.workload import PageWorkload

__all__ = [
    "PromptCost",
    "ViewsCost",
    "affine",
    "changes_with_length",
    "looks",
    "prompt",
    "step",
]

_SHORTEST: Final = 3
"""Tokens of the shortest prompt: one of a view, the separator and BOS."""

_MOST_SPANS: Final = 4096
"""Calls of vision modules that are remembered, each a kilobyte."""


def changes_with_length(c: ModelDimensions) -> bool:
    """Whether passes differ in kind beyond the trained length, where plain attention is refused."""
    return c.decoder.rope_scaling == "dynamic" and c.decoder.use_mla


def _batch(is_batched: bool) -> Size:
    return Polynomial.size("B", least=2) if is_batched else 1


def _length(name: str, c: ModelDimensions, shortest: int, longest: int, is_long: bool) -> Size:
    """A number of tokens, up to the longest or beyond it where passes change in kind."""
    if not changes_with_length(c):
        return Polynomial.size(name, least=shortest)
    if is_long:
        return Polynomial.size(name, least=max(shortest, longest + 1))
    return Polynomial.size(name, least=shortest, most=max(shortest, longest))


# --- the decoder -----------------------------------------------------------------------------


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


@lru_cache(maxsize=256)
def prompt(
    model: OcrModel,
    c: ModelDimensions,
    dtype: Dtype,
    *,
    flash: bool,
    is_batched: bool,
    is_long: bool,
) -> PromptCost:
    """A prefill pass without views, of prompts beyond the trained length if `is_long`."""
    T = _length("T", c, _SHORTEST, c.decoder.max_position_embeddings, is_long)
    t = SymbolicTape(dtype, {"model": "model"})
    p = Pass(_batch(is_batched), T, flash=flash)
    cache = t.call("", whole_model, model, c, p, None)
    cache_bytes = sum(keys.nbytes + values.nbytes for keys, values, *_ in cache)
    del cache
    t.check_nothing_is_left()
    return PromptCost(t.work("model", ""), t.levels("model"), t.levels(""), cache_bytes)


@lru_cache(maxsize=256)
def step(
    model: OcrModel,
    c: ModelDimensions,
    dtype: Dtype,
    *,
    flash: bool,
    is_batched: bool,
    is_long: bool,
    overwrites: bool = False,
) -> tuple[Work, Work]:
    """A decode step in terms of B: over an empty cache, and what each cached token adds."""
    K = _length("K", c, 1, c.decoder.max_position_embeddings - 1, is_long)
    t = SymbolicTape(dtype, levels=False)
    p = Pass(_batch(is_batched), 1, K, flash=flash, overwrites=overwrites)
    t.call("", whole_model, model, c, p, None)
    base, slope = zip(*(affine(Polynomial.of(count), "K") for count in t.work("")), strict=True)
    return Work(*base), Work(*slope)


def affine(size: Polynomial, name: str) -> tuple[Size, Size]:
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


# --- views -----------------------------------------------------------------------------------


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
    def of(cls, counts: Sequence[Size]) -> ViewsCost:
        """From all counts in a row."""
        works = (Work(*counts[start : start + 5]) for start in (4, 9, 14))
        return cls(*counts[:4], *works)


@lru_cache(maxsize=64)
def looks(
    model: OcrModel, c: ModelDimensions, dtype: Dtype
) -> Callable[[ViewSizes], tuple[int, ...]]:
    """A cached function from sizes of views to the counts of a `ViewsCost`."""
    spans: LevelSpans = {}
    B, T = _batch(is_batched=True), Polynomial.size("T", least=_SHORTEST)

    @lru_cache(maxsize=1 << 14)
    def look(sizes: ViewSizes) -> tuple[int, ...]:
        if len(spans) > _MOST_SPANS:
            spans.clear()
        page = page_with(model, sizes)
        work, batched, left = _looked(model, c, dtype, Pass(B, T), page, spans)
        _, alone, _ = _looked(model, c, dtype, Pass(1, page.seq_len), page, spans)
        parts = ((), ("B",), ("B", "T"))
        works = (_coefficient(count, *names) for names in parts for count in work)
        return page.visual_tokens, alone, batched, left, *works

    return look


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
    embeds, seen = embedded_page(t, model, c, p, page)
    embedded = embeds.nbytes
    left = t.alive - embedded
    del embeds, seen
    t.check_nothing_is_left()
    most = max(_number(level - embedded) for level in t.levels(""))
    return t.work(""), most, _number(left)


def _coefficient(size: Size, *names: str) -> int:
    terms: Mapping[Any, int] = Polynomial.of(size).terms
    return terms.get(names, 0)


def _number(size: Size) -> int:
    """A size that depends on no other."""
    terms = dict(Polynomial.of(size).terms)
    number: int = terms.pop((), 0)
    if terms:
        raise ArithmeticError(f"{size} depends on other sizes")
    return number
