"""The work that a page, a mode and a prompt mean for the model; no torch in this room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from dsocr_analyze.errors import WorkloadError

__all__ = [
    "BOUNDS",
    "IMAGE_TOKEN",
    "LARGEST_COUNT",
    "LARGEST_VIEW",
    "AnyWorkload",
    "Lengths",
    "Mode",
    "PageWorkload",
    "ViewBatch",
    "check_count",
    "position_warnings",
    "text_parts",
]


LARGEST_VIEW: Final = 16_384
LARGEST_COUNT: Final = 1_048_576
"""Most pages in a batch, text tokens or new tokens."""

BOUNDS: Final = {
    "base_size": (64, LARGEST_VIEW, " pixels per side"),  # at least one visual token
    "image_size": (64, LARGEST_VIEW, " pixels per side"),
    "text_tokens": (1, LARGEST_COUNT, " tokens, including BOS"),
    "max_new_tokens": (1, LARGEST_COUNT, " tokens"),
    "batch_size": (1, LARGEST_COUNT, " pages"),
}
"""Least, most and unit of arguments, for a page and for rows of a sweep or a list."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A named setting of three arguments of the vendor's `infer()`.

    Attributes:
        base_size: Pixels per side of the global view in crop mode.
        image_size: Pixels per side of a local view in crop mode, else of the only view.
        crop_mode: Whether the page is cut into local views.
    """

    name: str
    base_size: int
    image_size: int
    crop_mode: bool


@dataclass(frozen=True, slots=True)
class ViewBatch:
    """Square views, of `resolution` pixels per side, in one call of the vision stages."""

    count: int
    resolution: int


@dataclass(frozen=True, slots=True)
class PageWorkload:
    """One page's path through the model; made by `plan_workload`.

    Attributes:
        page: Width and height in pixels.
        base_size: Pixels per side of the global view in crop mode, and of the blank patch in
            place of local views.
        image_size: Pixels per side of a local view in crop mode, else of the only view.
        crop_mode: Whether the page is cut into local views.
        grid: Columns and rows of local views; (1, 1) for none.
        views: One batch per vision call on a page: local views, if any, then the global view.
        visual_tokens: Tokens of the prompt's pages, including newlines and separators.
        text_tokens: The other tokens, including BOS.
        batch_size: Equal prompts.
        max_new_tokens: Generated tokens; the prefill pass yields the first.
        prompt_pages: Equal pages per prompt, each with its own vision calls.
    """

    page: tuple[int, int]
    base_size: int
    image_size: int
    crop_mode: bool
    grid: tuple[int, int]
    views: tuple[ViewBatch, ...]
    visual_tokens: int
    text_tokens: int
    batch_size: int
    max_new_tokens: int
    prompt_pages: int = 1

    @property
    def pages(self) -> int:
        """Pages in the whole batch."""
        return self.batch_size * self.prompt_pages

    @property
    def seq_len(self) -> int:
        """Tokens per prompt."""
        return self.visual_tokens + self.text_tokens

    @property
    def local_views(self) -> ViewBatch | None:
        """Local views; None if the page is not cut."""
        return self.views[0] if len(self.views) == 2 else None

    @property
    def global_view(self) -> ViewBatch:
        """The view of the whole page."""
        return self.views[-1]


@dataclass(frozen=True, slots=True)
class Lengths:
    """The workload of a model that does not read pages.

    Attributes:
        seq_len: Tokens per prompt; 0 without prompts.
        batch_size: Equal prompts.
        max_new_tokens: As of a `PageWorkload`; 0 without decoding.
    """

    seq_len: int
    batch_size: int
    max_new_tokens: int

    @property
    def pages(self) -> int:
        """Prompts in the batch, in place of pages."""
        return self.batch_size


AnyWorkload: TypeAlias = PageWorkload | Lengths
"""The workload of any model: pages, or lengths alone."""


def check_count(argument: str, value: object, least: int, most: int, unit: str) -> None:
    """Raises WorkloadError unless an argument's value is a whole number from `least` to `most`.

    The unit has a leading space.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        wrong = "is not a whole number"
    elif value < least:
        wrong = "is too small"
    elif value > most:
        wrong = "is too large"
    else:
        return
    raise WorkloadError(
        f"{argument} {value!r} {wrong}; give {least} to {most}{unit}", arguments=[argument]
    )


def position_warnings(workload: PageWorkload, max_positions: int) -> list[str]:
    """Warnings about a workload beyond the positions that the decoder was trained for."""
    longest = workload.seq_len + workload.max_new_tokens - 1
    if workload.seq_len > max_positions:
        return [
            f"the sequence of {workload.seq_len} tokens is longer than the decoder's "
            f"max_position_embeddings, {max_positions}"
        ]
    if longest > max_positions:
        return [
            f"{workload.seq_len} prompt tokens and {workload.max_new_tokens} new ones reach "
            f"{longest} positions, beyond the decoder's max_position_embeddings, "
            f"{max_positions}; at most {max_positions - workload.seq_len + 1} "
            "new tokens fit"
        ]
    return []


# --- prompts ---------------------------------------------------------------------------------


IMAGE_TOKEN: Final = "<image>"
"""Placeholder for the page in a prompt."""


def text_parts(prompt: str) -> list[str]:
    """The texts to encode apart and without special tokens, after BOS.

    White space at the ends is stripped, as in `format_messages` (`modeling_deepseekocr.py`).
    """
    return prompt.strip().split(IMAGE_TOKEN)
