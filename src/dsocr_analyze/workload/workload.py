"""What a page, a mode and a prompt make the model do: views, tokens, lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload.grid import TILE, crop_grid
from dsocr_analyze.workload.page import check_page
from dsocr_analyze.workload.tokens import visual_tokens

__all__ = [
    "DEFAULT_TEXT_TOKENS",
    "ViewBatch",
    "Workload",
    "notes_of",
    "plan_workload",
    "warnings_of",
]

DEFAULT_TEXT_TOKENS: Final = 10
r"""BOS and the text of `<image>\n<|grounding|>Convert the document to markdown.`"""

SMALLEST_VIEW: Final = 64
"""Least pixels a side of a view: those of one whole visual token."""

LARGEST_VIEW: Final = 16_384
LARGEST_COUNT: Final = 1_048_576
"""Most pages of a batch, text tokens and new tokens."""


@dataclass(frozen=True, slots=True)
class ViewBatch:
    """Square views that go through the vision stages in one call.

    Attributes:
        count: Views.
        resolution: Pixels a side of each.
    """

    count: int
    resolution: int


@dataclass(frozen=True, slots=True)
class Workload:
    """One page's way through the model; made by `plan_workload`.

    Attributes:
        page: Width and height in pixels.
        base_size: Pixels a side of the global view in crop mode; unused otherwise.
        image_size: Pixels a side of a local view in crop mode, of the only view otherwise.
        crop_mode: Whether the page is cut into local views.
        grid: Columns and rows of local views; (1, 1) for none.
        views: One batch for each vision call on one page, in the order of the calls: local views
            first (where there are any), then the global view.
        visual_tokens: Tokens of the page in the sequence, newlines and separator included.
        text_tokens: The other tokens, BOS included.
        batch_size: Pages, all alike; each has vision calls of its own.
        max_new_tokens: Tokens generated; the prefill pass yields the first.
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

    @property
    def seq_len(self) -> int:
        """Tokens of one page's prompt: visual and text tokens."""
        return self.visual_tokens + self.text_tokens

    @property
    def local_views(self) -> ViewBatch | None:
        """Batch of local views, or None where the page is not cut."""
        return self.views[0] if len(self.views) == 2 else None

    @property
    def global_view(self) -> ViewBatch:
        """Batch of the one view that shows the whole page."""
        return self.views[-1]

    def as_dict(self) -> dict[str, Any]:
        """The `workload` object of the report, of JSON types only."""
        return {
            "page": list(self.page),
            "base_size": self.base_size,
            "image_size": self.image_size,
            "crop_mode": self.crop_mode,
            "grid": list(self.grid),
            "views": [{"count": view.count, "resolution": view.resolution} for view in self.views],
            "visual_tokens": self.visual_tokens,
            "text_tokens": self.text_tokens,
            "seq_len": self.seq_len,
            "batch_size": self.batch_size,
            "max_new_tokens": self.max_new_tokens,
        }


def plan_workload(
    *,
    page: tuple[int, int],
    base_size: int = 1024,
    image_size: int = 640,
    crop_mode: bool = True,
    text_tokens: int | None = None,
    seq_len: int | None = None,
    batch_size: int = 1,
    max_new_tokens: int = 1024,
) -> Workload:
    """Work out what the vendor's `infer()` makes of one page.

    Args:
        page: Width and height in pixels.
        base_size: Pixels a side of the global view in crop mode.
        image_size: Pixels a side of a local view in crop mode, of the only view otherwise.
        crop_mode: Whether a page larger than 640 x 640 is cut into local views.
        text_tokens: Tokens besides the visual ones, BOS included; `DEFAULT_TEXT_TOKENS` where
            neither this nor `seq_len` is given.
        seq_len: Tokens of the whole prompt, in place of `text_tokens`.
        batch_size: Pages, all alike.
        max_new_tokens: Tokens to generate.

    Raises:
        PageError: The page's size is not possible.
        WorkloadError: A size or count is not possible, or the lengths contradict each other.
    """
    page = _checked_pair(page)
    _check_count("--base-size", base_size, SMALLEST_VIEW, LARGEST_VIEW, " pixels a side")
    _check_count("--image-size", image_size, SMALLEST_VIEW, LARGEST_VIEW, " pixels a side")
    if not isinstance(crop_mode, bool):
        raise WorkloadError(f"--crop-mode {crop_mode!r} is not possible; give True or False")
    _check_count("--batch-size", batch_size, 1, LARGEST_COUNT, " pages")
    _check_count("--max-new-tokens", max_new_tokens, 1, LARGEST_COUNT, " tokens")
    grid = crop_grid(*page) if crop_mode else (1, 1)
    visual = visual_tokens(base_size, image_size, crop_mode, grid)
    return Workload(
        page=page,
        base_size=base_size,
        image_size=image_size,
        crop_mode=crop_mode,
        grid=grid,
        views=_views(base_size, image_size, crop_mode, grid),
        visual_tokens=visual,
        text_tokens=_text_tokens(text_tokens, seq_len, visual),
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
    )


def notes_of(workload: Workload) -> list[str]:
    """What a reader of this workload's figures should know, one line each."""
    if workload.local_views is None or workload.image_size == TILE:
        return []
    return [
        f"crop mode with an image size of {workload.image_size} is counted as laid out; the "
        f"vendor's infer() does not run it as shipped: it cuts {TILE}-pixel tiles while laying out "
        f"tokens for {workload.image_size}"
    ]


def warnings_of(workload: Workload, max_position_embeddings: int) -> list[str]:
    """Why the decoder may not be up to this workload, which is counted all the same.

    Args:
        workload: The workload.
        max_position_embeddings: Positions the decoder was trained for.
    """
    lines = []
    longest = workload.seq_len + workload.max_new_tokens - 1
    if workload.seq_len > max_position_embeddings:
        lines.append(
            f"the sequence of {workload.seq_len} tokens is longer than the decoder's "
            f"max_position_embeddings, {max_position_embeddings}"
        )
    elif longest > max_position_embeddings:
        lines.append(
            f"{workload.seq_len} prompt tokens and {workload.max_new_tokens} new ones reach "
            f"{longest} positions, beyond the decoder's max_position_embeddings, "
            f"{max_position_embeddings}; at most {max_position_embeddings - workload.seq_len + 1} "
            "new tokens fit"
        )
    return lines


def _checked_pair(page: object) -> tuple[int, int]:
    if not isinstance(page, tuple | list) or len(page) != 2:
        raise WorkloadError(f"page {page!r} is not possible; give (width, height) in pixels")
    return check_page(*page)


def _check_count(option: str, value: object, least: int, most: int, unit: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise WorkloadError(
            f"{option} {value!r} is not a whole number; give {least} to {most}{unit}"
        )
    if value < least:
        raise WorkloadError(f"{option} {value} is too small; give {least} to {most}{unit}")
    if value > most:
        raise WorkloadError(f"{option} {value} is too large; give {least} to {most}{unit}")


def _views(
    base_size: int, image_size: int, crop_mode: bool, grid: tuple[int, int]
) -> tuple[ViewBatch, ...]:
    """Vision calls of one page, in their order."""
    if not crop_mode:
        return (ViewBatch(1, image_size),)
    columns, rows = grid
    if grid == (1, 1):
        return (ViewBatch(1, base_size),)
    return (ViewBatch(columns * rows, image_size), ViewBatch(1, base_size))


def _text_tokens(text_tokens: int | None, seq_len: int | None, visual: int) -> int:
    """Tokens besides the visual ones, from either length."""
    if text_tokens is not None:
        _check_count("--text-tokens", text_tokens, 1, LARGEST_COUNT, " tokens, BOS included")
    if seq_len is None:
        return DEFAULT_TEXT_TOKENS if text_tokens is None else text_tokens
    if isinstance(seq_len, bool) or not isinstance(seq_len, int):
        raise WorkloadError(
            f"--seq-len {seq_len!r} is not a whole number; give at least {visual + 1}"
        )
    if seq_len <= visual:
        raise WorkloadError(
            f"--seq-len {seq_len} is below the {visual} visual tokens of the page and BOS; "
            f"give at least {visual + 1}"
        )
    rest = seq_len - visual
    if rest > LARGEST_COUNT:
        raise WorkloadError(
            f"--seq-len {seq_len} is too large; give {visual + 1} to {visual + LARGEST_COUNT}"
        )
    if text_tokens not in (None, rest):
        raise WorkloadError(
            f"--seq-len {seq_len} and --text-tokens {text_tokens} contradict each other: the page "
            f"has {visual} visual tokens; give --seq-len {visual + (text_tokens or 0)}, "
            f"--text-tokens {rest}, or one of the two"
        )
    return rest
