"""Table lookups (`torch.nn.Embedding`)."""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import Kernels, moved
from dsocr_analyze.dtypes import INT64, Dtype

__all__ = ["embedding"]


def embedding(rows: Count, d: Count, dtype: Dtype) -> Kernels:
    """Takes `rows` rows of a table of width d; reads only those rows and their indices.

    Args:
        rows: Rows taken, B T.
        d: Features per row.
        dtype: Type of the table.
    """
    taken = rows * (d * dtype.nbytes)
    return moved("embedding", rows * d, taken + INT64.nbytes * rows, taken, dtype)
