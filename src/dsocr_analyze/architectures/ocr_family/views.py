"""The views of a page: their tokens, the page within them, and what the CPU does to make them.

Source: `infer()` and `dynamic_preprocess` (`modeling_deepseekocr.py` and the relatives'), and
Pillow's `ImageOps.contain`, which pads within `ImageOps.pad`. A page that is cropped is resized
once for its tiles and again, with padding, for the global view.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsocr_analyze.architectures.architecture import PageInViews, PixelWork
from dsocr_analyze.architectures.crop_grid import CropRule
from dsocr_analyze.tape.polynomial import Size
from dsocr_analyze.workload import Workload

__all__ = [
    "page_in_views",
    "pixel_work",
    "pixel_work_of_pages",
    "size_warnings",
    "tokens_per_side",
]

_PATCH: Final = 16
"""Pixels per side of a SAM patch."""
_TOKEN: Final = 64
"""Pixels per side that become one visual token: four patches per side."""


def tokens_per_side(size: int) -> int:
    """Tokens per side of a square view: `ceil((size // 16) / 4)`.

    This is what the vendor's `infer()` lays out, and what the encoders yield for every size, not
    only for multiples of 64: the patch convolution (kernel 16, stride 16) floors to `size // 16`,
    and each of the two convolutions after SAM (kernel 3, stride 2, padding 1) rounds half of its
    input up; rounding halves up twice is rounding a quarter up once.

    Args:
        size: Pixels per side, at least 16.
    """
    return -(-(size // 16) // 4)


# --- the page within its views ----------------------------------------------------------------


def page_in_views(crop: CropRule, workload: Workload) -> tuple[PageInViews, ...]:
    """The page as it appears in each vision call of a workload.

    Args:
        crop: How the relative crops pages. In a mode that does not crop, a view no larger than a
            tile gets the whole page squeezed into it, whatever its proportions.
        workload: The page and its mode.
    """
    found = []
    local, whole = workload.local_views, workload.global_view
    if local is not None:
        columns, rows = workload.grid
        # Tiles are cropped from the page resized to the whole grid, whatever its proportions.
        content = columns * local.resolution, rows * local.resolution
        found.append(_shown(local.count, local.resolution, content))
    side = whole.resolution
    squeezed = not workload.crop_mode and side <= crop.tile
    content = (side, side) if squeezed else _contained(*workload.page, side)
    return (*found, _shown(whole.count, side, content))


def _shown(views: int, resolution: int, content: tuple[int, int]) -> PageInViews:
    return PageInViews(views, resolution, content, views * tokens_per_side(resolution) ** 2)


def _contained(width: int, height: int, side: int) -> tuple[int, int]:
    """Size of a page that is padded to a square, keeping its proportions.

    The divisions are those of `ImageOps.contain`, in float64. A page so narrow that it would vanish
    is one pixel wide here; Pillow rejects it.
    """
    if width >= height:
        return side, max(1, round(height / width * side))
    return max(1, round(width / height * side)), side


# --- what the CPU does to it -------------------------------------------------------------------


def pixel_work(crop: CropRule, workload: Workload) -> PixelWork:
    """Pixels that the CPU processes to make a page's views.

    Args:
        crop: How the relative crops pages.
        workload: The page and its mode.
    """
    work = pixel_work_of_pages(
        crop, *workload.page, *workload.grid, base_size=workload.base_size,
        image_size=workload.image_size, crop_mode=workload.crop_mode,
    )  # fmt: skip
    pages = workload.prompt_pages
    return PixelWork(pages * int(work.resized), pages * int(work.viewed))


def pixel_work_of_pages(
    crop: CropRule,
    width: Size,
    height: Size,
    columns: Size,
    rows: Size,
    *,
    base_size: int,
    image_size: int,
    crop_mode: bool,
) -> PixelWork:
    """The same for many pages in one mode.

    Args:
        crop: How the relative crops pages. In a mode that does not, a page is squeezed into a view
            no larger than a tile, and padded to a larger one.
        width: Widths of the pages in pixels; like the next three, an integer or an array `[n]`.
        height: Heights of the pages in pixels.
        columns: Columns of local views; 1 if a page is not cropped.
        rows: Rows of local views.
        base_size: Pixels per side of the global view if the mode crops pages.
        image_size: Pixels per side of a local view, or of the only one.
        crop_mode: Whether the mode crops pages.
    """
    import numpy as np

    def resize(wide: Size, high: Size) -> Size:
        return height * np.maximum(width, wide) + wide * np.maximum(height, high)

    whole = base_size if crop_mode else image_size
    scale = np.minimum(whole / width, whole / height)
    kept = resize(
        np.maximum(1, np.rint(width * scale)), np.maximum(1, np.rint(height * scale))
    )  # the page in its own proportions
    if not crop_mode:
        return PixelWork(resize(whole, whole) if image_size <= crop.tile else kept, whole**2)
    is_cut = columns * rows > 1
    cut = resize(columns * image_size, rows * image_size)
    return PixelWork(
        kept + np.where(is_cut, cut, 0), whole**2 + is_cut * columns * rows * image_size**2
    )


# --- odd sizes ---------------------------------------------------------------------------------


def size_warnings(workload: Workload) -> Iterator[str]:
    """What is odd about the sizes of a workload's views, one line each.

    A view whose side is not a multiple of 64 pixels loses pixels or pads tokens; if the whole
    page's view is smaller than a local view, the two sizes were probably swapped.
    """
    base, image = workload.base_size, workload.image_size
    if not workload.crop_mode:
        yield from _odd("image_size", image)
        return
    if base < image:
        yield (
            f"base_size {base} is below image_size {image}: the global view has fewer pixels"
            " per side than each local view, unlike in any published mode; if they are"
            f" swapped, give base_size {image} and image_size {base}"
        )
    yield from _odd("base_size", base)
    if image != base:
        yield from _odd("image_size", image)


def _odd(argument: str, size: int) -> Iterator[str]:
    """Warns if a size is not a multiple of a token's: what happens to it, and sizes nearby."""
    if size % _TOKEN == 0:
        return
    patches = size // _PATCH
    seen = patches * _PATCH
    below = max(_TOKEN, size // _TOKEN * _TOKEN)
    lost = f"only {seen} of {size} pixels per side are used, in " if seen < size else ""
    yield (
        f"{argument} {size} is not a multiple of {_TOKEN}: {lost}{patches} patches of {_PATCH}"
        f" pixels, which become the {tokens_per_side(size)} tokens per side of"
        f" {tokens_per_side(size) * _TOKEN} pixels; give {below} or {below + _TOKEN}"
    )
