"""What the whole model does between its parts: looking at pixels, laying out visual tokens.

Source: `DeepseekOCRModel.forward` (`modeling_deepseekocr.py`) and the relatives'. It belongs to the
prefill stage.
"""

from __future__ import annotations

from typing import Final

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import Kernels, copy, elementwise, moved, reduction
from dsocr_analyze.costs.sums import repeated
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64, Dtype

__all__ = ["blank_sum", "features_joined", "newlines", "page_layout", "picture", "pixel_sum"]

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


def features_joined(N: Count, q: Count, d_in: int, dtype: Dtype) -> Kernels:
    """The features of two encoders side by side, `[N, q q, d_in]`.

    Args:
        N: Views.
        q: Tokens per side.
        d_in: Features of both together.
        dtype: Their type.
    """
    return copy("cat", N * q * q * d_in, dtype)


def newlines(columns: Count, rows: Count, d: int, dtype: Dtype) -> Kernels:
    """A picture `[rows, columns, d]` with a newline embedding (read once) behind each row.

    Args:
        columns: Tokens side by side.
        rows: Tokens one above the other.
        d: Width.
        dtype: Type of features.
    """
    written = rows * (columns + 1) * d
    read = rows * columns * d + d
    return moved("cat", written, read * dtype.nbytes, written * dtype.nbytes, dtype)


def picture(columns: Count, rows: Count, q: Count, d: int, dtype: Dtype) -> Kernels:
    """Local views as one picture, a newline behind each of its rows.

    Laying them out is a copy, but for one column or one token per side. The grid is a tensor on the
    host: its sides are multiplied by q, the rows twice.

    Args:
        columns: Views side by side.
        rows: Views one above the other.
        q: Tokens per side of a view.
        d: Width.
        dtype: Type of features.
    """
    laid_out = copy("clone", columns * rows * q * q * d, dtype)
    return (
        *repeated(elementwise("mul", 1, INT64), 3),
        *repeated(laid_out, (columns > 1) * (q > 1) * 1),
        *newlines(columns * q, rows * q, d, dtype),
    )


def page_layout(T: Count, visual: Count, d: int, dtype: Dtype, *, pages: int = 1) -> Kernels:
    """Each page's views and separator joined, all pages, then put in their places in the sequence.

    Args:
        T: Tokens of the sequence.
        visual: Visual tokens.
        d: Width.
        dtype: Type of features.
        pages: Pages in the prompt, with as many visual tokens each.
    """
    tokens, sequence = visual * d, T * d
    read = (sequence + tokens) * dtype.nbytes + T * BOOL.nbytes
    return (
        *repeated(copy("cat", tokens // pages, dtype), pages),
        *copy("cat", tokens, dtype),
        *moved("masked_scatter", sequence, read, sequence * dtype.nbytes, dtype),
    )
