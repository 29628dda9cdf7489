"""The cost of many pages at once: the composition of `compose`, evaluated on arrays.

A page is its views, its text and its batch. Vision depends only on the views, the decoder only on
batch and length, so each is evaluated once per distinct value and looked up for every page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.architectures.architecture import PageTotals
from dsocr_analyze.architectures.ocr_family.composition import (
    check_positions,
    decode_steps_work,
    decode_work,
    is_dynamic,
    kept_tokens,
    prefill_work,
)
from dsocr_analyze.architectures.ocr_family.decoder import cache_width, experts_touched
from dsocr_analyze.architectures.ocr_family.layout import blank_sum, page_layout, pixel_sum
from dsocr_analyze.architectures.ocr_family.many_peaks import (
    PromptPeaks,
    ViewPeaks,
    peak_of,
    prompt_peaks,
    view_peaks,
)
from dsocr_analyze.architectures.ocr_family.stages import DECODE, PREFILL
from dsocr_analyze.architectures.ocr_family.vision import token_side
from dsocr_analyze.costs.integers import Count, is_nothing, largest
from dsocr_analyze.costs.kv_cache import cache_bytes
from dsocr_analyze.costs.lookup import looked_up
from dsocr_analyze.costs.sections import sections_work
from dsocr_analyze.costs.sums import combined, multiplied, work_of
from dsocr_analyze.dtypes import BFLOAT16, Dtype
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.kernels import CUDA, Work

if TYPE_CHECKING:
    from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions
    from dsocr_analyze.architectures.ocr_family.network import Network

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

_LARGEST: Final = 2**63 - 1

_HEADROOM: Final = 4
"""Intermediate sums exceed results, and some costs shrink with size, by less than this factor."""


def page_totals(
    network: Network,
    dimensions: RelativeDimensions,
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
        dimensions: Its dimensions.
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
        network.check_flash(dimensions)
    evaluation = _Evaluation(network, dimensions, dtype, flash_attention)
    if lengths and lengths != {0} and evaluation.exceeds_int64(pages):
        pages = {
            name: values if isinstance(values, int) else values.astype(object)
            for name, values in pages.items()
        }
    totals = evaluation.totals(**pages)
    check_positions(dimensions.decoder, totals.seq_len, pages["max_new_tokens"])
    return totals


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


class _Evaluation:
    """The composition for one model, type and attention."""

    def __init__(
        self, network: Network, dimensions: RelativeDimensions, dtype: Dtype, flash: bool
    ) -> None:
        self.network = network
        self.dimensions = dimensions
        self.dtype = dtype
        self.flash = flash
        self.d = dimensions.decoder.hidden_size

    def exceeds_int64(self, pages: dict[str, Any]) -> bool:
        """Whether int64 might overflow, judged from the largest value of every argument at once."""
        most = {name: largest(values) for name, values in pages.items()}
        bounds = list(self.totals(**most).counts())
        if is_dynamic(self.dimensions.decoder):
            beyond = self.dimensions.decoder.max_position_embeddings + 1
            bounds.extend(self._step(most["batch_size"], beyond))
        return _HEADROOM * max(bounds) > _LARGEST

    def totals(
        self,
        *,
        base_size: Count,
        whole_resolution: Count,
        local_resolution: Count,
        columns: Count,
        rows: Count,
        text_tokens: Count,
        batch_size: Count,
        max_new_tokens: Count,
    ) -> PageTotals:
        """Costs of all pages, from checked arguments."""
        visual = self._visual_tokens(whole_resolution, local_resolution, columns, rows)
        T = visual + text_tokens
        first_look, layout, *vision, seen = looked_up(
            self._views, base_size, whole_resolution, local_resolution, columns, rows
        )
        prompt, held = looked_up(self._prompt, batch_size, T)
        placing = work_of(page_layout(T, visual, self.d, self.dtype))
        pages = multiplied(combined((layout, placing)), batch_size)
        works = {
            stage.name: multiplied(work, batch_size)
            for stage, work in zip(self.network.vision, vision, strict=True)
        }
        works[PREFILL.name] = combined((prompt, pages, first_look))
        prefill = combined(works.values())
        works[DECODE.name], steps = self._decode(batch_size, T, max_new_tokens - 1)
        decoder = self.dimensions.decoder
        return PageTotals(
            stages={stage.name: works[stage.name] for stage in self.network.stages},
            prefill=prefill,
            decode_step=works[DECODE.name],
            batch=combined((prefill, steps)),
            visual_tokens=visual,
            seq_len=T,
            kv_cache_bytes=cache_bytes(
                batch_size,
                T + kept_tokens(decoder, max_new_tokens - 1),
                decoder.layers,
                cache_width(decoder, flash=self.flash),
                self.dtype.nbytes,
            ),
            decode_step_bytes_read_expected=self._expected(batch_size, works[DECODE.name]),
            peak_activation_bytes=peak_of(
                ViewPeaks(*seen),
                PromptPeaks(*held),
                batch_size,
                batch_size * T * self.d * self.dtype.nbytes,
            ),
        )

    def _expected(self, B: Count, step: Work) -> Any:
        """Bytes a decode step reads if it touches the expected number of experts."""
        experts = experts_touched(B, self.dimensions, self.dtype)
        return step.bytes_read + (0.0 if experts is None else experts.bytes_beyond_counted)

    def _visual_tokens(self, whole: Count, local: Count, columns: Count, rows: Count) -> Count:
        """Tokens of the global view and, for cropped pages, of the local views."""
        tokens = self.network.whole_tokens(token_side(whole, self.dimensions.sam))
        is_cut = 1 * (columns * rows > 1)
        if is_nothing(is_cut):
            return tokens
        side = token_side(local, self.dimensions.sam)
        return tokens + is_cut * self.network.local_tokens(side, columns, rows)

    def _views(
        self, base: Count, whole: Count, local: Count, columns: Count, rows: Count
    ) -> list[Any]:
        """Everything that depends only on a page's views.

        Returns:
            The first check of the pixels (once per batch), the layout, the vision stages, and the
            bytes they hold.
        """
        sam, dtype = self.dimensions.sam, self.dtype
        N = columns * rows
        is_cut = 1 * (N > 1)
        look = work_of(pixel_sum(1, whole, dtype))
        calls = [self._vision(1, whole)]
        layout = [
            work_of(self.network.whole_layout(token_side(whole, sam), self.dimensions, dtype)),
            multiplied(work_of(blank_sum(base)), 1 - is_cut),
        ]
        if not is_nothing(is_cut):
            calls.append([multiplied(work, is_cut) for work in self._vision(N, local)])
            side = token_side(local, sam)
            picture = self.network.local_layout(columns, rows, side, self.dimensions, dtype)
            layout.append(multiplied(work_of((*picture, *pixel_sum(N, local, dtype))), is_cut))
        vision = (combined(works) for works in zip(*calls, strict=True))
        held = view_peaks(self.network, self.dimensions, dtype, whole, local, columns, rows)
        return [look, combined(layout), *vision, held]

    def _vision(self, N: Count, R: Count) -> list[Work]:
        """Work of the vision stages in one call on N views."""
        sections = self.network.sections(N, R, self.dimensions, self.dtype, CUDA)
        return [sections_work(sections[stage]) for stage in self.network.vision]

    def _prompt(self, B: Count, T: Count) -> list[Any]:
        """Work of a prompt in the decoder, and the bytes it holds."""
        decoder = self.dimensions.decoder
        return [
            prefill_work(B, T, self.dimensions, self.dtype, flash=self.flash),
            prompt_peaks(decoder, self.dtype, B, T, flash=self.flash),
        ]

    def _step(self, B: Count, cached: Count) -> Work:
        return decode_work(B, cached, self.dimensions, self.dtype, flash=self.flash)

    def _decode(self, B: Count, T: Count, steps: Count) -> tuple[Work, Work]:
        """Work of one step over T cached tokens, and of `steps` steps starting there.

        A step is affine in the cache's length, except with "dynamic" rotary positions, and until a
        sliding window is full.
        """
        if is_dynamic(self.dimensions.decoder):
            (step,) = looked_up(lambda *bt: [self._step(*bt)], B, T)
            return step, decode_steps_work(
                B, T, steps, self.dimensions, self.dtype, flash=self.flash
            )
        decoder = self.dimensions.decoder
        base, slope = looked_up(self._affine, B)
        growing = kept_tokens(decoder, steps)
        lengths = growing * T + growing * (growing - 1) // 2
        parts = [multiplied(base, growing), multiplied(slope, lengths)]
        if decoder.sliding_window is not None:
            full, more = looked_up(self._affine_when_full, B)
            others = T + decoder.sliding_window - 1
            rest = steps - growing
            parts += [multiplied(full, rest), multiplied(more, rest * others)]
        return combined((base, multiplied(slope, T))), combined(parts)

    def _affine(self, B: Count) -> list[Work]:
        """Work of a step over an empty cache, and the work added per cached token."""
        base = self._step(B, 0)
        return [base, combined((self._step(B, 1), multiplied(base, -1)))]

    def _affine_when_full(self, B: Count) -> list[Work]:
        """The same for steps that overwrite a token; the cache length excludes that token."""
        base, next_one = (
            decode_work(B, cached, self.dimensions, self.dtype, flash=self.flash, overwrites=True)
            for cached in (0, 1)
        )
        return [base, combined((next_one, multiplied(base, -1)))]
