"""How many tokens a view becomes."""

from __future__ import annotations

__all__ = ["global_tokens", "local_tokens", "tokens_per_side", "visual_tokens"]


def tokens_per_side(size: int) -> int:
    """Tokens a side of a square view: `ceil((size // 16) / 4)`.

    This is what the vendor's `infer()` lays out, and what the encoders yield for every size, not
    only for multiples of 64: the patch convolution (kernel 16, stride 16) floors to `size // 16`,
    and each of the two convolutions behind SAM (kernel 3, stride 2, padding 1) rounds half of its
    input up; rounding halves up twice is rounding a quarter up once.

    Args:
        size: Pixels a side, at least 16.
    """
    return -(-(size // 16) // 4)


def global_tokens(size: int) -> int:
    """Tokens of a page's whole view: `q (q + 1) + 1`.

    A newline embedding ends each of its q rows, a separator ends the image.

    Args:
        size: Pixels a side of the view.
    """
    side = tokens_per_side(size)
    return side * (side + 1) + 1


def local_tokens(size: int, grid: tuple[int, int]) -> int:
    """Tokens of a page's local views: `(l w + 1) (l h)`; 0 for the grid (1, 1).

    The views are laid out as one picture, a newline embedding ends each of its rows.

    Args:
        size: Pixels a side of one view.
        grid: Columns w and rows h of views.
    """
    columns, rows = grid
    if grid == (1, 1):
        return 0
    side = tokens_per_side(size)
    return (side * columns + 1) * (side * rows)


def visual_tokens(base_size: int, image_size: int, crop_mode: bool, grid: tuple[int, int]) -> int:
    """Tokens of a page in the sequence, newlines and separator included.

    Args:
        base_size: Pixels a side of the global view in crop mode.
        image_size: Pixels a side of a local view in crop mode, of the only view otherwise.
        crop_mode: Whether the page is cut.
        grid: Columns and rows of local views.
    """
    if not crop_mode:
        return global_tokens(image_size)
    return global_tokens(base_size) + local_tokens(image_size, grid)
