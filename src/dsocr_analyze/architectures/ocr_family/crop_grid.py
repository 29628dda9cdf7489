"""The crop grid: how many local views crop mode cuts a page into."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

__all__ = ["CropRule"]


@dataclass(frozen=True)
class CropRule:
    """How a relative crops pages.

    Source: `dynamic_preprocess` and `find_closest_aspect_ratio` of the relatives' files.

    Attributes:
        tile: Pixels per side of a tile, independent of `image_size`.
        most: Maximum tiles per page; the minimum is 2.
    """

    tile: int
    most: int

    @cached_property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Every grid (columns, rows), in the order in which they are tried: by area.

        The order among equal areas does not matter: between the aspects of two such grids there is
        always that of a third, so they are never nearest at the same distance.
        """
        return tuple(
            (columns, area // columns)
            for area in range(2, self.most + 1)
            for columns in range(1, area + 1)
            if area % columns == 0
        )

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of a page's local views; (1, 1) for none.

        Picks the grid whose columns / rows is nearest to width / height, compared in float64 as in
        the vendor's code. On a tie the later grid wins if the page has more pixels than half of
        the grid's tiles. A page of at most one tile is not cropped.

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
