"""What the CPU does to a page before the model sees it: resizing, padding, tensors.

Source: `DeepseekOCRForCausalLM.infer` and `dynamic_preprocess` (`modeling_deepseekocr.py`): a page
that is cut is resized to its tiles and again, padded, to the global view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsocr_analyze.architectures.architecture import PixelWork

if TYPE_CHECKING:
    from dsocr_analyze.workload import Workload

__all__ = ["pixel_work"]


def pixel_work(workload: Workload) -> PixelWork:
    """Pixels that a page's views are made of and made from."""
    width, height = workload.page
    columns, rows = workload.grid
    local, whole = workload.local_views, workload.global_view.resolution
    scale = min(whole / width, whole / height)
    targets = [(max(1, round(width * scale)), max(1, round(height * scale)))]
    if local is not None:
        targets.append((columns * local.resolution, rows * local.resolution))
    elif not workload.crop_mode:
        targets = [(whole, whole)] if workload.image_size <= 640 else targets
    resized = sum(height * max(width, wide) + wide * max(height, high) for wide, high in targets)
    return PixelWork(resized, sum(view.count * view.resolution**2 for view in workload.views))
