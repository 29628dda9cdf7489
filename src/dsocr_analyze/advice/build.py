"""The advice for a page: every mode's geometry, tokens, cost and published figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import msgspec

from dsocr_analyze.advice.document import (
    AdviceDocument,
    Cost,
    Density,
    ModeAdvice,
    Requirements,
    Seen,
    TextCost,
    Verdict,
)
from dsocr_analyze.advice.published import PublishedAccuracy, published_accuracy
from dsocr_analyze.analytic import attention_name, page_figures
from dsocr_analyze.architectures.views import PageInViews
from dsocr_analyze.columns.setting import opening_of
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.hardware.fit import memory_need
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.names import did_you_mean, in_any_case
from dsocr_analyze.report.opening import NO_OPTIONS, Options
from dsocr_analyze.timing.prediction import TimeEntry
from dsocr_analyze.workload import Mode, Workload
from dsocr_analyze.workload.workload import position_warnings

__all__ = ["DEFAULT_NEW_TOKENS", "PageAsked", "advise"]

_DEFAULT_TEXT_TOKENS: Final = (600, 1000, 2000, 4000)
"""Text tokens per page to show if the caller gives none."""

DEFAULT_NEW_TOKENS: Final = 1024
"""Tokens to generate if neither they nor text tokens are given."""

_LEAST_DPI, _MOST_DPI = 1, 100_000

_NOTES: Final = (
    "effective resolution: that of the finest vision call in its coarser direction, at most the"
    " page's own",
    "compression: text tokens on the page per vision token from the encoder; the prompt also"
    " has newlines and separators",
)
_NO_DPI: Final = "the page's own resolution is unknown, so scales are shown instead of dpi"
_PUBLISHED_FOR: Final = (
    "published figures are for the published checkpoint; none are known for other weights"
)


@dataclass(frozen=True)
class PageAsked:
    """A page and its workload.

    Attributes:
        size: Width and height in pixels.
        dpi: Pixels per inch of the page; None if unknown.
        text_tokens: Prompt tokens that are not visual; None for the usual prompt's.
        max_new_tokens: Tokens to generate. None for one per text token in `holds` and the end
            token, as far as the decoder's positions go, or `DEFAULT_NEW_TOKENS` without `holds`.
        batch_size: Equal pages per batch.
        holds: Numbers of text tokens that the page may contain; None for 600 to 4,000.
        kind: Kind of document, one of those with published figures; None for no particular one.
    """

    size: tuple[int, int]
    dpi: Fraction | None = None
    text_tokens: int | None = None
    max_new_tokens: int | None = None
    batch_size: int = 1
    holds: tuple[int, ...] | None = None
    kind: str | None = None

    @property
    def texts(self) -> tuple[int, ...]:
        """Numbers of text tokens that the page may contain."""
        return self.holds or _DEFAULT_TEXT_TOKENS

    @property
    def is_written_out(self) -> bool:
        """Whether the number of new tokens follows from the text."""
        return self.max_new_tokens is None and bool(self.holds)

    @property
    def new_tokens(self) -> int:
        """Tokens to generate if they do not follow from the text."""
        return DEFAULT_NEW_TOKENS if self.max_new_tokens is None else self.max_new_tokens


TimeOf = Callable[[Workload], tuple[TimeEntry, ...]]
Costed = Callable[[Workload, int], TextCost]


def advise(
    directory: ModelDirectory,
    page: PageAsked,
    modes: Sequence[Mode],
    *,
    wanted: Requirements | None = None,
    dtype: str = "bfloat16",
    flash_attention: bool = False,
    time_of: TimeOf | None = None,
    options: Options = NO_OPTIONS,
) -> AdviceDocument:
    """Compare modes for a page, with the closed forms.

    Args:
        directory: The model's directory; its code is neither imported nor executed.
        page: The page and its workload.
        modes: The modes.
        wanted: Requirements for a mode.
        dtype: Type of weights and activations.
        flash_attention: FlashAttention instead of the decoder's eager attention.
        time_of: From a workload to its predicted seconds; None for no prediction.
        options: Options of the command line, if there is one.

    Raises:
        WorkloadError: A size or length is out of range, a minimum resolution is given for a
            page of unknown resolution, or there are no published figures for the kind of document.
        ConfigError: The config describes something without a closed form.
    """
    architecture = directory.architecture
    _check(page, wanted)
    published = published_accuracy(architecture.name)
    kind = None if page.kind is None else _kind(page.kind, published, architecture.title)

    def costed(workload: Workload, text_tokens: int) -> TextCost:
        return TextCost(
            text_tokens=text_tokens,
            max_new_tokens=workload.max_new_tokens,
            cost=_cost(directory, workload, dtype, flash_attention),
            time=() if time_of is None else time_of(workload),
        )

    advice = tuple(_of_mode(directory, page, mode, wanted, published, costed) for mode in modes)
    meeting = tuple(each.mode for each in advice if each.verdict and each.verdict.meets)
    opening = opening_of(directory, architecture, modes, command="advise", options=options)
    return AdviceDocument(
        **msgspec.structs.asdict(opening),
        page=page.size,
        page_dpi=None if page.dpi is None else float(page.dpi),
        kind=kind,
        batch_size=page.batch_size,
        max_new_tokens=max(
            (text.max_new_tokens for each in advice for text in each.by_text_tokens),
            default=page.new_tokens,
        ),
        dtype=dtype_named(dtype).name,
        attention=attention_name(flash_attention=flash_attention),
        modes=advice,
        requirements=wanted,
        modes_that_meet=None if wanted is None else meeting,
        published=published,
        notes=(
            *_NOTES,
            *([] if page.dpi is not None else [_NO_DPI]),
            f"no published accuracy by mode or compression is known for {architecture.title}"
            if published is None
            else _PUBLISHED_FOR,
        ),
    )


def _check(page: PageAsked, wanted: Requirements | None) -> None:
    least = None if wanted is None else wanted.minimum_dpi
    for argument, dpi in (("page_dpi", page.dpi), ("minimum_dpi", least)):
        if dpi is not None and not _LEAST_DPI <= dpi <= _MOST_DPI:
            raise WorkloadError(
                f"{argument} {float(dpi):g} is out of range; give {_LEAST_DPI} to {_MOST_DPI}",
                arguments=[argument],
            )
    most = None if wanted is None else wanted.maximum_compression
    if most is not None and most <= 0:
        raise WorkloadError(
            f"maximum_compression {most:g} is not above 0; give text tokens per vision token, like"
            " 10",
            arguments=["maximum_compression"],
        )
    if least is not None and page.dpi is None:
        raise WorkloadError(
            "minimum_dpi needs the page's own resolution, which pixels alone do not give; give"
            " page_dpi, or a paper like page='a4@200'",
            arguments=["minimum_dpi", "page_dpi", "page"],
        )


def _kind(given: str, published: PublishedAccuracy | None, title: str) -> str:
    """The kind of document with this name, in any case, with hyphens or spaces."""
    if published is None:
        raise WorkloadError(
            f"kind {given!r} has no effect: no published figures are known for {title}; leave it"
            " out",
            arguments=["kind"],
        )
    kinds = published.edit_distance.kinds
    spaced = given.replace("-", " ").replace("_", " ")
    found = in_any_case(spaced, kinds)
    if found is None:
        raise WorkloadError(
            f"kind {given!r} is unknown; {did_you_mean(spaced, kinds)}give {', '.join(kinds)}",
            arguments=["kind"],
        )
    return found


def _of_mode(
    directory: ModelDirectory,
    page: PageAsked,
    mode: Mode,
    wanted: Requirements | None,
    published: PublishedAccuracy | None,
    costed: Costed,
) -> ModeAdvice:
    architecture = directory.architecture
    workload: Workload = architecture.plan(
        page=page.size, base_size=mode.base_size, image_size=mode.image_size,
        crop_mode=mode.crop_mode, text_tokens=page.text_tokens, batch_size=page.batch_size,
        max_new_tokens=page.new_tokens,
    )  # fmt: skip
    positions = directory.dimensions().max_positions
    # The last token takes no position: no decode step reads it.
    most = max(1, positions - workload.seq_len + 1)
    texts = tuple(
        costed(replace(workload, max_new_tokens=min(each + 1, most)), each)
        for each in (page.texts if page.is_written_out else ())
    )
    longest = max(texts, key=lambda text: text.text_tokens) if texts else costed(workload, 0)
    workload = replace(workload, max_new_tokens=longest.max_new_tokens)
    shown = architecture.forms.crop_grids.page_in_views(workload)
    scale = min(Fraction(1), max(min(_scales(each, page.size)) for each in shown))
    effective_dpi = None if page.dpi is None else float(page.dpi * scale)
    vision_tokens = sum(each.tokens for each in shown)
    densities = tuple(
        _density(published, mode.name, tokens, vision_tokens, workload) for tokens in page.texts
    )
    return ModeAdvice(
        mode=mode.name,
        base_size=mode.base_size,
        image_size=mode.image_size,
        crop_mode=mode.crop_mode,
        grid=workload.grid,
        seen=tuple(_seen(each, page) for each in shown),
        effective_scale=float(scale),
        effective_dpi=effective_dpi,
        vision_tokens=vision_tokens,
        visual_tokens=workload.visual_tokens,
        seq_len=workload.seq_len,
        cost=longest.cost,
        time=longest.time,
        by_text_tokens=texts,
        densities=densities,
        edit_distances=None if published is None else published.edit_distance.modes.get(mode.name),
        verdict=None if wanted is None else _verdict(wanted, effective_dpi, densities),
        notes=(*architecture.notes_of(workload), *position_warnings(workload, positions)),
    )


def _scales(shown: PageInViews, page: tuple[int, int]) -> tuple[Fraction, Fraction]:
    """Pixels of the views per pixel of the page, horizontally and vertically."""
    return Fraction(shown.content[0], page[0]), Fraction(shown.content[1], page[1])


def _seen(shown: PageInViews, page: PageAsked) -> Seen:
    across, down = _scales(shown, page.size)
    return Seen(
        views=shown.views,
        resolution=shown.resolution,
        content=shown.content,
        horizontal_scale=float(across),
        vertical_scale=float(down),
        horizontal_dpi=None if page.dpi is None else float(page.dpi * across),
        vertical_dpi=None if page.dpi is None else float(page.dpi * down),
    )


def _density(
    published: PublishedAccuracy | None,
    mode: str,
    text_tokens: int,
    vision_tokens: int,
    workload: Workload,
) -> Density:
    none = None, "none for this model"
    row, lack = none if published is None else published.precision.at(mode, text_tokens)
    return Density(
        text_tokens=text_tokens,
        compression=text_tokens / vision_tokens,
        prompt_compression=text_tokens / workload.visual_tokens,
        published=row,
        lack=lack,
    )


def _cost(directory: ModelDirectory, workload: Workload, dtype: str, flash_attention: bool) -> Cost:
    figures = page_figures(directory, workload, dtype=dtype, flash_attention=flash_attention)
    batch, memory, pages = figures.batch, figures.memory, workload.pages
    need = memory_need(
        directory.architecture, directory.dimensions(), workload, dtype=dtype_named(dtype),
        flash_attention=flash_attention,
    )  # fmt: skip
    return Cost(
        prefill_pass_flops=figures.prefill_pass.flops,
        page_flops=batch.flops / pages,
        page_bytes=batch.bytes_read / pages + batch.bytes_written / pages,
        weights_bytes=memory.weights_bytes,
        kv_cache_bytes=memory.kv_cache_bytes,
        peak_activation_bytes=memory.peak.nbytes,
        memory_bytes=need.total_bytes,
    )


def _verdict(wanted: Requirements, dpi: float | None, densities: Sequence[Density]) -> Verdict:
    least, most = wanted.minimum_dpi, wanted.maximum_compression
    densest = max(each.compression for each in densities)
    is_fine = None if least is None or dpi is None else dpi >= least
    is_dense = None if most is None else densest <= most
    meets = False not in (is_fine, is_dense)
    return Verdict(minimum_dpi=is_fine, maximum_compression=is_dense, meets=meets)
