"""The size of a page within its views: squeezed, padded, or cropped into tiles.

Source: `infer()` and `dynamic_preprocess` (`modeling_deepseekocr.py` and the relatives'), and
Pillow's `ImageOps.contain`, which pads within `ImageOps.pad`.
"""

from __future__ import annotations

from dsocr_analyze.architectures.architecture import PageInViews
from dsocr_analyze.architectures.ocr_family.crop_grid import CropRule
from dsocr_analyze.architectures.ocr_family.tokens import tokens_per_side
from dsocr_analyze.workload import Workload

__all__ = ["page_in_views"]


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
