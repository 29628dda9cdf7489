"""The crop grid of many pages at once."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.architectures.architecture import CropGrids
from dsocr_analyze.architectures.deepseek_ocr.crop_grid import GRIDS, TILE, crop_grid

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CROP_GRIDS"]

_BASE: Final = 10
"""A grid's code is `10 columns + rows`, which reads like the grid: 23 for 2 x 3, 11 for no cut."""


def _columns_and_rows(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Columns and rows of the grids with these codes, `[n]` each."""
    import numpy as np

    return np.divmod(codes, _BASE)


def _codes(widths: NDArray[np.int64], heights: NDArray[np.int64]) -> NDArray[np.int64]:
    """The code of `crop_grid(width, height)` for each page, the float64 ties included.

    The nearest aspect is one of the two on either side of the page's. Their distances are compared
    in float64, as `crop_grid` does; the few pages that lie at the same distance from both are
    handed to `crop_grid` itself. Two grids of one aspect are told apart by the page's pixels.

    Args:
        widths: Pixels, `[n]`, from 1 to `LARGEST_SIDE`.
        heights: Pixels, `[n]`, likewise.

    Returns:
        `[n]`, codes; 11 for a page that is not cut.
    """
    import numpy as np

    aspects, smaller, larger, least_pixels = _tables()
    aspect = widths / heights
    above = np.searchsorted(aspects, aspect)
    np.minimum(above, len(aspects) - 1, out=above)
    below = np.maximum(above - 1, 0)
    distance_above = np.abs(aspect - aspects[above])
    distance_below = np.abs(aspect - aspects[below])
    nearest = np.where(distance_below < distance_above, below, above)
    # 2 w h > TILE^2 area, in whole numbers
    codes: NDArray[np.int64] = np.where(
        2 * widths * heights > least_pixels[nearest], larger[nearest], smaller[nearest]
    )
    codes[(widths <= TILE) & (heights <= TILE)] = _BASE + 1
    for index in np.flatnonzero((distance_below == distance_above) & (below != above)):
        columns, rows = crop_grid(int(widths[index]), int(heights[index]))
        codes[index] = _BASE * columns + rows
    return codes


@cache
def _tables() -> tuple[Any, Any, Any, Any]:
    """By aspect, ascending: the aspect, its smaller and its larger grid, pixels for the larger.

    Both grids are the same one where an aspect has only one.
    """
    import numpy as np

    by_aspect: dict[float, list[tuple[int, int]]] = {}
    for columns, rows in GRIDS:
        by_aspect.setdefault(columns / rows, []).append((columns, rows))
    ordered = sorted(by_aspect.items())
    if any(len(grids) > 2 for _, grids in ordered):
        raise AssertionError("an aspect has more than two grids; only two are told apart by pixels")

    def codes(position: int) -> Any:
        return np.array([_BASE * grids[position][0] + grids[position][1] for _, grids in ordered])

    pixels = [TILE * TILE * grids[-1][0] * grids[-1][1] for _, grids in ordered]
    return np.array([aspect for aspect, _ in ordered]), codes(0), codes(-1), np.array(pixels)


CROP_GRIDS: Final = CropGrids(count=_BASE * _BASE, codes=_codes, columns_and_rows=_columns_and_rows)
