"""Seconds of a page's preprocessing: the resizes and tensors that the vendor's `infer()` does."""

from __future__ import annotations

import time

import numpy as np
import torch
from PIL import Image, ImageOps

from dsocr_analyze.interruption import safe_point
from dsocr_analyze.measuring.samples import MeasuredSeconds
from dsocr_analyze.workload import Workload

__all__ = ["measured_preprocessing"]


def measured_preprocessing(
    workload: Workload, content: tuple[int, int], repeats: int
) -> MeasuredSeconds:
    """Seconds of one CPU thread per prompt, on pages of noise.

    Args:
        workload: The page, its mode and the pages per prompt.
        content: Width and height of the page in the global view; the rest is padding.
        repeats: Number of repeats.
    """
    width, height = workload.page
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    page = Image.fromarray(noise)
    threads = torch.get_num_threads()
    found = []
    torch.set_num_threads(1)
    try:
        for _ in range(repeats + 1):
            safe_point()
            start = time.perf_counter()
            for _ in range(workload.prompt_pages):
                _prepare(page, workload, content)
            found.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return MeasuredSeconds.of(found[1:])  # the first one warms up


def _prepare(page: Image.Image, workload: Workload, content: tuple[int, int]) -> list[torch.Tensor]:
    image_size, base_size = workload.image_size, workload.base_size
    if not workload.crop_mode:
        if content == (image_size, image_size):  # stretched, ignoring its aspect ratio
            return [_tensor(page.resize(content))]
        return [_tensor(ImageOps.pad(page, (image_size, image_size), color=(127, 127, 127)))]
    views = [_tensor(ImageOps.pad(page, (base_size, base_size), color=(127, 127, 127)))]
    columns, rows = workload.grid
    if columns * rows > 1:
        large = page.resize((columns * image_size, rows * image_size))
        for row in range(rows):
            for column in range(columns):
                left, top = column * image_size, row * image_size
                tile = large.crop((left, top, left + image_size, top + image_size))
                views.append(_tensor(tile))
    return views


def _tensor(view: Image.Image) -> torch.Tensor:
    """The view as `[3, side, side]`, from -1 to 1, in bfloat16."""
    pixels = torch.from_numpy(np.array(view)).permute(2, 0, 1).contiguous().to(torch.float32)
    return pixels.div_(255).sub_(0.5).div_(0.5).to(torch.bfloat16)
