"""The views of a page: how crop mode cuts it, their tokens, and their pixels on the CPU.

Source: `infer()` and `dynamic_preprocess` (`modeling_deepseekocr.py` and the relatives'); Pillow's
`ImageOps.pad`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from dsocr_analyze.kernels import grouped
from dsocr_analyze.tape import Size
from dsocr_analyze.workload import Mode, PageWorkload, ViewBatch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROUNDING: Final = 1e-12
"""More than rounding changes an aspect's relative distance from the middle of two others."""


def tokens_per_side(size: int) -> int:
    """Tokens per side of a square view of `size` >= 16 pixels per side: `ceil((size // 16) / 4)`.

    The patch convolution (kernel 16, stride 16) floors, and each of the two after SAM (kernel 3,
    stride 2, padding 1) rounds a half up.
    """
    return -(-(size // 16) // 4)


# --- pages -----------------------------------------------------------------------------------


class PixelWork(NamedTuple):
    """What the CPU does to a page before the model sees it; arrays for many pages.

    Attributes:
        decoded: Pixels of the page itself.
        resized: Pixels of both passes of every bicubic resize.
        viewed: Pixels of all views.
    """

    decoded: int
    resized: int
    viewed: int

    @staticmethod
    def of_resize(width: Size, height: Size, wide: Size, high: Size) -> Size:
        """Pixels of both passes from one size to another; Pillow resizes the width first."""
        import numpy as np

        return height * np.maximum(width, wide) + wide * np.maximum(height, high)


@dataclass(frozen=True, slots=True)
class PageInViews:
    """How a whole page appears in the views of one vision call.

    Attributes:
        resolution: Pixels per side of a view; its width if it is no square.
        content: Width and height of the page in them all; the rest is padding.
        tokens: Of them all, without newlines and separators.
    """

    views: int
    resolution: int
    content: tuple[int, int]
    tokens: int


class PageRule(ABC):
    """How a model sees a page: in a grid, which follows from its sides.

    A grid has a code, so that many pages are counted by their distinct grids.
    """

    most_views: int
    """Of a page, at most, besides that of the whole."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Upper bound of the codes, exclusive."""

    @abstractmethod
    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of a page of so many pixels."""

    @abstractmethod
    def codes(self, widths: NDArray[np.int64], heights: NDArray[np.int64]) -> NDArray[np.int64]:
        """The codes of n pages' grids, sides from 1 to `LARGEST_SIDE`."""

    @abstractmethod
    def columns_and_rows(
        self, codes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Columns and rows of codes."""

    @abstractmethod
    def page_in_views(self, workload: PageWorkload) -> tuple[PageInViews, ...]:
        """The page in each vision call of a workload."""

    @abstractmethod
    def pixel_work(
        self, mode: Mode | PageWorkload, width: Size, height: Size, columns: Size, rows: Size
    ) -> PixelWork:
        """Pixels that the CPU processes to make the views of pages in one mode.

        Sides in pixels and grids are integers or arrays.
        """


# --- crops -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CropRule(PageRule):
    """How a model crops pages.

    A grid has a code, `(most_views + 1) * columns + rows`: 23 for 2 x 3 of at most 9 tiles.

    Source: `dynamic_preprocess` and `find_closest_aspect_ratio` of the relatives' files.

    Attributes:
        tile: Pixels per side of a tile, whatever the `image_size`.
        most_views: Most tiles per page; the fewest are 2.
    """

    tile: int
    most_views: int

    # --- the grid

    @cached_property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Every grid (columns, rows) by area; no page is nearest to two of one area."""
        return tuple(
            (columns, area // columns)
            for area in range(2, self.most_views + 1)
            for columns in range(1, area + 1)
            if area % columns == 0
        )

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of a page's local views; (1, 1) for a page of at most one tile.

        The nearest aspect wins; on a tie, the later grid if the page has more than half its pixels.
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
        return (self.most_views + 1) ** 2

    def columns_and_rows(
        self, codes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Columns and rows of codes; 1 and 1 for no crop."""
        return divmod(codes, self.most_views + 1)

    def codes(self, widths: NDArray[np.int64], heights: NDArray[np.int64]) -> NDArray[np.int64]:
        """The codes of n pages' grids, sides from 1 to `LARGEST_SIDE`.

        The few pages midway between two aspects are passed to `grid`.
        """
        import numpy as np

        middles, coded, least_pixels = self._tables
        aspect = widths / heights
        place = np.searchsorted(middles, aspect)
        middle = middles.take(place, mode="clip")
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
        return (self.most_views + 1) * columns + rows

    @cached_property
    def _tables(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """By ascending aspect: where the next becomes the nearest, and its grids by area.

        Returns:
            Middles between neighbouring aspects, and infinity; codes of grids, of which the last of
            an aspect is repeated; the pixels that the larger ones need.
        """
        import numpy as np

        ordered = sorted(self.grids, key=lambda each: each[0] / each[1])
        by_aspect = grouped((columns / rows, (columns, rows)) for columns, rows in ordered)
        aspects = np.array(list(by_aspect))
        middles = np.append((aspects[:-1] + aspects[1:]) / 2, np.inf)
        depth = max(map(len, by_aspect.values()))
        repeated = [each + each[-1:] * (depth - len(each)) for each in by_aspect.values()]
        columns_by_area, rows_by_area = np.array(repeated).T
        # 2 w h > tile^2 area, in whole numbers
        pixels = self.tile * self.tile * columns_by_area * rows_by_area
        return middles, self._code(columns_by_area, rows_by_area), pixels[1:]

    # --- pixels

    def page_in_views(self, workload: PageWorkload) -> tuple[PageInViews, ...]:
        """The page in each vision call of a workload.

        Without crops, it is squeezed into a view no larger than a tile.
        """
        local, whole, found = workload.local_views, workload.global_view, []
        if local is not None:
            # Tiles are cropped from the page resized to the whole grid, whatever its proportions.
            columns, rows = (each * local.resolution for each in workload.grid)
            found.append(_in_squares(local, (columns, rows)))
        side = whole.resolution
        squeezed = not workload.crop_mode and side <= self.tile
        content = (side, side) if squeezed else _contained(*workload.page, side)
        return (*found, _in_squares(whole, content))

    def pixel_work(
        self, mode: Mode | PageWorkload, width: Size, height: Size, columns: Size, rows: Size
    ) -> PixelWork:
        """Pixels that the CPU processes to make the views of pages in one mode."""
        import numpy as np

        image_size = mode.image_size
        whole = mode.base_size if mode.crop_mode else image_size
        scale = np.minimum(whole / width, whole / height)
        kept = PixelWork.of_resize(
            width, height,
            np.maximum(1, np.rint(width * scale)), np.maximum(1, np.rint(height * scale)),
        )  # fmt: skip # the page in its own proportions
        if not mode.crop_mode:
            squeezed = PixelWork.of_resize(width, height, whole, whole)
            resized = squeezed if image_size <= self.tile else kept
            return PixelWork(width * height, resized, whole**2)
        is_cut = columns * rows > 1
        cut = PixelWork.of_resize(width, height, columns * image_size, rows * image_size)
        tiles = is_cut * columns * rows * image_size**2
        return PixelWork(width * height, kept + np.where(is_cut, cut, 0), whole**2 + tiles)


def _in_squares(view: ViewBatch, content: tuple[int, int]) -> PageInViews:
    tokens = view.count * tokens_per_side(view.resolution) ** 2
    return PageInViews(view.count, view.resolution, content, tokens)


def _contained(width: int, height: int, side: int) -> tuple[int, int]:
    """Size of a page padded to a square, as by `ImageOps.contain`, but at least one pixel."""
    if width >= height:
        return side, max(1, round(height / width * side))
    return max(1, round(width / height * side)), side
