"""What the whole model does between its parts: looking at pixels, laying out visual tokens.

Source: `DeepseekOCRModel.forward` (`modeling_deepseekocr.py`). It belongs to the prefill stage.
"""

from __future__ import annotations

from typing import Final

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import Kernels, copy, elementwise, moved, reduction
from dsocr_analyze.costs.sums import repeated
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64, Dtype

__all__ = ["blank_sum", "global_layout", "local_layout", "page_layout", "pixel_sum"]

_CHANNELS: Final = 3


def pixel_sum(N: Count, R: Count, dtype: Dtype) -> Kernels:
    """The sum over N views' pixels that tells whether there is an image: one addition per value.

    Args:
        N: Views.
        R: Pixels per side.
        dtype: Type of a value.
    """
    return reduction("sum", 1, N * R * R * _CHANNELS, dtype)


def blank_sum(side: Count) -> Kernels:
    """The same over the blank fp32 patch that stands for local views that are not there.

    Args:
        side: Pixels per side: those of the view of the whole page in crop mode.
    """
    return pixel_sum(1, side, FLOAT32)


def _features(N: Count, q: Count, d_in: int, dtype: Dtype) -> Kernels:
    """CLIP's and SAM's features side by side, `[N, q q, d_in]`."""
    return copy("cat", N * q * q * d_in, dtype)


def _newlines(columns: Count, rows: Count, d: int, dtype: Dtype) -> Kernels:
    """A picture `[rows, columns, d]` with a newline embedding (read once) behind each row."""
    written = rows * (columns + 1) * d
    read = rows * columns * d + d
    return moved("cat", written, read * dtype.nbytes, written * dtype.nbytes, dtype)


def global_layout(q: Count, d_in: int, d: int, dtype: Dtype) -> Kernels:
    """The whole view: features joined, a newline embedding behind each of q rows.

    Args:
        q: Tokens per side.
        d_in: Features before the projector.
        d: Width behind it.
        dtype: Type of features.
    """
    return _features(1, q, d_in, dtype) + _newlines(q, q, d, dtype)


def local_layout(columns: Count, rows: Count, q: Count, d_in: int, d: int, dtype: Dtype) -> Kernels:
    """Local views as one picture, a newline behind each of its rows.

    Laying them out is a copy, but for one column or one token per side. The grid is a tensor on the
    host: its sides are multiplied by q, the rows twice.

    Args:
        columns: Views side by side.
        rows: Views one above the other.
        q: Tokens per side of a view.
        d_in: Features before the projector.
        d: Width behind it.
        dtype: Type of features.
    """
    N = columns * rows
    picture = copy("clone", N * q * q * d, dtype)
    return (
        *_features(N, q, d_in, dtype),
        *repeated(elementwise("mul", 1, INT64), 3),
        *repeated(picture, (columns > 1) * (q > 1) * 1),
        *_newlines(columns * q, rows * q, d, dtype),
    )


def page_layout(T: Count, visual: Count, d: int, dtype: Dtype) -> Kernels:
    """All views and the separator joined (twice), then put in their places in the sequence.

    Args:
        T: Tokens of the sequence.
        visual: Visual tokens.
        d: Width.
        dtype: Type of features.
    """
    tokens, sequence = visual * d, T * d
    read = (sequence + tokens) * dtype.nbytes + T * BOOL.nbytes
    return (
        *repeated(copy("cat", tokens, dtype), 2),
        *moved("masked_scatter", sequence, read, sequence * dtype.nbytes, dtype),
    )
