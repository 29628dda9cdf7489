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
from dsocr_analyze.architectures.planning import PageRequest
from dsocr_analyze.columns.setting import opening_of
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.hardware.fit import memory_need
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.names import did_you_mean, in_any_case
from dsocr_analyze.report.document import NO_OPTIONS, Options
from dsocr_analyze.timing.prediction import TimeEntry
from dsocr_analyze.workload import Mode, Workload
from dsocr_analyze.workload.workload import position_warnings

__all__ = ["PageAsked", "advise"]

_DEFAULT_TEXT_TOKENS: Final = (600, 1000, 2000, 4000)
"""Text tokens per page to show if the caller gives none."""

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
    """A page, and what is asked of a mode for it.

    Attributes:
        request: The page and its workload, without sizes of views. Without a number of new tokens,
            one is generated per text token in `holds` and the end token, as far as the decoder's
            positions go.
        dpi: Pixels per inch of the page; None if unknown.
        holds: Numbers of text tokens that the page may contain; None for 600 to 4,000.
        kind: Kind of document, one of those with published figures; None for no particular one.
        minimum_dpi: Lowest effective resolution of the page; None for no limit.
        maximum_compression: Most text tokens per vision token; None for no limit.
    """

    request: PageRequest
    dpi: Fraction | None = None
    holds: tuple[int, ...] | None = None
    kind: str | None = None
    minimum_dpi: float | None = None
    maximum_compression: float | None = None

    @property
    def wanted(self) -> Requirements | None:
        """Requirements for a mode; None without any."""
        least, most = self.minimum_dpi, self.maximum_compression
        wanted = Requirements(minimum_dpi=least, maximum_compression=most)
        return None if least is None and most is None else wanted

    def in_dpi(self, scale: Fraction) -> float | None:
        """A resolution relative to the page's own in pixels per inch; None if that is unknown."""
        return None if self.dpi is None else float(self.dpi * scale)


TimeOf = Callable[[Workload], tuple[TimeEntry, ...]]
Costed = Callable[[Workload, int], TextCost]


def advise(
    directory: ModelDirectory,
    page: PageAsked,
    modes: Sequence[Mode],
    *,
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
    _check(page)
    published = published_accuracy(architecture.name)
    kind = None if page.kind is None else _kind(page.kind, published, architecture.title)
    planned = page.request.workload(architecture)
    assert isinstance(planned, Workload), "every architecture with a name reads pages"

    def costed(workload: Workload, text_tokens: int) -> TextCost:
        return TextCost(
            text_tokens=text_tokens,
            max_new_tokens=workload.max_new_tokens,
            cost=_cost(directory, workload, dtype, flash_attention),
            time=() if time_of is None else time_of(workload),
        )

    advice = tuple(_of_mode(directory, page, planned, mode, published, costed) for mode in modes)
    meeting = tuple(each.mode for each in advice if each.verdict and each.verdict.meets)
    opening = opening_of(directory, architecture, modes, command="advise", options=options)
    return AdviceDocument(
        **msgspec.structs.asdict(opening),
        page=planned.page,
        page_dpi=page.in_dpi(Fraction(1)),
        kind=kind,
        batch_size=planned.batch_size,
        max_new_tokens=max(
            (text.max_new_tokens for each in advice for text in each.by_text_tokens),
            default=planned.max_new_tokens,
        ),
        dtype=dtype_named(dtype).name,
        attention=attention_name(flash_attention=flash_attention),
        modes=advice,
        requirements=page.wanted,
        modes_that_meet=None if page.wanted is None else meeting,
        published=published,
        notes=(
            *_NOTES,
            *([] if page.dpi is not None else [_NO_DPI]),
            f"no published accuracy by mode or compression is known for {architecture.title}"
            if published is None
            else _PUBLISHED_FOR,
        ),
    )


def _check(page: PageAsked) -> None:
    least, most = page.minimum_dpi, page.maximum_compression
    for argument, dpi in (("page_dpi", page.dpi), ("minimum_dpi", least)):
        if dpi is not None and not _LEAST_DPI <= dpi <= _MOST_DPI:
            raise WorkloadError(
                f"{argument} {float(dpi):g} is out of range; give {_LEAST_DPI} to {_MOST_DPI}",
                arguments=[argument],
            )
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
    planned: Workload,
    mode: Mode,
    published: PublishedAccuracy | None,
    costed: Costed,
) -> ModeAdvice:
    """The advice on a mode, for the page as it is planned in the architecture's own."""
    architecture, texts = directory.architecture, page.holds or _DEFAULT_TEXT_TOKENS
    workload: Workload = architecture.plan(
        page=planned.page, base_size=mode.base_size, image_size=mode.image_size,
        crop_mode=mode.crop_mode, text_tokens=planned.text_tokens, batch_size=planned.batch_size,
        max_new_tokens=planned.max_new_tokens,
    )  # fmt: skip
    positions = directory.dimensions().max_positions
    # The last token takes no position: no decode step reads it.
    most = max(1, positions - workload.seq_len + 1)
    is_written_out = page.holds and page.request.max_new_tokens is None
    by_text = tuple(
        costed(replace(workload, max_new_tokens=min(each + 1, most)), each)
        for each in (texts if is_written_out else ())
    )
    longest = max(by_text, key=lambda text: text.text_tokens) if by_text else costed(workload, 0)
    workload = replace(workload, max_new_tokens=longest.max_new_tokens)
    shown = architecture.forms.crop_grids.page_in_views(workload)
    scales = [tuple(map(Fraction, each.content, planned.page)) for each in shown]
    scale = min(Fraction(1), max(map(min, scales)))
    seen = tuple(
        Seen(
            views=each.views, resolution=each.resolution, content=each.content,
            horizontal_scale=float(across), vertical_scale=float(down),
            horizontal_dpi=page.in_dpi(across), vertical_dpi=page.in_dpi(down),
        )
        for each, (across, down) in zip(shown, scales, strict=True)
    )  # fmt: skip
    vision_tokens = sum(each.tokens for each in shown)
    rows = [
        (None, "none for this model") if published is None
        else published.precision.at(mode.name, each)
        for each in texts
    ]  # fmt: skip
    densities = tuple(
        Density(
            text_tokens=each, compression=each / vision_tokens,
            prompt_compression=each / workload.visual_tokens, published=row, lack=lack,
        )
        for each, (row, lack) in zip(texts, rows, strict=True)
    )  # fmt: skip
    return ModeAdvice(
        mode=mode.name,
        base_size=mode.base_size,
        image_size=mode.image_size,
        crop_mode=mode.crop_mode,
        grid=workload.grid,
        seen=seen,
        effective_scale=float(scale),
        effective_dpi=page.in_dpi(scale),
        vision_tokens=vision_tokens,
        visual_tokens=workload.visual_tokens,
        seq_len=workload.seq_len,
        cost=longest.cost,
        time=longest.time,
        by_text_tokens=by_text,
        densities=densities,
        edit_distances=None if published is None else published.edit_distance.modes.get(mode.name),
        verdict=_verdict(page, page.in_dpi(scale), densities),
        notes=(*architecture.notes_of(workload), *position_warnings(workload, positions)),
    )


def _cost(directory: ModelDirectory, workload: Workload, dtype: str, flash_attention: bool) -> Cost:
    figures = page_figures(directory, workload, dtype=dtype, flash_attention=flash_attention)
    batch, memory, pages = figures.batch, figures.memory, workload.pages
    return Cost(
        prefill_pass_flops=figures.prefill_pass.flops,
        page_flops=batch.flops / pages,
        page_bytes=batch.bytes_read / pages + batch.bytes_written / pages,
        weights_bytes=memory.weights_bytes,
        kv_cache_bytes=memory.kv_cache_bytes,
        peak_activation_bytes=memory.peak.nbytes,
        memory_bytes=memory_need(
            directory.architecture, directory.dimensions(), workload, dtype=dtype_named(dtype),
            flash_attention=flash_attention,
        ).total_bytes,
    )  # fmt: skip


def _verdict(page: PageAsked, dpi: float | None, densities: Sequence[Density]) -> Verdict | None:
    least, most = page.minimum_dpi, page.maximum_compression
    is_fine = None if least is None or dpi is None else dpi >= least
    is_dense = None if most is None else max(each.compression for each in densities) <= most
    meets = False not in (is_fine, is_dense)
    verdict = Verdict(minimum_dpi=is_fine, maximum_compression=is_dense, meets=meets)
    return None if page.wanted is None else verdict
