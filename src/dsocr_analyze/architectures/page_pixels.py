"""The pixels of a page: where they are in its views, and what the CPU does to them.

Source: `infer()` (`modeling_deepseekocr.py` and the relatives') and Pillow's `ImageOps.pad`. A page
that is cropped is resized for its tiles and again, with padding, for the global view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dsocr_analyze.architectures.views import CropRule, tokens_per_side
from dsocr_analyze.tape import Size
from dsocr_analyze.workload import PageWorkload

__all__ = ["PageInViews", "PixelWork", "page_in_views", "pixel_work", "pixel_work_of_pages"]


class PixelWork(NamedTuple):
    """What the CPU does to a page before the model sees it; arrays for many pages.

    Attributes:
        resized: Pixels of both passes of every bicubic resize.
        viewed: Pixels of all views, which become tensors.
    """

    resized: int
    viewed: int


@dataclass(frozen=True, slots=True)
class PageInViews:
    """How a whole page appears in the views of one vision call.

    Attributes:
        resolution: Pixels per side of a view.
        content: Width and height of the page in them all; the rest is padding.
    """

    views: int
    resolution: int
    content: tuple[int, int]

    @property
    def tokens(self) -> int:
        """Tokens of them all, without newlines and separators."""
        return self.views * tokens_per_side(self.resolution) ** 2


def page_in_views(crop: CropRule, workload: PageWorkload) -> tuple[PageInViews, ...]:
    """The page in each vision call of a workload.

    In a mode that does not crop, the page is squeezed into a view no larger than a tile.
    """
    local, whole, found = workload.local_views, workload.global_view, []
    if local is not None:
        # Tiles are cropped from the page resized to the whole grid, whatever its proportions.
        columns, rows = (each * local.resolution for each in workload.grid)
        found.append(PageInViews(local.count, local.resolution, (columns, rows)))
    side = whole.resolution
    squeezed = not workload.crop_mode and side <= crop.tile
    content = (side, side) if squeezed else _contained(*workload.page, side)
    return (*found, PageInViews(whole.count, side, content))


def pixel_work(crop: CropRule, workload: PageWorkload) -> PixelWork:
    """Pixels that the CPU processes to make the views of a workload's pages."""
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
    """The same for many pages in one mode: sides in pixels and grids, integers or arrays."""
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


def _contained(width: int, height: int, side: int) -> tuple[int, int]:
    """Size of a page padded to a square, as by `ImageOps.contain`, but at least one pixel."""
    if width >= height:
        return side, max(1, round(height / width * side))
    return max(1, round(width / height * side)), side
