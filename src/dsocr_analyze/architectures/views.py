"""The views of a page: how crop mode cuts it, their tokens, the page in them, the CPU's work.

Source: `infer()` and `dynamic_preprocess` (`modeling_deepseekocr.py` and the relatives'), and
Pillow's `ImageOps.contain`, which pads within `ImageOps.pad`. A page that is cropped is resized
once for its tiles and again, with padding, for the global view.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from dsocr_analyze.tape import Size
from dsocr_analyze.workload import Workload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CropRule", "PageInViews", "PixelWork", "tokens_per_side"]

_ROUNDING: Final = 1e-12
"""More than rounding can change of an aspect's relative distance from the middle of two others."""


def tokens_per_side(size: int) -> int:
    """Tokens per side of a square view: `ceil((size // 16) / 4)`.

    This is what the vendor's `infer()` lays out, and what the encoders yield for every size, not
    only for multiples of 64: the patch convolution (kernel 16, stride 16) floors to `size // 16`,
    and each of the two convolutions after SAM (kernel 3, stride 2, padding 1) rounds half of its
    input up; rounding halves up twice is rounding a quarter up once.

    Args:
        size: Pixels per side, at least 16.
    """
    return -(-(size // 16) // 4)


class PixelWork(NamedTuple):
    """What the CPU does to a page before the model sees it; arrays for many pages.

    Attributes:
        resized: Pixels processed by both passes of each bicubic resize, over all resizes.
        viewed: Pixels of all views, which become tensors.
    """

    resized: int
    viewed: int


@dataclass(frozen=True, slots=True)
class PageInViews:
    """How a whole page appears in the views of one vision call.

    Attributes:
        views: Views that show it: one, or several tiles.
        resolution: Pixels per side of a view.
        content: Width and height in pixels that the page occupies in them all; the rest is padding.
    """

    views: int
    resolution: int
    content: tuple[int, int]

    @property
    def tokens(self) -> int:
        """Vision tokens the encoder makes of them all, before any newline or separator."""
        return self.views * tokens_per_side(self.resolution) ** 2


class _Middles(NamedTuple):
    """Where one aspect ceases to be the nearest and the next begins.

    Attributes:
        aspects: The middles between neighbours, ascending, and infinity.
        first: By cell of an aspect, the first middle that may be above it.
        cells: Cells for an aspect from 0 to 1; a power of two, so that products are exact. No cell
            has two middles.
    """

    aspects: NDArray[np.float64]
    first: NDArray[np.int64]
    cells: int


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

    # --- the grid

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

        A page's aspect lies nearest to one of the grids', or midway between two: the few pages that
        do are passed to `grid`. Among grids of one aspect, the page's pixels decide.

        Args:
            widths: Pixels, `[n]`, from 1 to `LARGEST_SIDE`.
            heights: Pixels, `[n]`, likewise.

        Returns:
            Codes, `[n]`.
        """
        import numpy as np

        coded, least_pixels = self._tables
        aspect, middles = widths / heights, self._middles
        cell = np.minimum(aspect * middles.cells, len(middles.first) - 1).astype(np.int64)
        place = middles.first.take(cell, mode="clip")
        middle = middles.aspects.take(place, mode="clip")
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
    def _middles(self) -> _Middles:
        import numpy as np

        aspects = np.array(list(self._by_aspect))
        middles = (aspects[:-1] + aspects[1:]) / 2
        cells = 1 << int(1 / np.diff(middles, prepend=0).min()).bit_length()
        edges = np.arange(cells * self.most) / cells
        return _Middles(np.append(middles, np.inf), np.searchsorted(middles, edges), cells)

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """By ascending aspect: its grids' codes by area, pixels that all but the first require.

        If an aspect has fewer grids than another, its last is repeated. Larger grids need more
        pixels, so the last one whose requirement is met wins.
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

    # --- the page within its views

    def page_in_views(self, workload: Workload) -> tuple[PageInViews, ...]:
        """The page as it appears in each vision call of a workload, in order.

        In a mode that does not crop, a view no larger than a tile gets the whole page squeezed into
        it, whatever its proportions.
        """
        local, whole, found = workload.local_views, workload.global_view, []
        if local is not None:
            # Tiles are cropped from the page resized to the whole grid, whatever its proportions.
            columns, rows = (each * local.resolution for each in workload.grid)
            found.append(PageInViews(local.count, local.resolution, (columns, rows)))
        side = whole.resolution
        squeezed = not workload.crop_mode and side <= self.tile
        content = (side, side) if squeezed else _contained(*workload.page, side)
        return (*found, PageInViews(whole.count, side, content))

    # --- what the CPU does to it

    def pixel_work(self, workload: Workload) -> PixelWork:
        """Pixels that the CPU processes to make the views of a workload's pages."""
        work = self.pixel_work_of_pages(
            *workload.page, *workload.grid, base_size=workload.base_size,
            image_size=workload.image_size, crop_mode=workload.crop_mode,
        )  # fmt: skip
        pages = workload.prompt_pages
        return PixelWork(pages * int(work.resized), pages * int(work.viewed))

    def pixel_work_of_pages(
        self,
        width: Size,
        height: Size,
        columns: Size,
        rows: Size,
        *,
        base_size: int,
        image_size: int,
        crop_mode: bool,
    ) -> PixelWork:
        """The same for many pages in one mode.

        In a mode that does not crop, a page is squeezed into a view no larger than a tile, and
        padded to a larger one.

        Args:
            width: Widths of the pages in pixels; like the next three, an integer or an array `[n]`.
            height: Heights of the pages in pixels.
            columns: Columns of local views; 1 if a page is not cropped.
            rows: Rows of local views.
            base_size: Pixels per side of the global view if the mode crops pages.
            image_size: Pixels per side of a local view, or of the only one.
            crop_mode: Whether the mode crops pages.
        """
        import numpy as np

        def resize(wide: Size, high: Size) -> Size:
            return height * np.maximum(width, wide) + wide * np.maximum(height, high)

        whole = base_size if crop_mode else image_size
        scale = np.minimum(whole / width, whole / height)
        kept = resize(
            np.maximum(1, np.rint(width * scale)), np.maximum(1, np.rint(height * scale))
        )  # the page in its own proportions
        if not crop_mode:
            return PixelWork(resize(whole, whole) if image_size <= self.tile else kept, whole**2)
        is_cut = columns * rows > 1
        cut = resize(columns * image_size, rows * image_size)
        return PixelWork(
            kept + np.where(is_cut, cut, 0), whole**2 + is_cut * columns * rows * image_size**2
        )


def _contained(width: int, height: int, side: int) -> tuple[int, int]:
    """Size of a page that is padded to a square, keeping its proportions.

    The divisions are those of `ImageOps.contain`, in float64. A page so narrow that it would vanish
    is one pixel wide here; Pillow rejects it.
    """
    if width >= height:
        return side, max(1, round(height / width * side))
    return max(1, round(width / height * side)), side
