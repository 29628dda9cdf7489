"""Plans what `infer()` makes of one page: views, crop grid and tokens."""

from __future__ import annotations

from dsocr_analyze.architectures.ocr_family.network import Network
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload.page import check_page
from dsocr_analyze.workload.workload import (
    LARGEST_COUNT,
    LARGEST_VIEW,
    SMALLEST_VIEW,
    ViewBatch,
    Workload,
    check_count,
)

__all__ = ["plan_workload"]


def plan_workload(
    network: Network,
    *,
    page: tuple[int, int],
    base_size: int | None = None,
    image_size: int | None = None,
    crop_mode: bool | None = None,
    text_tokens: int | None = None,
    seq_len: int | None = None,
    batch_size: int = 1,
    max_new_tokens: int = 1024,
    prompt_pages: int = 1,
) -> Workload:
    """Plans what the vendor's `infer()` makes of one page.

    Args:
        network: The relative.
        page: Width and height in pixels.
        base_size: Pixels per side of the global view in crop mode; None for the relative's own.
        image_size: Pixels per side of a local view in crop mode, otherwise of the only view; None
            for the relative's own.
        crop_mode: Whether a page larger than one tile is cropped into local views; None for yes,
            unless several pages share a prompt.
        text_tokens: Tokens besides the visual ones, including BOS; if neither this nor `seq_len`
            is given, those of the relative's own prompt.
        seq_len: Tokens of the whole prompt, instead of `text_tokens`.
        batch_size: Number of prompts, all alike.
        max_new_tokens: Tokens to generate.
        prompt_pages: Pages per prompt, all alike, for a relative that takes several.

    Raises:
        PageError: The page's size is impossible.
        WorkloadError: A size or count is impossible, or the lengths conflict.
    """
    page = _checked_pair(page)
    _check_prompt_pages(prompt_pages, network.prompt_pages)
    crop_mode = prompt_pages == 1 if crop_mode is None else crop_mode
    image_size = network.image_size if image_size is None else image_size
    if base_size is None:
        # With several pages, the blank patch has the size of a page's view.
        base_size = network.base_size if prompt_pages == 1 else image_size
    check_count("base_size", base_size, SMALLEST_VIEW, LARGEST_VIEW, " pixels per side")
    check_count("image_size", image_size, SMALLEST_VIEW, LARGEST_VIEW, " pixels per side")
    if not isinstance(crop_mode, bool):
        raise WorkloadError(
            f"crop_mode {crop_mode!r} is not a boolean; give True or False",
            arguments=["crop_mode"],
        )
    if prompt_pages > 1:
        _check_several(base_size, image_size, crop_mode)
    check_count("batch_size", batch_size, 1, LARGEST_COUNT, " pages")
    check_count("max_new_tokens", max_new_tokens, 1, LARGEST_COUNT, " tokens")
    network.check_sizes(base_size, image_size, crop_mode)
    grid = network.crop.grid(*page) if crop_mode else (1, 1)
    visual = prompt_pages * network.visual_tokens(base_size, image_size, crop_mode, grid)
    return Workload(
        page=page,
        base_size=base_size,
        image_size=image_size,
        crop_mode=crop_mode,
        grid=grid,
        views=_views(base_size, image_size, crop_mode, grid),
        visual_tokens=visual,
        text_tokens=_text_tokens(text_tokens, seq_len, visual, network.text_tokens),
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        prompt_pages=prompt_pages,
    )


def _check_prompt_pages(pages: int, most: int) -> None:
    if most == 1 != pages:
        raise WorkloadError(
            f"prompt_pages {pages!r} is not supported: this model takes one page per prompt;"
            " leave prompt_pages out",
            arguments=["prompt_pages"],
        )
    check_count("prompt_pages", pages, 1, most, " pages in one prompt")


def _check_several(base_size: int, image_size: int, crop_mode: bool) -> None:
    """Rejects what `infer_multi()` does not do to pages that share a prompt."""
    if crop_mode:
        raise WorkloadError(
            "crop_mode=True is not supported if several pages share a prompt: none of them is"
            " cropped; give crop_mode=False",
            arguments=["crop_mode"],
        )
    if base_size != image_size:
        raise WorkloadError(
            f"base_size {base_size} is not supported if several pages share a prompt: each is one"
            f" view of image_size; leave out base_size, or give {image_size}",
            arguments=["base_size", "image_size"],
        )


def _checked_pair(page: object) -> tuple[int, int]:
    if not isinstance(page, tuple | list) or len(page) != 2:
        raise WorkloadError(f"page {page!r} is not a pair; give (width, height) in pixels")
    return check_page(*page)


def _views(
    base_size: int, image_size: int, crop_mode: bool, grid: tuple[int, int]
) -> tuple[ViewBatch, ...]:
    """Vision calls of one page, in order."""
    if not crop_mode:
        return (ViewBatch(1, image_size),)
    columns, rows = grid
    if grid == (1, 1):
        return (ViewBatch(1, base_size),)
    return (ViewBatch(columns * rows, image_size), ViewBatch(1, base_size))


def _text_tokens(text_tokens: int | None, seq_len: int | None, visual: int, default: int) -> int:
    """Tokens besides the visual ones, from either length."""
    if text_tokens is not None:
        check_count("text_tokens", text_tokens, 1, LARGEST_COUNT, " tokens, including BOS")
    if seq_len is None:
        return default if text_tokens is None else text_tokens
    if isinstance(seq_len, bool) or not isinstance(seq_len, int):
        raise WorkloadError(
            f"seq_len {seq_len!r} is not a whole number; give at least {visual + 1}",
            arguments=["seq_len"],
        )
    if seq_len <= visual:
        raise WorkloadError(
            f"seq_len {seq_len} is below the {visual} visual tokens of the page and BOS; "
            f"give at least {visual + 1}",
            arguments=["seq_len"],
        )
    rest = seq_len - visual
    if rest > LARGEST_COUNT:
        raise WorkloadError(
            f"seq_len {seq_len} is too large; give {visual + 1} to {visual + LARGEST_COUNT}",
            arguments=["seq_len"],
        )
    if text_tokens not in (None, rest):
        raise WorkloadError(
            f"seq_len {seq_len} and text_tokens {text_tokens} conflict: the page "
            f"has {visual} visual tokens; give seq_len={visual + (text_tokens or 0)}, "
            f"text_tokens={rest}, or one of the two",
            arguments=["seq_len", "text_tokens"],
        )
    return rest
