"""Crop grids of many pages at once."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from dsocr_analyze.architectures.architecture import CropGrids
from dsocr_analyze.architectures.ocr_family.crop_grid import CropRule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["crop_grids"]


def crop_grids(rule: CropRule) -> CropGrids:
    """The crop grids of a rule, for many pages at once.

    A grid's code is `base * columns + rows`, with a base above any number of columns or rows. With
    a base of 10 the code reads like the grid: 23 for 2 x 3, and 11 for a page that is not cropped.
    """
    base = rule.most + 1

    def codes(widths: NDArray[np.int64], heights: NDArray[np.int64]) -> NDArray[np.int64]:
        return _codes(rule, base, widths, heights)

    def columns_and_rows(
        codes: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        import numpy as np

        return np.divmod(codes, base)

    return CropGrids(count=base * base, codes=codes, columns_and_rows=columns_and_rows)


def _codes(
    rule: CropRule, base: int, widths: NDArray[np.int64], heights: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The code of `rule.grid(width, height)` for each page, including float64 ties.

    The nearest aspect is one of the two on either side of the page's. Their distances are compared
    in float64, like in the rule; the few pages at the same distance from both are passed to the
    rule itself. Among grids of one aspect, the page's pixels decide.

    Args:
        rule: The rule.
        base: Base of the codes.
        widths: Pixels, `[n]`, from 1 to `LARGEST_SIDE`.
        heights: Pixels, `[n]`, likewise.

    Returns:
        Codes, `[n]`.
    """
    import numpy as np

    aspects, coded, least_pixels = _tables(rule, base)
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
    codes[(widths <= rule.tile) & (heights <= rule.tile)] = base + 1
    for index in np.flatnonzero((distance_below == distance_above) & (below != above)):
        columns, rows = rule.grid(int(widths[index]), int(heights[index]))
        codes[index] = base * columns + rows
    return codes


@cache
def _tables(rule: CropRule, base: int) -> tuple[Any, Any, Any]:
    """By ascending aspect: the aspect, its grids by area, and pixels required by all but the first.

    If an aspect has fewer grids than another, its last is repeated. Larger grids need more pixels,
    so the last one whose requirement is met wins.
    """
    import numpy as np

    by_aspect: dict[float, list[tuple[int, int]]] = {}
    for columns, rows in rule.grids:
        by_aspect.setdefault(columns / rows, []).append((columns, rows))
    aspects = sorted(by_aspect)
    depth = max(map(len, by_aspect.values()))
    grids = np.array(
        [
            [by_aspect[aspect][min(place, len(by_aspect[aspect]) - 1)] for aspect in aspects]
            for place in range(depth)
        ]
    )
    codes = base * grids[..., 0] + grids[..., 1]
    # 2 w h > tile^2 area, in whole numbers
    pixels = rule.tile * rule.tile * grids[..., 0] * grids[..., 1]
    return np.array(aspects), codes, pixels[1:]
