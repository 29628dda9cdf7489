"""The advice for a page: what every mode sees of it and costs, also in tables."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from msgspec.structs import asdict

from dsocr_analyze.analytic import ATTENTION_NAMES, page_figures
from dsocr_analyze.architectures import PageRequest
from dsocr_analyze.archive.advice_document import (
    ALL_KINDS,
    AdviceDocument,
    Cost,
    Density,
    ModeAdvice,
    ModeVerdict,
    PublishedAccuracy,
    Requirements,
    Seen,
    TextCost,
    fineness,
    kinds_of_document,
    published_figures,
    published_text_tokens,
)
from dsocr_analyze.archive.recommendation import recommend
from dsocr_analyze.archive.setting import opening_of
from dsocr_analyze.errors import WorkloadError, did_you_mean, in_any_case
from dsocr_analyze.hardware.fit import memory_need
from dsocr_analyze.kernels import dtype_named
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.report.opening import NO_OPTIONS, Options, model_text
from dsocr_analyze.report.table import (
    Table,
    bytes_text,
    counted,
    exact,
    price_text,
    ratio_text,
    scaled,
)
from dsocr_analyze.timing import TimeEntry, assumptions
from dsocr_analyze.timing.runtimes import served_notes
from dsocr_analyze.workload import Mode, position_warnings

_DEFAULT_TEXT_TOKENS: Final = (600, 1000, 2000, 4000)

_LEAST_DPI, _MOST_DPI = 1, 100_000

_NOTES: Final = (
    "effective resolution: that of the finest vision call in its coarser direction, at most the"
    " page's own",
    "compression: text tokens on the page per vision token from the encoder; the prompt also"
    " has newlines and separators",
)
_NO_DPI: Final = "the page's own resolution is unknown, so scales are shown instead of dpi"
_OF_KIND: Final = (
    "pages of kind {} hold {:,} to {:,} text tokens, as published; the middle of it is counted"
)
_PUBLISHED_FOR: Final = (
    "published figures are for the published checkpoint; none are known for other weights"
)


@dataclass(frozen=True)
class AdviceRequest:
    """A page, and what is asked of a mode for it."""

    request: PageRequest
    """Without sizes of views. One new token per text token in `holds` and the end token are
    generated, as far as positions and its `max_new_tokens` go."""
    dpi: Fraction | None = None
    """Pixels per inch of the page, if known."""
    holds: tuple[int, ...] | None = None
    """Possible numbers of text tokens; None for what is published of the kind."""
    writes_text: bool = True
    """Whether new tokens follow from the text; else, from `request` alone."""
    kind: str | None = None
    """Kind of document."""
    wanted: Requirements | None = None

    def in_dpi(self, scale: Fraction) -> float | None:
        """A share of the page's own resolution in pixels per inch, if that is known."""
        return None if self.dpi is None else float(self.dpi * scale)


def advise(
    directory: ModelDirectory,
    page: AdviceRequest,
    modes: Sequence[Mode],
    *,
    time_of: Callable[[PageRequest], tuple[TimeEntry, ...]] | None = None,
    options: Options = NO_OPTIONS,
) -> AdviceDocument:
    """Compares modes by closed forms; `time_of` predicts a request's seconds.

    Raises:
        WorkloadError: A size or length is out of range, a minimum resolution is given for a page of
            unknown resolution, or the kind of document is unknown.
        ConfigError: The config describes something without a closed form.
    """
    architecture = directory.architecture
    _check(page)
    published = published_figures().get(architecture.name)
    kind = None if page.kind is None else _kind(page.kind)
    of_kind = None if kind is None or page.holds else published_text_tokens(kind)
    if of_kind is not None:
        page = replace(page, holds=(sum(of_kind) // 2,))
    planned = page.request.workload_of_page

    def costed(asked: PageRequest, text_tokens: int) -> TextCost:
        return TextCost(
            text_tokens=text_tokens,
            max_new_tokens=asked.workload_of_page.max_new_tokens,
            cost=_cost(directory, asked),
            time=() if time_of is None else time_of(asked),
        )

    advice = tuple(_of_mode(directory, page, mode, published, costed) for mode in modes)
    meeting = tuple(each.mode for each in advice if each.verdict and each.verdict.meets)
    return AdviceDocument(
        **asdict(opening_of(directory, architecture, modes, command="advise", options=options)),
        recommendation=recommend(architecture, advice, kind=kind, published=published),
        page=planned.page,
        page_dpi=page.in_dpi(Fraction(1)),
        kind=kind,
        batch_size=planned.batch_size,
        max_new_tokens=max(
            (text.max_new_tokens for each in advice for text in each.by_text_tokens),
            default=planned.max_new_tokens,
        ),
        dtype=dtype_named(page.request.dtype).name,
        attention=ATTENTION_NAMES[page.request.flash_attention],
        modes=advice,
        requirements=page.wanted,
        modes_that_meet=None if page.wanted is None else meeting,
        published=published,
        notes=(
            *_NOTES,
            *([] if page.dpi is not None else [_NO_DPI]),
            *([] if of_kind is None else [_OF_KIND.format(kind, *of_kind)]),
            f"no published accuracy by mode or compression is known for {architecture.title}"
            if published is None
            else _PUBLISHED_FOR,
        ),
    )


def _check(page: AdviceRequest) -> None:
    least = None if page.wanted is None else page.wanted.minimum_dpi
    for argument, dpi in (("page_dpi", page.dpi), ("minimum_dpi", least)):
        if dpi is not None and not _LEAST_DPI <= dpi <= _MOST_DPI:
            raise WorkloadError(
                f"{argument} {float(dpi):g} is out of range; give {_LEAST_DPI} to {_MOST_DPI}",
                arguments=[argument],
            )
    if least is not None and page.dpi is None:
        raise WorkloadError(
            "minimum_dpi needs the page's own resolution, which pixels alone do not give; give"
            " page_dpi, or a paper like page='a4@200'",
            arguments=["minimum_dpi", "page_dpi", "page"],
        )


def _kind(given: str) -> str:
    kinds = kinds_of_document()
    spaced = given.replace("-", " ").replace("_", " ")
    if (found := in_any_case(spaced, kinds)) is None:
        raise WorkloadError(
            f"kind {given!r} is unknown; {did_you_mean(spaced, kinds)}give {', '.join(kinds)}",
            arguments=["kind"],
        )
    return found


def _of_mode(
    directory: ModelDirectory,
    page: AdviceRequest,
    mode: Mode,
    published: PublishedAccuracy | None,
    costed: Callable[[PageRequest, int], TextCost],
) -> ModeAdvice:
    architecture, texts = directory.architecture, page.holds or _DEFAULT_TEXT_TOKENS
    asked = replace(
        page.request, base_size=mode.base_size, image_size=mode.image_size, crop_mode=mode.crop_mode
    )
    workload = asked.workload_of_page
    positions = directory.dimensions().decoder.max_position_embeddings
    # The last token takes no position: no decode step reads it.
    most = max(1, min(positions - workload.seq_len + 1, page.request.max_new_tokens or positions))
    by_text = tuple(
        costed(replace(asked, max_new_tokens=min(each + 1, most)), each)
        for each in page.holds or ()
        if page.writes_text
    )
    longest = max(by_text, key=lambda text: text.text_tokens) if by_text else costed(asked, 0)
    workload = replace(workload, max_new_tokens=longest.max_new_tokens)
    shown = architecture.forms.model.page_rule.page_in_views(workload)
    scales = [tuple(map(Fraction, each.content, workload.page)) for each in shown]
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
    densities = tuple(
        Density(
            text_tokens=each, compression=each / vision_tokens,
            prompt_compression=each / workload.visual_tokens,
            published=None if published is None else published.precision.at(mode.name, each),
        )
        for each in texts
    )  # fmt: skip
    hosts = dict.fromkeys(entry.assumptions.host for entry in longest.time)
    return ModeAdvice(
        mode=mode.name,
        base_size=mode.base_size or None,
        image_size=mode.image_size or None,
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
        verdict=None
        if page.wanted is None
        else _verdict(page.wanted, page.in_dpi(scale), densities),
        notes=(
            *architecture.notes_of(workload),
            *position_warnings(workload, positions),
            *(note for host in hosts for note in served_notes(architecture, host, workload)),
        ),
    )


def _cost(directory: ModelDirectory, asked: PageRequest) -> Cost:
    workload, dtype, flash_attention = asked.workload_of_page, asked.dtype, asked.flash_attention
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


def _verdict(wanted: Requirements, dpi: float | None, densities: Sequence[Density]) -> ModeVerdict:
    least, most = wanted.minimum_dpi, wanted.maximum_compression
    is_fine = None if least is None or dpi is None else dpi >= least
    is_dense = None if most is None else max(each.compression for each in densities) <= most
    return ModeVerdict(
        minimum_dpi=is_fine,
        maximum_compression=is_dense,
        meets=False not in (is_fine, is_dense),
    )


# --- for readers ---------------------------------------------------------------------------------


def advice_lines(advice: AdviceDocument) -> Iterator[str]:
    """The recommendation, which modes meet the requirements, and what was counted."""
    yield from advice.recommendation.sentences
    if advice.modes_that_meet is not None:
        most = max(density.text_tokens for density in advice.modes[0].densities)
        yield (
            f"Within the limits, with up to {most:,} text tokens on the page:"
            f" {', '.join(advice.modes_that_meet) or 'no mode'}"
        )
    resolution = "" if advice.page_dpi is None else f" at {round(advice.page_dpi, 1):g} dpi"
    yield "Page of {} x {} pixels{}; {} at a time, {}".format(
        *advice.page, resolution, counted(advice.batch_size, "page"),
        "as many new tokens as the text on it needs" if advice.is_written_out
        else f"{advice.max_new_tokens:,} new tokens",
    )  # fmt: skip
    if advice.is_written_out:
        yield "New tokens: one per text token and the end token" + _cut_off(advice)
    yield f"Ran: {model_text(advice.model)} by the analytic engine"
    yield f"Type {advice.dtype}, {advice.attention} attention"


def _cut_off(advice: AdviceDocument) -> str:
    """Which texts are not written out to their end, and what is generated instead."""
    lacking = [
        (text.text_tokens, f"{text.max_new_tokens:,} in {mode.mode}")
        for mode in advice.modes
        for text in mode.by_text_tokens
        if not text.has_room
    ]
    return "".join(
        f"; a page of {tokens:,} text tokens is cut off after"
        f" {', '.join(fitting for number, fitting in lacking if number == tokens)}"
        for tokens in dict.fromkeys(number for number, _ in lacking)
    )


def advice_notes(advice: AdviceDocument) -> list[str]:
    """Notes for readers, with the limits of published figures."""
    notes = [*advice.notes]
    if (published := advice.published) is not None:
        precision, distance = published.precision, published.edit_distance
        notes += (
            f"published figures: {published.title}, {published.source}",
            *(f"{precision.table}: {limit}" for limit in precision.limits),
            *(f"{distance.tables}: {limit}" for limit in distance.limits),
        )
    notes += [f"{mode.mode}: {note}" for mode in advice.modes for note in mode.notes]
    # The lines above the tables say how many tokens each text takes, and notes what is served.
    known = {note for mode in advice.modes for note in mode.notes} | {
        assumptions.OutputLengths.fixed(text.max_new_tokens).sentence
        for mode in advice.modes
        for text in mode.by_text_tokens
    }
    notes += (
        each
        for mode in advice.modes
        for case in mode.cases
        for entry in case.time
        for each in entry.assumptions.sentences
        if each not in known
    )
    return [each for each in dict.fromkeys(notes) if each not in advice.recommendation.sentences]


def advice_tables(advice: AdviceDocument) -> Iterator[Table]:
    """Edit distances, costs, seconds, resolution and tokens, compression, and precision."""
    modes = advice.modes
    if advice.published is not None and any(mode.edit_distances for mode in modes):
        yield _distances(advice, advice.published)
    labels = ("mode", "text tokens") if advice.is_written_out else ("mode",)
    cases = [(_label(mode, case), mode, case) for mode in modes for case in mode.cases]
    yield Table(
        "Cost",
        (*labels, "prompt tokens", "prefill FLOPs", "FLOPs per page", "KV cache", "memory"),
        tuple(
            (
                *label, exact(mode.seq_len), scaled(case.cost.prefill_pass_flops),
                scaled(case.cost.page_flops), bytes_text(case.cost.kv_cache_bytes),
                bytes_text(case.cost.memory_bytes),
            )
            for label, mode, case in cases
        ),
    )  # fmt: skip
    if any(mode.time for mode in modes):
        yield Table(
            "Predicted seconds, and cost of 1,000 pages",
            (*labels, "GPU and runtime", "at once", "s per page", "pages/s", "per 1,000"),
            tuple(
                (
                    *label, entry.title, str(load.concurrency),
                    ratio_text(load.page_seconds), ratio_text(load.pages_per_second),
                    price_text(load.cost_per_thousand_pages),
                )
                for label, _, case in cases
                for entry in case.time
                for load in entry.throughput
            ),
            label_columns=len(labels) + 1,
        )  # fmt: skip
    unit = "scale" if advice.page_dpi is None else "dpi"
    yield Table(
        f"Effective resolution ({unit}, horizontal x vertical) and vision tokens",
        ("mode", "tiles", "in tiles", "global view", "effective", "tokens", "prompt"),
        tuple(
            (
                mode.mode, "{} x {}".format(*mode.grid) if len(mode.seen) > 1 else "-",
                mode.seen[0].text if len(mode.seen) > 1 else "-", mode.seen[-1].text,
                fineness(mode.effective_scale, mode.effective_dpi),
                exact(mode.vision_tokens), exact(mode.visual_tokens),
            )
            for mode in modes
        ),
        label_columns=2,
    )  # fmt: skip
    yield Table(
        "Compression: text tokens on the page per vision token, and published precision",
        ("mode", *(f"{density.text_tokens:,} tokens" for density in modes[0].densities)),
        tuple((mode.mode, *map(_density, mode.densities)) for mode in modes),
    )  # fmt: skip


def _label(mode: ModeAdvice, case: ModeAdvice | TextCost) -> tuple[str, ...]:
    if not isinstance(case, TextCost):
        return (mode.mode,)
    text = exact(case.text_tokens)
    return (mode.mode, text if case.has_room else f"{exact(case.max_new_tokens)} of {text}")


def _distances(advice: AdviceDocument, published: PublishedAccuracy) -> Table:
    """Of the kind asked for; else of the kinds that decide."""
    found = {mode.mode: mode.edit_distances for mode in advice.modes if mode.edit_distances}
    kinds = [advice.kind] if advice.kind else advice.recommendation.kinds_that_decide
    return Table(
        f"Published {published.edit_distance.measures}; lower is better, 0 is a perfect page",
        ("pages", *found),
        tuple(
            ("all kinds" if kind == ALL_KINDS else kind,
             *(f"{each.kinds[kind]:.3f}" for each in found.values()))
            for kind in (*kinds, ALL_KINDS)
        ),
    )  # fmt: skip


def _density(density: Density) -> str:
    """The compression, and the precision that was published for it."""
    published = density.published
    precision = "" if published is None else f", {published.precision_percent:g} %"
    return f"{density.compression:.1f}x{precision}"
