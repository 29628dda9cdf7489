"""What the whole model does between its parts: looking at pixels, laying out visual tokens.

Source: `DeepseekOCRModel.forward` (`modeling_deepseekocr.py`). It belongs to the prefill stage.
"""

from __future__ import annotations

from typing import Final

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.movement import copy, moved
from dsocr_analyze.costs.sums import combined, scaled
from dsocr_analyze.work import Work

__all__ = ["global_layout", "local_layout", "page_layout", "pixel_sum"]

_CHANNELS: Final = 3


def pixel_sum(N: Count, R: Count, element_bytes: int) -> Work:
    """The sum over N views' pixels that tells whether there is an image: an addition a value.

    Args:
        N: Views.
        R: Pixels a side.
        element_bytes: Bytes of a value.
    """
    values = N * R * R * _CHANNELS
    return Work(vector_flops=values, bytes_read=values * element_bytes, bytes_written=element_bytes)


def _features(N: Count, q: Count, d_in: int, element_bytes: int) -> Work:
    """CLIP's and SAM's features side by side, `[N, q q, d_in]`."""
    return copy(N * q * q * d_in, element_bytes)


def global_layout(q: Count, d_in: int, d: int, element_bytes: int) -> Work:
    """The whole view: features joined, a newline embedding behind each of q rows.

    Args:
        q: Tokens a side.
        d_in: Features before the projector.
        d: Width behind it.
        element_bytes: Bytes of a feature.
    """
    read, written = q * q * d + d, q * (q + 1) * d
    rows = moved(element_bytes * read, element_bytes * written)
    return combined((_features(1, q, d_in, element_bytes), rows))


def local_layout(
    columns: Count, rows: Count, q: Count, d_in: int, d: int, element_bytes: int
) -> Work:
    """Local views as one picture (a copy, but for one column or one token a side), newlines behind.

    Args:
        columns: Views side by side.
        rows: Views one above the other.
        q: Tokens a side of a view.
        d_in: Features before the projector.
        d: Width behind it.
        element_bytes: Bytes of a feature.
    """
    N = columns * rows
    picture = N * q * q * d
    reordered = scaled(copy(picture, element_bytes), (columns > 1) * (q > 1) * 1)
    written = rows * q * (columns * q + 1) * d
    newlines = moved(element_bytes * (picture + d), element_bytes * written)
    return combined((_features(N, q, d_in, element_bytes), reordered, newlines))


def page_layout(T: Count, visual: Count, d: int, element_bytes: int) -> Work:
    """All views and the separator joined (twice), then put in their places in the sequence.

    Args:
        T: Tokens of the sequence.
        visual: Visual tokens.
        d: Width.
        element_bytes: Bytes of a feature.
    """
    tokens, sequence = visual * (d * element_bytes), T * (d * element_bytes)
    placing = moved(sequence + T + tokens, sequence)
    return combined((scaled(moved(tokens, tokens), 2), placing))
