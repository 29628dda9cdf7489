"""What is said of each mode for a page, as a JSON document."""

from __future__ import annotations

from msgspec import Struct

from dsocr_analyze.advice.published import EditDistances, PrecisionRow, PublishedAccuracy
from dsocr_analyze.columns.metadata import CountOpening
from dsocr_analyze.report.time_entry import TimeEntry

__all__ = [
    "AdviceDocument",
    "Cost",
    "Density",
    "ModeAdvice",
    "Requirements",
    "Seen",
    "Verdict",
]


class Seen(Struct, frozen=True, kw_only=True):
    """The page as the views of one vision call show it.

    Attributes:
        views: How many show it: one, or tiles that show it together.
        resolution: Pixels a side of each.
        content: Width and height in pixels that the page takes in them all; the rest is padding.
        horizontal_scale: Pixels of the views for each pixel of the page; above 1 it is enlarged.
        vertical_scale: The same from top to bottom.
        horizontal_dpi: Pixels of the views for each inch of the page; null where the page's own
            resolution is unknown.
        vertical_dpi: The same from top to bottom.
    """

    views: int
    resolution: int
    content: tuple[int, int]
    horizontal_scale: float
    vertical_scale: float
    horizontal_dpi: float | None
    vertical_dpi: float | None


class Density(Struct, frozen=True, kw_only=True):
    """A page of so many text tokens against the tokens that stand for it.

    Attributes:
        text_tokens: Tokens of the text on the page.
        compression: Text tokens per vision token, counted as the published figures are.
        prompt_compression: Text tokens per visual token of the prompt, which has newlines and
            separators besides.
        published: Published figure for this mode and so many text tokens; null where there is none.
        lack: Why there is none; empty where there is one.
    """

    text_tokens: int
    compression: float
    prompt_compression: float
    published: PrecisionRow | None
    lack: str


class Cost(Struct, frozen=True, kw_only=True):
    """What the batch costs in a mode.

    Attributes:
        prefill_pass_flops: Of the batch's prefill pass.
        page_flops: One page's share of the whole batch, decode steps included.
        page_bytes: The same of bytes read and written.
        weights_bytes: All parameters.
        kv_cache_bytes: KV cache of the batch at the end.
        peak_activation_bytes: Most bytes of tensors alive at once in the prefill pass, besides
            weights and inputs.
        memory_bytes: Weights and the higher of the two peaks, prefill pass and last decode step,
            where all pages prefill at once.
    """

    prefill_pass_flops: int
    page_flops: float
    page_bytes: float
    weights_bytes: int
    kv_cache_bytes: int
    peak_activation_bytes: int
    memory_bytes: int


class Verdict(Struct, frozen=True, kw_only=True):
    """Whether a mode meets what was asked for; null for what was not.

    Attributes:
        minimum_dpi: Whether the page is seen at least so finely.
        maximum_compression: Whether compression is at most that, at each number of text tokens.
        meets: Whether it meets all that was asked for.
    """

    minimum_dpi: bool | None
    maximum_compression: bool | None
    meets: bool


class ModeAdvice(Struct, frozen=True, kw_only=True):
    """A mode, for the page.

    Attributes:
        mode: Its name, or sizes.
        base_size: Pixels a side of the global view in crop mode.
        image_size: Pixels a side of a local view in crop mode, of the only view otherwise.
        crop_mode: Whether the mode cuts pages.
        grid: Columns and rows of tiles; [1, 1] for none.
        seen: The page in each vision call, in their order: tiles first, where there are any.
        effective_scale: The page's pixels as finely as the finest call shows them, in the direction
            in which it shows less; at most 1, since enlarging adds no detail.
        effective_dpi: The same in pixels for each inch; null where the page's own is unknown.
        vision_tokens: Tokens that the encoder yields, without newlines and separators.
        visual_tokens: Tokens of the page in the prompt.
        seq_len: Tokens of the prompt.
        cost: What it costs.
        time: Predicted seconds, one entry per GPU and runtime.
        densities: Pages of several numbers of text tokens.
        edit_distances: Published ones of this mode; null where there are none.
        verdict: Whether it meets what was asked for; null where nothing was.
        notes: What a reader of its figures should know.
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
    densities: tuple[Density, ...]
    edit_distances: EditDistances | None
    verdict: Verdict | None
    notes: tuple[str, ...]


class Requirements(Struct, frozen=True, kw_only=True):
    """What a mode has to meet.

    Attributes:
        minimum_dpi: Least effective resolution of the page; null where that does not matter.
        maximum_compression: Most text tokens per vision token; null where that does not matter.
    """

    minimum_dpi: float | None
    maximum_compression: float | None


class AdviceDocument(CountOpening, frozen=True, kw_only=True):
    """What each mode makes of a page.

    Attributes:
        page: Width and height in pixels.
        page_dpi: Pixels of the page for each inch of it; null where unknown.
        batch_size: Pages of the batch.
        max_new_tokens: Tokens that a page yields.
        dtype: Type of weights and activations.
        attention: The decoder's attention implementation.
        modes: Every mode that was asked about.
        requirements: What a mode has to meet; null where nothing was asked for.
        modes_that_meet: Names of those that meet it, in order; null likewise.
        published: What has been published of accuracy; null where nothing is known to be.
        notes: What a reader should know.
    """

    page: tuple[int, int]
    page_dpi: float | None
    batch_size: int
    max_new_tokens: int
    dtype: str
    attention: str
    modes: tuple[ModeAdvice, ...]
    requirements: Requirements | None
    modes_that_meet: tuple[str, ...] | None
    published: PublishedAccuracy | None
    notes: tuple[str, ...]
