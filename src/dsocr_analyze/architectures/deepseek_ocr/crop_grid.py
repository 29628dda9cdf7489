"""The crop grid: into how many local views crop mode cuts a page."""

from __future__ import annotations

from typing import Final

__all__ = ["GRIDS", "TILE", "crop_grid"]

TILE: Final = 640
"""Pixels a side of a tile in the vendor's `dynamic_preprocess`. It does not follow `image_size`."""

GRIDS: Final[tuple[tuple[int, int], ...]] = tuple(
    (columns, area // columns)
    for area in range(2, 10)
    for columns in range(1, area + 1)
    if area % columns == 0
)
"""Every grid (columns, rows) of 2 to 9 tiles, in the order in which they are tried: by area.

The order within one area does not matter: between two grids of equal area lies always the aspect of
a third, so they are never nearest at the same distance.
"""


def crop_grid(width: int, height: int) -> tuple[int, int]:
    """Columns and rows of local views of a page; (1, 1) for none.

    The grid of `GRIDS` whose columns / rows is nearest to width / height, in float64 as the vendor
    compares them. On an equal distance the later grid wins if the page has more pixels than half
    of the grid's tiles. A page of at most one tile is not cut.

    Source: `dynamic_preprocess` and `find_closest_aspect_ratio`, `modeling_deepseekocr.py`.

    Args:
        width: Pixels, at least 1.
        height: Pixels, at least 1.
    """
    if width <= TILE and height <= TILE:
        return (1, 1)
    aspect = width / height
    nearest, least_distance = (1, 1), float("inf")
    for columns, rows in GRIDS:
        distance = abs(aspect - columns / rows)
        later_wins = 2 * width * height > TILE * TILE * columns * rows
        if distance < least_distance or (distance == least_distance and later_wins):
            nearest, least_distance = (columns, rows), distance
    return nearest
