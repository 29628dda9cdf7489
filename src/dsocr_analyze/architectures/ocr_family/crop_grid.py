"""The crop grid: into how many local views crop mode cuts a page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

__all__ = ["CropRule"]


@dataclass(frozen=True)
class CropRule:
    """How a relative cuts pages.

    Source: `dynamic_preprocess` and `find_closest_aspect_ratio` of the relatives' files.

    Attributes:
        tile: Pixels a side of a tile. It does not follow `image_size`.
        most: Most tiles of a page; 2 are the least.
    """

    tile: int
    most: int

    @cached_property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Every grid (columns, rows), in the order in which they are tried: by area.

        The order within one area does not matter: between two grids of equal area lies always the
        aspect of a third, so they are never nearest at the same distance.
        """
        return tuple(
            (columns, area // columns)
            for area in range(2, self.most + 1)
            for columns in range(1, area + 1)
            if area % columns == 0
        )

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of local views of a page; (1, 1) for none.

        The grid whose columns / rows is nearest to width / height, in float64 as the vendor
        compares them. On an equal distance the later grid wins if the page has more pixels than
        half of the grid's tiles. A page of at most one tile is not cut.

        Args:
            width: Pixels, at least 1.
            height: Pixels, at least 1.
        """
        if width <= self.tile and height <= self.tile:
            return (1, 1)
        aspect = width / height
        nearest, least_distance = (1, 1), float("inf")
        for columns, rows in self.grids:
            distance = abs(aspect - columns / rows)
            later_wins = 2 * width * height > self.tile * self.tile * columns * rows
            if distance < least_distance or (distance == least_distance and later_wins):
                nearest, least_distance = (columns, rows), distance
        return nearest
