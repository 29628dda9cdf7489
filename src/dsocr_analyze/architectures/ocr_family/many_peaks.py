"""Peak activation of many prefill passes at once: what `peak` replays, evaluated on arrays.

While the decoder runs, a pass holds the embeddings, what its page's views left, and the decoder's
tensors. Views are replayed once per distinct set. What the decoder holds at any moment is a
polynomial in batch and prompt length: one replay finds these polynomials, and only the few that can
be the largest are evaluated for each workload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from dsocr_analyze.architectures.ocr_family.composition import is_dynamic
from dsocr_analyze.architectures.ocr_family.decoder_lifetimes import (
    LAST_SHARE,
    last_share,
    replay_decoder,
    replay_head,
)
from dsocr_analyze.architectures.ocr_family.page_lifetimes import replay_pages
from dsocr_analyze.architectures.ocr_family.vision import token_side
from dsocr_analyze.costs.amounts import Amount, Sizes, highest, worth_comparing
from dsocr_analyze.costs.integers import Count, is_integer, maximum, several
from dsocr_analyze.costs.lifetimes import Lifetimes
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.kernels import CUDA
from dsocr_analyze.workload import ViewBatch, Workload

if TYPE_CHECKING:
    from dsocr_analyze.architectures.ocr_family.decoder_dimensions import DecoderDimensions
    from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions
    from dsocr_analyze.architectures.ocr_family.network import Network

__all__ = ["PromptPeaks", "ViewPeaks", "peak_of", "prompt_peaks", "view_peaks"]

_ViewSizes: TypeAlias = tuple[int, int, int, int]
"""Pixels per side of the global view and of local views, and columns and rows of the latter."""

_BATCH: Final = "batch"
_LENGTH: Final = "length"
_SHORTEST: Final = 3
"""Shortest prompt, in tokens: one of a view, the separator and BOS."""


class ViewPeaks(NamedTuple):
    """Bytes held by a page's views, before the decoder runs; integers or arrays."""

    alone: Count
    """The most, for a batch of one page."""
    several: Count
    """The most, for a batch of several pages."""
    left: Count
    """Bytes that remain until the decoder has finished."""


class PromptPeaks(NamedTuple):
    """The most bytes of the decoder's own tensors; integers or arrays."""

    layers: Count
    """While embeddings and views are alive."""
    head: Count
    """After they are freed."""


def peak_of(views: ViewPeaks, prompt: PromptPeaks, B: Count, embedded: Count) -> Any:
    """The peak of prefill passes.

    Args:
        views: Peaks of their pages' views.
        prompt: Peaks of their prompts.
        B: Batch.
        embedded: Bytes of the embeddings.
    """
    first = views.alone + several(B) * (views.several - views.alone)
    return maximum(embedded + maximum(first, views.left + prompt.layers), prompt.head)


# --- views -----------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _view_replays(
    network: Network, dimensions: RelativeDimensions, dtype: Dtype
) -> Callable[[_ViewSizes], ViewPeaks]:
    """Returns a cached function from the sizes of a page's views to the bytes they hold.

    Args:
        network: The relative.
        dimensions: Its dimensions.
        dtype: Type of features.
    """

    @lru_cache(maxsize=1 << 14)
    def replayed(sizes: _ViewSizes) -> ViewPeaks:
        page = _page(network, dimensions, sizes)
        peaks = []
        for batch_size in (1, 2):
            lives = Lifetimes(dtype, CUDA)
            left = replay_pages(network, lives, dimensions, replace(page, batch_size=batch_size))
            assert lives.alive == left, "nothing else is alive when the views are through"
            peaks.append(ViewPeaks(lives.peak.nbytes, lives.peak.nbytes, left))
        alone, of_several = peaks
        return ViewPeaks(alone.alone, of_several.several, of_several.left)

    return replayed


def _page(network: Network, dimensions: RelativeDimensions, sizes: _ViewSizes) -> Workload:
    """A page with these views."""
    whole, local, columns, rows = sizes
    is_cut = columns * rows > 1
    seen = ViewBatch(1, whole)
    tokens = network.whole_tokens(token_side(whole, dimensions.sam))
    if is_cut:
        tokens += network.local_tokens(token_side(local, dimensions.sam), columns, rows)
    return Workload(
        page=(1, 1),
        base_size=whole,
        image_size=local if is_cut else whole,
        crop_mode=is_cut,
        grid=(columns, rows),
        views=(ViewBatch(columns * rows, local), seen) if is_cut else (seen,),
        visual_tokens=tokens,
        text_tokens=1,
        batch_size=1,
        max_new_tokens=1,
    )


def view_peaks(
    network: Network,
    dimensions: RelativeDimensions,
    dtype: Dtype,
    whole: Any,
    local: Any,
    columns: Any,
    rows: Any,
) -> ViewPeaks:
    """Bytes that pages' views hold; the last four arguments are integers or arrays `[n]`.

    Args:
        network: The relative.
        dimensions: Its dimensions.
        dtype: Type of features.
        whole: Pixels per side of the whole page's view.
        local: Pixels per side of a local view.
        columns: Columns of local views; 1 x 1 for none.
        rows: Rows of local views.
    """
    replayed = _view_replays(network, dimensions, dtype)
    sizes = (whole, local, columns, rows)
    if all(map(is_integer, sizes)):
        return replayed(sizes)
    import numpy as np

    is_object = any(not is_integer(each) and each.dtype == object for each in sizes)
    pages = zip(*(each.tolist() for each in np.broadcast_arrays(*sizes)), strict=True)
    found = np.array([replayed(page) for page in pages], object if is_object else np.int64)
    return ViewPeaks(*found.reshape(-1, len(ViewPeaks._fields)).T)


# --- prompts ---------------------------------------------------------------------------------


class _Levels(Lifetimes):
    """Records every amount of bytes ever alive."""

    def __init__(self, dtype: Dtype) -> None:
        super().__init__(dtype, CUDA)
        self.all: list[Amount] = []

    def make(self, nbytes: int, *, scratch: int = 0) -> int:
        self.alive += nbytes
        self.all.append(Amount.of(self.alive + scratch))
        return nbytes


class _PromptLevels(NamedTuple):
    """Amounts that may be the largest."""

    layers: tuple[Amount, ...]
    head: tuple[Amount, ...]


@cache
def _levels(
    decoder: DecoderDimensions, dtype: Dtype, *, flash: bool, is_several: bool, is_long: bool
) -> _PromptLevels:
    """The most that the decoder may hold.

    Args:
        decoder: Dimensions.
        dtype: Type of features.
        flash: FlashAttention instead of eager attention.
        is_several: Whether there is more than one prompt.
        is_long: Whether prompts are longer than the trained length.
    """
    trained = decoder.max_position_embeddings
    B: Any = Amount.size(_BATCH, least=2) if is_several else 1
    T: Any = Amount.size(
        _LENGTH, least=trained + 1 if is_long else _SHORTEST,
        most=None if is_long else max(_SHORTEST, trained),
    )  # fmt: skip
    lives = _Levels(dtype)
    replay_decoder(lives, B, T, decoder, flash=flash, inputs=0)
    layers = tuple(lives.all)
    lives.all.clear()
    replay_head(lives, B * T, decoder)
    least = {_BATCH: 2, _LENGTH: _SHORTEST}
    # No expert receives more choices than there are tokens.
    within = {LAST_SHARE: B * T}
    return _PromptLevels(
        *(worth_comparing(levels, least, within) for levels in (layers, lives.all))
    )


def prompt_peaks(
    decoder: DecoderDimensions, dtype: Dtype, B: Any, T: Any, *, flash: bool
) -> PromptPeaks:
    """The most that the decoder holds for prompts.

    Args:
        decoder: Dimensions.
        dtype: Type of features.
        B: Batch, an integer or an array `[n]`.
        T: Tokens per prompt, likewise.
        flash: FlashAttention instead of eager attention.
    """

    def peaks(B: Any, T: Any, *, is_several: bool, is_long: bool) -> PromptPeaks:
        levels = _levels(decoder, dtype, flash=flash, is_several=is_several, is_long=is_long)
        sizes = {_BATCH: B, _LENGTH: T}
        if any((LAST_SHARE,) in amount.terms for each in levels for amount in each):
            assert decoder.n_routed_experts is not None, "a dense decoder has no experts"
            choices = B * T * decoder.num_experts_per_tok
            sizes[LAST_SHARE] = last_share(choices, decoder.n_routed_experts)
        known = Sizes(sizes)
        return PromptPeaks(*(highest(each, known) for each in levels))

    trained = decoder.max_position_embeddings if is_dynamic(decoder) else None
    if is_integer(B) and is_integer(T):
        return peaks(B, T, is_several=B > 1, is_long=trained is not None and trained < T)
    import numpy as np

    B, T = np.broadcast_arrays(B, T)
    are_several = B > 1
    are_long = np.zeros(len(T), bool) if trained is None else trained < T
    # Most batches have several short prompts; the others overwrite their rows below.
    found = peaks(B, T, is_several=True, is_long=False)
    if are_several.all() and not are_long.any():
        return found
    for is_several, is_long in ((False, False), (True, True), (False, True)):
        rows = np.flatnonzero((are_several == is_several) & (are_long == is_long))
        if len(rows):
            some = peaks(B[rows], T[rows], is_several=is_several, is_long=is_long)
            for column, values in zip(found, some, strict=True):
                _put(column, rows, values)
    return found


def _put(column: Any, rows: Any, values: Any) -> None:
    column[rows] = values
