"""The advice for a page as a JSON document, and the published accuracy that it quotes."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Final

from msgspec import Struct

from dsocr_analyze.archive.setting import CountOpening, ModeDocument
from dsocr_analyze.package_data import package_toml
from dsocr_analyze.timing import TimeEntry

# --- published accuracy --------------------------------------------------------------------------

ALL_KINDS: Final = "overall"
"""Key of all kinds of document together."""


class PrecisionRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published precision of a mode on pages in a range of text tokens.

    Attributes:
        mode: The mode.
        vision_tokens: Tokens from the encoder, without newlines and separators.
        text_tokens: Fewest and most text tokens of the pages.
        precision_percent: Precision.
        compression: Text tokens per vision token, over all pages.
        pages: Number of pages.
    """

    mode: str
    vision_tokens: int
    text_tokens: tuple[int, int]
    precision_percent: float
    compression: float
    pages: int


class PublishedPrecision(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published table of precision.

    Attributes:
        table: The table in the source.
        measures: What was measured.
        limits: Limits of the figures.
        rows: Its figures.
    """

    table: str
    measures: str
    limits: tuple[str, ...]
    rows: tuple[PrecisionRow, ...]

    def at(self, mode: str, text_tokens: int) -> PrecisionRow | None:
        """The row for a mode and a number of text tokens, if there is one.

        Ranges include their lower bound, and the last its upper bound.
        """
        rows = [row for row in self.rows if row.mode == mode]
        within = (each for each in rows if each.text_tokens[0] <= text_tokens < each.text_tokens[1])
        last = (each for each in rows[-1:] if each.text_tokens[1] == text_tokens)
        return next(chain(within, last), None)


class EditDistances(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published edit distances of a mode.

    Attributes:
        tokens: Vision tokens per page.
        english: English pages: `overall`, and by part: `text`, `formula`, `table`, reading `order`.
        chinese: The same for Chinese pages.
        kinds: Overall distance by kind of document; `overall` for all.
    """

    tokens: str
    english: Mapping[str, float]
    chinese: Mapping[str, float]
    kinds: Mapping[str, float]


class PublishedDistances(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published tables of edit distances.

    Attributes:
        tables: The tables in the source.
        measures: What was measured.
        limits: Limits of the figures.
        text_tokens: Fewest and most text tokens of a page, by kind of document, where published.
        modes: The figures, by mode.
    """

    tables: str
    measures: str
    limits: tuple[str, ...]
    text_tokens: Mapping[str, tuple[int, int]]
    modes: Mapping[str, EditDistances]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of document with figures, in the order of the source."""
        found = dict.fromkeys(kind for each in self.modes.values() for kind in each.kinds)
        return tuple(kind for kind in found if kind != ALL_KINDS)


class PublishedAccuracy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's published accuracy.

    Attributes:
        title: Title, authors and year of the source.
        source: Where to find it.
        precision: Precision by compression.
        edit_distance: Edit distance by mode.
    """

    title: str
    source: str
    precision: PublishedPrecision
    edit_distance: PublishedDistances


@cache
def published_figures() -> Mapping[str, PublishedAccuracy]:
    """Published accuracy by architecture, where a source is known."""
    return package_toml(__package__, "published.toml", dict[str, PublishedAccuracy])


def kinds_of_document() -> tuple[str, ...]:
    """Every kind of document with figures for some architecture."""
    return tuple(
        dict.fromkeys(
            kind for each in published_figures().values() for kind in each.edit_distance.kinds
        )
    )


def published_text_tokens(kind: str) -> tuple[int, int] | None:
    """Fewest and most text tokens of a page of some kind, if that is published."""
    ranges = (each.edit_distance.text_tokens.get(kind) for each in published_figures().values())
    return next(filter(None, ranges), None)


# --- the document --------------------------------------------------------------------------------


class Seen(Struct, frozen=True, kw_only=True):
    """The page as seen in the views of one vision call.

    Attributes:
        views: Number of views: one, or tiles that show the page together.
        resolution: Pixels per side of a view.
        content: Width and height of the page in all views, in pixels; the rest is padding.
        horizontal_scale: Pixels of the views per pixel of the page; above 1 it is enlarged.
        vertical_scale: The same, vertically.
        horizontal_dpi: Pixels of the views per inch of the page; null if unknown.
        vertical_dpi: The same, vertically.
    """

    views: int
    resolution: int
    content: tuple[int, int]
    horizontal_scale: float
    vertical_scale: float
    horizontal_dpi: float | None
    vertical_dpi: float | None

    @property
    def text(self) -> str:
        """Horizontal x vertical fineness."""
        across = fineness(self.horizontal_scale, self.horizontal_dpi)
        return f"{across} x {fineness(self.vertical_scale, self.vertical_dpi)}"


def fineness(scale: float, dpi: float | None) -> str:
    """Pixels per inch, or if unknown the scale."""
    return f"{scale:.3f}" if dpi is None else f"{dpi:.1f}"


class Density(Struct, frozen=True, kw_only=True):
    """A page's text tokens relative to the tokens that represent it.

    Attributes:
        text_tokens: Tokens of the text on the page.
        compression: Text tokens per vision token, as in published figures.
        prompt_compression: Text tokens per visual token of the prompt, newlines and separators
            included.
        published: Published figure for this mode and number of text tokens, if there is one.
    """

    text_tokens: int
    compression: float
    prompt_compression: float
    published: PrecisionRow | None


class Cost(Struct, frozen=True, kw_only=True):
    """The cost of the batch in a mode.

    Attributes:
        prefill_pass_flops: FLOPs of the batch's prefill pass.
        page_flops: A page's share of the batch's FLOPs, decode steps included.
        page_bytes: The same for bytes read and written.
        weights_bytes: All parameters.
        kv_cache_bytes: KV cache of the batch at the end.
        peak_activation_bytes: Peak of live tensors in the prefill pass, without weights and inputs.
        memory_bytes: Weights plus the larger peak, of the prefill pass or the last decode step, if
            all pages prefill at once.
    """

    prefill_pass_flops: int
    page_flops: float
    page_bytes: float
    weights_bytes: int
    kv_cache_bytes: int
    peak_activation_bytes: int
    memory_bytes: int


class TextCost(Struct, frozen=True, kw_only=True):
    """The cost of the batch if every page holds some text that the model writes out.

    Attributes:
        text_tokens: Tokens of the text on the page.
        max_new_tokens: Tokens generated per page: one per text token and the end token, or fewer if
            a limit was given or the prompt leaves fewer of the decoder's max_position_embeddings.
        cost: Cost of the batch.
        time: Predicted seconds, one entry per GPU and runtime.
    """

    text_tokens: int
    max_new_tokens: int
    cost: Cost
    time: tuple[TimeEntry, ...]

    @property
    def has_room(self) -> bool:
        """Whether text and end token are generated, so that the page is not cut off."""
        return self.max_new_tokens > self.text_tokens


class ModeVerdict(Struct, frozen=True, kw_only=True):
    """Whether a mode meets the requirements; null for one that was not given.

    Attributes:
        minimum_dpi: Whether the effective resolution is high enough.
        maximum_compression: Whether the compression is low enough for all numbers of text tokens.
        meets: Whether it meets all.
    """

    minimum_dpi: bool | None
    maximum_compression: bool | None
    meets: bool


class ModeAdvice(ModeDocument, frozen=True, kw_only=True):
    """A mode's figures for the page.

    Attributes:
        mode: Its name, or sizes.
        crop_mode: Whether the mode cuts pages.
        grid: Columns and rows of tiles; [1, 1] for none.
        seen: The page in each vision call: tiles first, if there are any.
        effective_scale: Pixels of the views per pixel of the page, of the finest vision call in the
            coarser direction; at most 1, since enlarging adds no detail.
        effective_dpi: The same in pixels per inch; null if unknown.
        vision_tokens: Tokens from the encoder, without newlines and separators.
        visual_tokens: Tokens of the page in the prompt.
        seq_len: Tokens of the prompt.
        cost: Cost of the batch; if it depends on the text, of the longest.
        time: Predicted seconds of the same, one entry per GPU and runtime.
        by_text_tokens: Cost and seconds by number of text tokens; empty if new tokens do not follow
            from the text.
        densities: One entry per number of text tokens.
        edit_distances: Published edit distances of this mode, if there are any.
        verdict: Whether it meets the requirements; null without any.
        notes: Notes on its figures.
    """

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
    verdict: ModeVerdict | None
    notes: tuple[str, ...]

    @property
    def cases(self) -> Sequence["ModeAdvice | TextCost"]:
        """What has a cost: each number of text tokens, or the mode."""
        return self.by_text_tokens or (self,)


class Requirements(Struct, frozen=True, kw_only=True):
    """Requirements for a mode.

    Attributes:
        minimum_dpi: Lowest effective resolution; null for any.
        maximum_compression: Most text tokens per vision token; null for any.
    """

    minimum_dpi: float | None
    maximum_compression: float | None


class KindChoice(Struct, frozen=True, kw_only=True):
    """What published edit distances say for a kind of document.

    Attributes:
        kind: The kind; `overall` for all together.
        mode: The cheapest mode within the margin of the best.
        good: The modes within the margin, the cheapest first.
        distances: Edit distances by mode, the cheapest mode first.
    """

    kind: str
    mode: str
    good: tuple[str, ...]
    distances: Mapping[str, float]

    @property
    def is_decided(self) -> bool:
        """Whether a mode is worse than the best by more than the margin."""
        return len(self.good) < len(self.distances)

    def rejected(self, modes: Sequence[str]) -> list[str]:
        """Those of some modes that are worse than the best by more than the margin."""
        return [mode for mode in modes if mode in self.distances and mode not in self.good]


class Recommendation(Struct, frozen=True, kw_only=True):
    """The mode to choose, and why.

    Attributes:
        mode: Its name; null if that depends on the kind of document, or nothing speaks for one.
        margin: Edit distances that differ by no more do not decide.
        choices: The choice for the kind asked for, or overall and for each kind; empty without
            published figures of two modes.
        figures_decide: Whether published figures rule out a mode.
        kinds_that_decide: Kinds for which a mode that is chosen for another kind is ruled out.
        sentences: The recommendation in words.
    """

    mode: str | None
    margin: float
    choices: tuple[KindChoice, ...]
    figures_decide: bool
    kinds_that_decide: tuple[str, ...]
    sentences: tuple[str, ...]


class AdviceDocument(CountOpening, frozen=True, kw_only=True):
    """A comparison of modes for a page.

    Attributes:
        recommendation: The mode to choose, and why.
        page: Width and height in pixels.
        page_dpi: Pixels per inch of the page; null if unknown.
        kind: Kind of document in published figures, if one was given.
        batch_size: Pages in the batch.
        max_new_tokens: Tokens generated per page, the most in any mode.
        dtype: Type of weights and activations.
        attention: The decoder's attention implementation.
        modes: The compared modes.
        requirements: Requirements for a mode, if any were given.
        modes_that_meet: Names of the modes that meet the requirements; null without any.
        published: Published accuracy, if a source is known.
        notes: Notes on the figures.
    """

    recommendation: Recommendation
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
