"""How the neighbours' processors resize a page to whole visual tokens.

Source: the image processors of transformers 5.23 that each rule names. As there, sides are divided,
multiplied and rounded (halves to even) as float64, in the same order.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np

from dsocr_analyze.architectures.views import PageInViews, PageRule, PixelWork
from dsocr_analyze.errors import PageError
from dsocr_analyze.tape import Size
from dsocr_analyze.workload import Mode, PageWorkload

_LARGEST_ASPECT: Final = 200
"""The longer side over the shorter, beyond which `smart_resize` refuses an image."""


@dataclass(frozen=True, kw_only=True)
class ResizeRule(PageRule):
    """How a model's processor resizes pages.

    A grid has a code: its place among all grids by columns, then by rows, from 1; 0 is the code of
    a page that is refused.

    Attributes:
        factor: Pixels per side of a visual token: those of a patch times the patches merged.
    """

    factor: int
    most_views = 0

    # --- of each kind of rule

    @property
    @abstractmethod
    def most_tokens(self) -> int:
        """Upper bound of the tokens per page."""

    @property
    def largest_aspect(self) -> int:
        """The longer side over the shorter, beyond which an image is refused."""
        return _LARGEST_ASPECT

    @abstractmethod
    def _resized(self, sides: Size) -> Size:
        """Widths and heights `[2, n]` after resizing; 0 and 0 where a page is refused."""

    # --- pages

    def sides_of_pages(self, width: Size, height: Size) -> Size:
        """Pixels of n pages after resizing, `[2, n]`; 0 and 0 where a page is refused."""
        return self._resized(np.array([width, height], np.int64))

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of a page's visual tokens; raises PageError for one that is refused."""
        columns, rows = (self.sides_of_pages(width, height) // self.factor).tolist()
        if not columns:
            raise PageError(
                f"a page of {width} x {height} pixels has no visual tokens; "
                f"make its longer side at most {self.largest_aspect} times the other"
            )
        return columns, rows

    def page_in_views(self, workload: PageWorkload) -> tuple[PageInViews, ...]:
        """The whole page in the only view."""
        [view] = workload.views
        return (PageInViews(1, view.resolution, view.sides, workload.visual_tokens),)

    def pixel_work(
        self, mode: Mode | PageWorkload, width: Size, height: Size, columns: Size, rows: Size
    ) -> PixelWork:
        """What the CPU does to a page, or to n pages (arrays)."""
        wide, high = self.sides_of_pages(width, height)
        resizing = PixelWork.of_resize(width, height, wide, high)
        return PixelWork(width * height, resizing, wide * high)

    # --- codes of grids

    @property
    def count(self) -> int:
        """Upper bound of the codes, exclusive."""
        return int(self._grids_up_to[-1]) + 1

    def codes(self, widths: Size, heights: Size) -> Size:
        """The codes of n pages' grids; 0 where a page is refused."""
        columns, rows = self.sides_of_pages(widths, heights) // self.factor
        return self._grids_up_to.take(columns - 1, mode="clip") + rows

    def columns_and_rows(self, codes: Size) -> tuple[Size, Size]:
        """Columns and rows of codes; 0 and 0 for a page that is refused."""
        columns = self._grids_up_to.searchsorted(codes)
        return columns, codes - self._grids_up_to.take(columns - 1, mode="clip")

    @cached_property
    def _grids_up_to(self) -> Size:
        """How many grids there can be of at most 0, 1, 2 ... columns."""
        most_rows = self.most_tokens // np.arange(1, self.most_tokens + 1)
        return np.append(0, np.cumsum(most_rows))


@dataclass(frozen=True, kw_only=True)
class SmartResize(ResizeRule):
    """Sides are multiples of `factor`, and the image has between `least` and `largest` pixels.

    Source: `smart_resize` of `Qwen2VLImageProcessor`, `Glm46VImageProcessor` and
    `PaddleOCRVLImageProcessor`.

    Attributes:
        least: An image that is enlarged to it may exceed `largest`.
        largest: But no side becomes less than a token.
        frames: Copies of the image whose pixels count (`temporal_patch_size` of GLM's).
        enlarges: How pages with a side below `factor` are enlarged first: never (Qwen's), down to
            whole pixels (GLM's) or to the nearest (PaddleOCR's).
    """

    least: int
    largest: int
    frames: int = 1
    enlarges: Literal["never", "down", "nearest"] = "never"

    @cached_property
    def most_tokens(self) -> int:
        """Upper bound of the tokens per page.

        Sides that are kept are within `largest`. So are shrunk ones, which are rounded down, unless
        one would be less than a token: then it is 1, and the other at most the aspect. Enlarged
        ones, a and b tokens before they are rounded up, become at most (a + 1) (b + 1), where a b
        is `least` and a = 200 b is the worst.
        """
        pixels = self.frames * self.factor**2
        shorter = math.sqrt(self.least / pixels / _LARGEST_ASPECT)
        enlarged = (_LARGEST_ASPECT * shorter + 1) * (shorter + 1)
        return max(self.largest // pixels, _LARGEST_ASPECT, math.ceil(enlarged))

    def _resized(self, sides: Size) -> Size:
        sides = self._enlarged(sides)
        pixels = self.frames * sides.prod(0)
        kept = np.rint(sides / self.factor)
        becomes = self.frames * self.factor**2 * kept.prod(0)
        shrunk = np.maximum(1, np.floor(sides / np.sqrt(pixels / self.largest) / self.factor))
        grown = np.ceil(sides * np.sqrt(self.least / pixels) / self.factor)
        is_refused = sides.max(0) > self.largest_aspect * sides.min(0)
        outcomes = [is_refused, becomes > self.largest, becomes < self.least]
        final = np.select(outcomes, [np.zeros_like(kept), shrunk, grown], kept)
        return final.astype(np.int64) * self.factor

    def _enlarged(self, sides: Size) -> Size:
        """Sides of pages enlarged so that none is below `factor`."""
        if self.enlarges == "down":
            return (sides * np.maximum(1, (self.factor / sides).max(0))).astype(np.int64)
        if self.enlarges == "nearest":
            for own, other in ((1, 0), (0, 1)):
                scaled = np.rint(sides[other] * self.factor / sides[own])
                sides[other] = np.where(sides[own] < self.factor, scaled, sides[other])
                sides[own] = np.maximum(sides[own], self.factor)
        return sides


@dataclass(frozen=True, kw_only=True)
class LongestEdge(ResizeRule):
    """A longer side beyond `longest` becomes it, and sides are rounded up to multiples of `factor`.

    Source: `PixtralImageProcessor`, as `PixtralProcessor` calls it. (`LightOnOcrProcessor` rounds
    up to single patches instead, and leaves out a last one without a partner.)

    Attributes:
        longest: Most pixels per side before rounding up; a shorter side that shrinks below one
            pixel is refused.
    """

    longest: int

    @property
    def most_tokens(self) -> int:
        """The longest side squared."""
        return (-(-self.longest // self.factor)) ** 2

    @property
    def largest_aspect(self) -> int:
        """Beyond it, nothing is left of the shorter side."""
        return self.longest

    def _resized(self, sides: Size) -> Size:
        scale = np.maximum(1, sides.max(0) / self.longest)
        tokens = np.ceil(np.floor(sides / scale) / self.factor).astype(np.int64)
        return tokens * (tokens.min(0) > 0) * self.factor


@dataclass(frozen=True, kw_only=True)
class FixedView(LongestEdge):
    """Every page becomes a square of `longest` pixels per side; none is refused.

    Source: `GotOcr2ImageProcessor` without `crop_to_patches`.
    """

    def _resized(self, sides: Size) -> Size:
        return np.full_like(sides, self.longest)


RULES: Final[Mapping[str, type[ResizeRule]]] = {
    "smart": SmartResize,
    "longest": LongestEdge,
}
"""Rules by their names in a model's data."""
