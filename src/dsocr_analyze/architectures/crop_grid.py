"""The crop grid: how many local views crop mode cuts a page into, for one page or for many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dsocr_analyze.tape.polynomial import Size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CropRule"]


@dataclass(frozen=True)
class CropRule:
    """How a model crops pages.

    A grid of local views has a code, a small integer: `base * columns + rows`, with a base above
    any number of columns or rows. With a base of 10 the code reads like the grid: 23 for 2 x 3, and
    11 for a page that is not cropped.

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

    @property
    def count(self) -> int:
        """Upper bound of the codes, exclusive."""
        return (self.most + 1) ** 2

    def columns_and_rows(
        self, codes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Columns and rows of local views, `[n]` each, from codes, `[n]`; 1 and 1 for no crop."""
        return divmod(codes, self.most + 1)

    def codes(self, widths: NDArray[np.int64], heights: NDArray[np.int64]) -> NDArray[np.int64]:
        """The code of `grid(width, height)` for each page, including float64 ties.

        The nearest aspect is one of the two on either side of the page's. Their distances are
        compared in float64, like in `grid`; the few pages at the same distance from both are passed
        to it. Among grids of one aspect, the page's pixels decide.

        Args:
            widths: Pixels, `[n]`, from 1 to `LARGEST_SIDE`.
            heights: Pixels, `[n]`, likewise.

        Returns:
            Codes, `[n]`.
        """
        import numpy as np

        aspects, coded, least_pixels = self._tables
        aspect = widths / heights
        above = np.searchsorted(aspects, aspect)
        np.minimum(above, len(aspects) - 1, out=above)
        below = np.maximum(above - 1, 0)
        distance_above = np.abs(aspect - aspects[above])
        distance_below = np.abs(aspect - aspects[below])
        nearest = np.where(distance_below < distance_above, below, above)
        codes: NDArray[np.int64] = coded[0][nearest]
        pixels = 2 * widths * heights
        for larger, least in zip(coded[1:], least_pixels, strict=True):
            np.copyto(codes, larger[nearest], where=pixels > least[nearest])
        codes[(widths <= self.tile) & (heights <= self.tile)] = self._code(1, 1)
        for index in np.flatnonzero((distance_below == distance_above) & (below != above)):
            codes[index] = self._code(*self.grid(int(widths[index]), int(heights[index])))
        return codes

    def _code(self, columns: Size, rows: Size) -> Size:
        return (self.most + 1) * columns + rows

    @cached_property
    def _tables(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """By ascending aspect: it, its grids' codes by area, pixels that all but the first require.

        If an aspect has fewer grids than another, its last is repeated. Larger grids need more
        pixels, so the last one whose requirement is met wins.
        """
        import numpy as np

        by_aspect: dict[float, list[tuple[int, int]]] = {}
        for columns, rows in self.grids:
            by_aspect.setdefault(columns / rows, []).append((columns, rows))
        aspects = sorted(by_aspect)
        depth = max(map(len, by_aspect.values()))
        grids = np.array(
            [
                [by_aspect[aspect][min(place, len(by_aspect[aspect]) - 1)] for aspect in aspects]
                for place in range(depth)
            ]
        )
        # 2 w h > tile^2 area, in whole numbers
        pixels = self.tile * self.tile * grids[..., 0] * grids[..., 1]
        return np.array(aspects), self._code(grids[..., 0], grids[..., 1]), pixels[1:]
