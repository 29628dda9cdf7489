"""Warns about sizes of views that run, but were probably not intended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsocr_analyze.architectures.ocr_family.tokens import tokens_per_side
from dsocr_analyze.workload import Workload

__all__ = ["size_warnings"]

_PATCH: Final = 16
"""Pixels per side of a SAM patch."""
_TOKEN: Final = 64
"""Pixels per side that become one visual token: four patches per side."""


def size_warnings(workload: Workload) -> list[str]:
    """What is odd about the sizes of a workload's views, one line each.

    A view whose side is not a multiple of 64 pixels loses pixels or pads tokens; if the whole
    page's view is smaller than a local view, the two sizes were probably swapped.
    """
    return list(_warnings(workload))


def _warnings(workload: Workload) -> Iterator[str]:
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
