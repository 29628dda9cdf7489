"""What the model itself does between its parts: checking pixels, laying out visual tokens.

Source: `DeepseekOCRModel.forward` (`modeling_deepseekocr.py`) and the relatives'. Part of the
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
    """The sum over N views' pixels that tells if there is an image: one addition per value.

    Args:
        N: Views.
        R: Pixels per side.
        dtype: Type of a value.
    """
    return reduction("sum", 1, N * R * R * _CHANNELS, dtype)


def blank_sum(side: Count) -> Kernels:
    """The same over the blank fp32 patch that replaces missing local views.

    Args:
        side: Pixels per side, as of the whole page's view in crop mode.
    """
    return pixel_sum(1, side, FLOAT32)


def features_joined(N: Count, q: Count, d_in: int, dtype: Dtype) -> Kernels:
    """Concatenates the features of two encoders, `[N, q q, d_in]`.

    Args:
        N: Views.
        q: Tokens per side.
        d_in: Features of both.
        dtype: Their type.
    """
    return copy("cat", N * q * q * d_in, dtype)


def newlines(columns: Count, rows: Count, d: int, dtype: Dtype) -> Kernels:
    """A picture `[rows, columns, d]` with a newline embedding (read once) after each row.

    Args:
        columns: Columns of tokens.
        rows: Rows of tokens.
        d: Width.
        dtype: Type of features.
    """
    written = rows * (columns + 1) * d
    read = rows * columns * d + d
    return moved("cat", written, read * dtype.nbytes, written * dtype.nbytes, dtype)


def picture(columns: Count, rows: Count, q: Count, d: int, dtype: Dtype) -> Kernels:
    """Local views as one picture, with a newline after each of its rows.

    This takes a copy unless there is one column or one token per side. The grid is a tensor on the
    host: its sides are multiplied by q, the rows twice.

    Args:
        columns: Columns of views.
        rows: Rows of views.
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
    """Joins each page's views and separator, then all pages, and writes them to the sequence.

    Args:
        T: Tokens of the sequence.
        visual: Visual tokens.
        d: Width.
        dtype: Type of features.
        pages: Pages in the prompt, all with the same number of visual tokens.
    """
    tokens, sequence = visual * d, T * d
    read = (sequence + tokens) * dtype.nbytes + T * BOOL.nbytes
    return (
        *repeated(copy("cat", tokens // pages, dtype), pages),
        *copy("cat", tokens, dtype),
        *moved("masked_scatter", sequence, read, sequence * dtype.nbytes, dtype),
    )
