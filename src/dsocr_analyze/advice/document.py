"""The comparison of modes for a page, as a JSON document."""

from __future__ import annotations

from msgspec import Struct

from dsocr_analyze.advice.published import EditDistances, PrecisionRow, PublishedAccuracy
from dsocr_analyze.columns.metadata import CountOpening
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
]


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
