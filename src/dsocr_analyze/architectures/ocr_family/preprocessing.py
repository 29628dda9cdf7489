"""What the CPU does to a page before the model sees it: resizing, padding, tensors.

Source: `DeepseekOCRForCausalLM.infer` and `dynamic_preprocess` (`modeling_deepseekocr.py`): a page
that is cropped is resized once for its tiles and again, with padding, for the global view.
"""

from __future__ import annotations

from typing import Any

from dsocr_analyze.architectures.architecture import PixelWork
from dsocr_analyze.architectures.ocr_family.crop_grid import CropRule
from dsocr_analyze.workload import Workload

__all__ = ["pixel_work", "pixel_work_of_pages"]


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
    width: Any,
    height: Any,
    columns: Any,
    rows: Any,
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

    def resize(wide: Any, high: Any) -> Any:
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
