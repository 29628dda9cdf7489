"""The views of a page: how crop mode cuts it, and their tokens.

Source: `infer()` and `dynamic_preprocess` (`modeling_deepseekocr.py` and the relatives').
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from dsocr_analyze.tape import Size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CropRule", "tokens_per_side"]

_ROUNDING: Final = 1e-12
"""More than rounding changes an aspect's relative distance from the middle of two others."""


def tokens_per_side(size: int) -> int:
    """Tokens per side of a square view of `size` >= 16 pixels per side: `ceil((size // 16) / 4)`.

    So `infer()` lays out and the encoders yield: the patch convolution (kernel 16, stride 16)
    floors, and each of the two after SAM (kernel 3, stride 2, padding 1) rounds a half up.
    """
    return -(-(size // 16) // 4)


@dataclass(frozen=True)
class CropRule:
    """How a model crops pages.

    A grid has a code: `(most + 1) * columns + rows`, which is 23 for 2 x 3 of at most 9 tiles and
    11 for a page that is not cropped.

    Source: `dynamic_preprocess` and `find_closest_aspect_ratio` of the relatives' files.

    Attributes:
        tile: Pixels per side of a tile, whatever the `image_size`.
        most: Most tiles per page; the fewest are 2.
    """

    tile: int
    most: int

    # --- the grid

    @cached_property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Every grid (columns, rows), as they are tried: by area.

        The order of equal areas does not matter: no page is nearest to two of them.
        """
        grids: tuple[tuple[int, int], ...] = ()
        for area in range(2, self.most + 1):
            for columns in range(1, area + 1):
                if area % columns == 0:
                    grids += ((columns, area // columns),)
        return grids

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of a page's local views; (1, 1) for a page of at most one tile.

        Those whose aspect is nearest in float64; on a tie the later grid wins if the page has more
        than half of its tiles' pixels.
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
        """Columns and rows of codes; 1 and 1 for no crop."""
        return divmod(codes, self.most + 1)

    def codes(self, widths: NDArray[np.int64], heights: NDArray[np.int64]) -> NDArray[np.int64]:
        """The code of `grid(width, height)` for each of n pages, sides from 1 to `LARGEST_SIDE`.

        The few pages midway between two aspects are passed to `grid`; among grids of one aspect,
        the page's pixels decide.
        """
        import numpy as np

        coded, least_pixels = self._tables
        aspect, (middles, first, cells) = widths / heights, self._middles
        cell = np.minimum(aspect * cells, len(first) - 1).astype(np.int64)
        place = first.take(cell, mode="clip")
        middle = middles.take(place, mode="clip")
        place += aspect > middle
        codes: NDArray[np.int64] = coded[0].take(place, mode="clip")
        pixels = 2 * widths * heights
        for larger, least in zip(coded[1:], least_pixels, strict=True):
            is_larger = pixels > least.take(place, mode="clip")
            np.copyto(codes, larger.take(place, mode="clip"), where=is_larger)
        np.copyto(codes, self._code(1, 1), where=np.maximum(widths, heights) <= self.tile)
        for index in np.flatnonzero(np.abs(aspect - middle) <= _ROUNDING * aspect):
            codes[index] = self._code(*self.grid(int(widths[index]), int(heights[index])))
        return codes

    def _code(self, columns: Size, rows: Size) -> Size:
        return (self.most + 1) * columns + rows

    @cached_property
    def _by_aspect(self) -> dict[float, list[tuple[int, int]]]:
        """Grids of each aspect by area; the aspects ascend."""
        by_aspect: dict[float, list[tuple[int, int]]] = {}
        for columns, rows in sorted(self.grids, key=lambda each: each[0] / each[1]):
            by_aspect.setdefault(columns / rows, []).append((columns, rows))
        return by_aspect

    @cached_property
    def _middles(self) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
        """Where one aspect ceases to be the nearest and the next begins.

        Returns:
            The middles between neighbours, ascending, and infinity; by cell of an aspect, the first
            middle that may be above it; cells from 0 to 1, a power of two (products are exact)
            large enough for a single middle in each.
        """
        import numpy as np

        aspects = np.array(list(self._by_aspect))
        middles = (aspects[:-1] + aspects[1:]) / 2
        cells = 1 << int(1 / np.diff(middles, prepend=0).min()).bit_length()
        edges = np.arange(cells * self.most) / cells
        return np.append(middles, np.inf), np.searchsorted(middles, edges), cells

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """By ascending aspect: its grids' codes by area, and the pixels that the larger ones need.

        The last grid of an aspect is repeated up to the largest number of grids.
        """
        import numpy as np

        depth = max(map(len, self._by_aspect.values()))
        grids = np.array(
            [
                [
                    of_aspect[min(place, len(of_aspect) - 1)]
                    for of_aspect in self._by_aspect.values()
                ]
                for place in range(depth)
            ]
        )
        # 2 w h > tile^2 area, in whole numbers
        pixels = self.tile * self.tile * grids[..., 0] * grids[..., 1]
        return self._code(grids[..., 0], grids[..., 1]), pixels[1:]
