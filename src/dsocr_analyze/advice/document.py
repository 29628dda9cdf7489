"""The comparison of modes for a page: a JSON document, and its lines and tables for readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import astuple

from dsocr_analyze.advice.published import (
    ALL_KINDS,
    EditDistances,
    PrecisionRow,
    PublishedAccuracy,
)
from dsocr_analyze.columns.setting import CountOpening
from dsocr_analyze.report.opening import model_text
from dsocr_analyze.report.table import Table, bytes_text, exact, price_text, ratio_text, scaled
from dsocr_analyze.timing.assumptions import lengths_sentence
from dsocr_analyze.timing.output_lengths import OutputLengths
from dsocr_analyze.timing.prediction import TimeEntry

__all__ = [
    "AdviceDocument",
    "Cost",
    "Density",
    "ModeAdvice",
    "Requirements",
    "Seen",
    "TextCost",
    "Verdict",
    "advice_lines",
    "advice_notes",
    "advice_tables",
]

_ALL_KINDS: Final = "all kinds"
_ANSWERS: Final = {True: "yes", False: "no", None: "-"}


class Seen(Struct, frozen=True, kw_only=True):
    """The page as seen in the views of one vision call.

    Attributes:
        views: Number of views: one, or tiles that show the page together.
        resolution: Pixels per side of each view.
        content: Width and height of the page in all views together, in pixels; the rest is padding.
        horizontal_scale: Pixels of the views per pixel of the page; above 1 it is enlarged.
        vertical_scale: The same, vertically.
        horizontal_dpi: Pixels of the views per inch of the page; null if the page's resolution is
            unknown.
        vertical_dpi: The same, vertically.
    """

    views: int
    resolution: int
    content: tuple[int, int]
    horizontal_scale: float
    vertical_scale: float
    horizontal_dpi: float | None
    vertical_dpi: float | None


class Density(Struct, frozen=True, kw_only=True):
    """A page's text tokens relative to the tokens that represent it.

    Attributes:
        text_tokens: Tokens of the text on the page.
        compression: Text tokens per vision token, counted as in the published figures.
        prompt_compression: Text tokens per visual token of the prompt, which also has newlines and
            separators.
        published: Published figure for this mode and number of text tokens; null if there is none.
        lack: Why there is no published figure; empty if there is one.
    """

    text_tokens: int
    compression: float
    prompt_compression: float
    published: PrecisionRow | None
    lack: str


class Cost(Struct, frozen=True, kw_only=True):
    """The cost of the batch in a mode.

    Attributes:
        prefill_pass_flops: FLOPs of the batch's prefill pass.
        page_flops: One page's share of the FLOPs of the whole batch, decode steps included.
        page_bytes: The same for bytes read and written.
        weights_bytes: All parameters.
        kv_cache_bytes: KV cache of the batch at the end.
        peak_activation_bytes: Peak bytes of live tensors in the prefill pass, excluding weights and
            inputs.
        memory_bytes: Weights plus the larger of the two peaks, prefill pass and last decode step,
            if all pages prefill at once.
    """

    prefill_pass_flops: int
    page_flops: float
    page_bytes: float
    weights_bytes: int
    kv_cache_bytes: int
    peak_activation_bytes: int
    memory_bytes: int


class TextCost(Struct, frozen=True, kw_only=True):
    """The cost of the batch if every page holds, and the model writes out, some amount of text.

    Attributes:
        text_tokens: Tokens of the text on the page.
        max_new_tokens: Tokens generated per page: one per text token and the end token, or fewer if
            the prompt leaves fewer of the decoder's max_position_embeddings.
        cost: Cost of the batch.
        time: Predicted seconds, one entry per GPU and runtime.
    """

    text_tokens: int
    max_new_tokens: int
    cost: Cost
    time: tuple[TimeEntry, ...]

    @property
    def has_room(self) -> bool:
        """Whether the decoder's positions suffice for the whole text and the end token."""
        return self.max_new_tokens > self.text_tokens


class Verdict(Struct, frozen=True, kw_only=True):
    """Whether a mode meets the requirements; null for a requirement that was not given.

    Attributes:
        minimum_dpi: Whether the effective resolution is high enough.
        maximum_compression: Whether the compression is low enough, at every number of text tokens.
        meets: Whether it meets all requirements.
    """

    minimum_dpi: bool | None
    maximum_compression: bool | None
    meets: bool


class ModeAdvice(Struct, frozen=True, kw_only=True):
    """A mode's figures for the page.

    Attributes:
        mode: Its name, or sizes.
        base_size: Pixels per side of the global view in crop mode.
        image_size: Pixels per side of a local view in crop mode, else of the only view.
        crop_mode: Whether the mode cuts pages.
        grid: Columns and rows of tiles; [1, 1] for none.
        seen: The page in each vision call, in order: tiles first, if there are any.
        effective_scale: Pixels of the views per pixel of the page in the finest vision call, in the
            coarser direction; at most 1, since enlarging adds no detail.
        effective_dpi: The same in pixels per inch; null if the page's resolution is unknown.
        vision_tokens: Tokens from the encoder, without newlines and separators.
        visual_tokens: Tokens of the page in the prompt.
        seq_len: Tokens of the prompt.
        cost: Cost of the batch; if it depends on the text, for the most text tokens.
        time: Predicted seconds for the same, one entry per GPU and runtime.
        by_text_tokens: Cost and seconds for each number of text tokens on the page; empty if the
            number of new tokens does not follow from the text.
        densities: One entry per number of text tokens on the page.
        edit_distances: Published edit distances of this mode; null if there are none.
        verdict: Whether it meets the requirements; null without requirements.
        notes: Notes on its figures.
    """

    mode: str
    base_size: int
    image_size: int
    crop_mode: bool
    grid: tuple[int, int]
    seen: tuple[Seen, ...]
    effective_scale: float
    effective_dpi: float | None
    vision_tokens: int
    visual_tokens: int
    seq_len: int
    cost: Cost
    time: tuple[TimeEntry, ...]
    by_text_tokens: tuple[TextCost, ...]
    densities: tuple[Density, ...]
    edit_distances: EditDistances | None
    verdict: Verdict | None
    notes: tuple[str, ...]

    @property
    def cases(self) -> Sequence[ModeAdvice | TextCost]:
        """What has a cost: each number of text tokens, or the mode if the text does not matter."""
        return self.by_text_tokens or (self,)


class Requirements(Struct, frozen=True, kw_only=True):
    """Requirements for a mode.

    Attributes:
        minimum_dpi: Lowest effective resolution of the page; null for no limit.
        maximum_compression: Most text tokens per vision token; null for no limit.
    """

    minimum_dpi: float | None
    maximum_compression: float | None


class AdviceDocument(CountOpening, frozen=True, kw_only=True):
    """A comparison of modes for a page.

    Attributes:
        page: Width and height in pixels.
        page_dpi: Pixels per inch of the page; null if unknown.
        kind: Kind of document, as named by the published figures; null if none was given.
        batch_size: Pages in the batch.
        max_new_tokens: Tokens generated per page; if they follow from the text, the most in any
            mode.
        dtype: Type of weights and activations.
        attention: The decoder's attention implementation.
        modes: The compared modes.
        requirements: Requirements for a mode; null if none were given.
        modes_that_meet: Names of the modes that meet the requirements, in order; null without
            requirements.
        published: Published accuracy; null if no source is known.
        notes: Notes on the figures.
    """

    page: tuple[int, int]
    page_dpi: float | None
    kind: str | None
    batch_size: int
    max_new_tokens: int
    dtype: str
    attention: str
    modes: tuple[ModeAdvice, ...]
    requirements: Requirements | None
    modes_that_meet: tuple[str, ...] | None
    published: PublishedAccuracy | None
    notes: tuple[str, ...]

    @property
    def is_written_out(self) -> bool:
        """Whether the number of new tokens follows from the text on the page."""
        return any(mode.by_text_tokens for mode in self.modes)


# --- for readers ---------------------------------------------------------------------------------


def advice_lines(advice: AdviceDocument) -> Iterator[str]:
    """What was counted, and which modes meet the requirements."""
    width, height = advice.page
    dpi = (
        "" if advice.page_dpi is None else f" at {advice.page_dpi:.1f}".removesuffix(".0") + " dpi"
    )
    pages = "1 page" if advice.batch_size == 1 else f"{advice.batch_size:,} pages"
    new = f"{advice.max_new_tokens:,} new tokens"
    if advice.is_written_out:
        new = "as many new tokens as the text on it needs"
    yield f"Ran: {model_text(advice.model)} by the analytic engine"
    yield f"Page of {width} x {height} pixels{dpi}; {pages} at a time, {new}"
    if advice.is_written_out:
        yield "New tokens: one per text token and the end token" + _without_room(advice)
    yield f"Type {advice.dtype}, {advice.attention} attention"
    if distances := _distances_for(advice):
        ends = dict.fromkeys((distances[0], distances[-1]))
        said = " to ".join(f"{distance:.3f} ({mode})" for distance, mode in ends)
        yield f"Published edit distance for {advice.kind}: {said}"
    wanted, meeting = advice.requirements, advice.modes_that_meet
    if wanted is not None and meeting is not None:
        yield f"With {_wanted(wanted, advice)}: {', '.join(meeting) or 'no mode'}"


def _without_room(advice: AdviceDocument) -> str:
    """For which text the decoder's positions do not suffice, and how many tokens fit instead."""
    lacking = [
        (text.text_tokens, f"{text.max_new_tokens:,} in {mode.mode}")
        for mode in advice.modes
        for text in mode.by_text_tokens
        if not text.has_room
    ]
    return "".join(
        f"; for {tokens:,} text tokens only what the context leaves:"
        f" {', '.join(fitting for number, fitting in lacking if number == tokens)}"
        for tokens in dict.fromkeys(number for number, _ in lacking)
    )


def _distances_for(advice: AdviceDocument) -> list[tuple[float, str]]:
    """Published edit distances for the kind of document, lowest first, and their modes."""
    return sorted(
        (mode.edit_distances.kinds[advice.kind], mode.mode)
        for mode in advice.modes
        if advice.kind is not None and mode.edit_distances is not None
    )


def _wanted(wanted: Requirements, advice: AdviceDocument) -> str:
    asked = []
    if wanted.minimum_dpi is not None:
        asked.append(f"at least {wanted.minimum_dpi:g} dpi")
    if wanted.maximum_compression is not None:
        most = max(density.text_tokens for density in advice.modes[0].densities)
        asked.append(f"at most {wanted.maximum_compression:g}x at {most:,} text tokens")
    return " and ".join(asked)


def advice_notes(advice: AdviceDocument) -> list[str]:
    """Notes for readers, including the limits of published figures, without duplicates."""
    notes = [*advice.notes]
    published = advice.published
    if published is not None:
        precision, distance = published.precision, published.edit_distance
        notes.append(f"published figures: {published.title}, {published.source}")
        notes += [f"{precision.table}: {limit}" for limit in precision.limits]
        notes += [f"{distance.tables}: {limit}" for limit in distance.limits]
    notes += [f"{mode.mode}: {note}" for mode in advice.modes for note in mode.notes]
    for case in (case for mode in advice.modes for case in mode.cases):
        said = [each for entry in case.time for each in entry.assumptions.sentences]
        if isinstance(case, TextCost):
            # The lines above the tables say how many tokens each text takes.
            known = lengths_sentence(OutputLengths.fixed(case.max_new_tokens))
            said = [each for each in said if each != known]
        notes += said
    return list(dict.fromkeys(notes))


def advice_tables(advice: AdviceDocument) -> list[Table]:
    """Tables of resolution and tokens, costs, seconds, compression and published accuracy."""
    tables = [_resolutions(advice), _costs(advice)]
    if any(mode.time for mode in advice.modes):
        tables.append(_seconds(advice))
    tables.append(_compressions(advice))
    if advice.published is not None:
        tables += [_precisions(advice, advice.published), _distances(advice, advice.published)]
        if advice.kind is None and any(mode.edit_distances for mode in advice.modes):
            tables.append(_kinds(advice))
    if advice.requirements is not None:
        tables.append(_verdicts(advice))
    return tables


def _resolutions(advice: AdviceDocument) -> Table:
    unit = "scale" if advice.page_dpi is None else "dpi"
    rows = tuple(
        (
            mode.mode,
            "-" if mode.grid == (1, 1) else f"{mode.grid[0]} x {mode.grid[1]}",
            _seen_text(mode.seen[0]) if len(mode.seen) > 1 else "-",
            _seen_text(mode.seen[-1]),
            _fineness(mode.effective_scale, mode.effective_dpi),
            exact(mode.vision_tokens),
            exact(mode.visual_tokens),
        )
        for mode in advice.modes
    )
    return Table(
        f"Effective resolution ({unit}, horizontal x vertical) and vision tokens",
        ("mode", "tiles", "in tiles", "global view", "effective", "tokens", "prompt"),
        rows,
        label_columns=2,
    )


def _seen_text(seen: Seen) -> str:
    across = _fineness(seen.horizontal_scale, seen.horizontal_dpi)
    return f"{across} x {_fineness(seen.vertical_scale, seen.vertical_dpi)}"


def _fineness(scale: float, dpi: float | None) -> str:
    return f"{scale:.3f}" if dpi is None else f"{dpi:.1f}"


def _labels(advice: AdviceDocument) -> tuple[str, ...]:
    return ("mode", "text tokens") if advice.is_written_out else ("mode",)


def _label(mode: ModeAdvice, case: ModeAdvice | TextCost) -> tuple[str, ...]:
    if not isinstance(case, TextCost):
        return (mode.mode,)
    text = exact(case.text_tokens)
    return (mode.mode, text if case.has_room else f"{exact(case.max_new_tokens)} of {text}")


def _costs(advice: AdviceDocument) -> Table:
    rows = tuple(
        (*_label(mode, case), exact(mode.seq_len), scaled(case.cost.prefill_pass_flops),
         scaled(case.cost.page_flops), bytes_text(case.cost.kv_cache_bytes),
         bytes_text(case.cost.memory_bytes))
        for mode in advice.modes
        for case in mode.cases
    )  # fmt: skip
    figures = ("prompt tokens", "prefill FLOPs", "FLOPs per page", "KV cache", "memory")
    return Table("Cost", (*_labels(advice), *figures), rows)


def _seconds(advice: AdviceDocument) -> Table:
    labels = _labels(advice)
    rows = tuple(
        (
            *_label(mode, case), entry.gpu, entry.runtime, str(load.concurrency),
            ratio_text(load.page_seconds), ratio_text(load.pages_per_second),
            "-" if load.cost_per_thousand_pages is None
            else price_text(load.cost_per_thousand_pages),
        )
        for mode in advice.modes
        for case in mode.cases
        for entry in case.time
        for load in entry.throughput
    )  # fmt: skip
    return Table(
        "Predicted seconds, and cost of 1,000 pages",
        (*labels, "GPU", "runtime", "at once", "s per page", "pages/s", "per 1,000"),
        rows,
        label_columns=len(labels) + 2,
    )


def _compressions(advice: AdviceDocument) -> Table:
    rows = tuple(
        (mode.mode, *(f"{density.compression:.1f}x" for density in mode.densities))
        for mode in advice.modes
    )
    columns = (f"{density.text_tokens:,} tokens" for density in advice.modes[0].densities)
    return Table("Compression: text tokens on the page per vision token", ("mode", *columns), rows)


def _precisions(advice: AdviceDocument, published: PublishedAccuracy) -> Table:
    rows = []
    for mode in advice.modes:
        if any(density.published for density in mode.densities):
            rows += [(mode.mode, exact(each.text_tokens), _precision(each))
                     for each in mode.densities]  # fmt: skip
        else:
            lacks = dict.fromkeys(density.lack for density in mode.densities)
            rows += [(mode.mode, "all", lack) for lack in lacks]
    title, columns = published.precision.measures, ("mode", "text tokens", "precision")
    return Table(f"Published {title}", columns, tuple(rows), label_columns=3)


def _precision(density: Density) -> str:
    row = density.published
    if row is None:
        return density.lack
    low, high = row.text_tokens
    return (
        f"{row.precision_percent:g} % at {row.compression:g}x ({low:,} to {high:,} tokens,"
        f" {row.pages} pages)"
    )


def _distances(advice: AdviceDocument, published: PublishedAccuracy) -> Table:
    """Both languages side by side, or one kind of document beside all; modes in rows."""
    figures: tuple[str, ...] = ("English", "its text", "Chinese", "its text")
    if advice.kind is not None:
        figures = (advice.kind, _ALL_KINDS)
    rows: list[tuple[str, ...]] = []
    for mode in advice.modes:
        found, cells = mode.edit_distances, ["none published", *("-" for _ in figures)]
        if found is not None:
            values = [at for of in (found.english, found.chinese) for at in (of.overall, of.text)]
            if advice.kind is not None:
                values = [found.kinds[advice.kind], found.kinds[ALL_KINDS]]
            cells = [found.tokens, *(f"{value:.3f}" for value in values)]
        rows.append((mode.mode, *cells))
    title, columns = published.edit_distance.measures, ("mode", "vision tokens", *figures)
    return Table(f"Published {title}", columns, tuple(rows), label_columns=2)


def _kinds(advice: AdviceDocument) -> Table:
    """Kinds of document in rows and modes in columns."""
    by_mode = {each.mode: each.edit_distances.kinds for each in advice.modes if each.edit_distances}
    kinds = dict.fromkeys(kind for each in by_mode.values() for kind in each)
    rows = tuple(
        (
            _ALL_KINDS if kind == ALL_KINDS else kind,
            *(f"{each[kind]:.3f}" for each in by_mode.values()),
        )
        for kind in kinds
    )
    return Table("Published edit distance by kind of document", ("kind", *by_mode), rows)


def _verdicts(advice: AdviceDocument) -> Table:
    rows = tuple(
        (mode.mode, *(_ANSWERS[answer] for answer in astuple(mode.verdict)))
        for mode in advice.modes
        if mode.verdict is not None
    )
    columns = ("mode", "resolution", "compression", "meets all")
    return Table("Requirements", columns, rows, label_columns=4)
