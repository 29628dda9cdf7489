"""Look-ups in a table (`torch.nn.Embedding`, indexing)."""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.movement import INDEX_BYTES
from dsocr_analyze.work import Work

__all__ = ["embedding", "embedding_params"]


def embedding(rows: Count, d: Count, element_bytes: int) -> Work:
    """Takes `rows` rows of a table of width d; the rows and their indices are read, no others.

    Args:
        rows: Rows taken, B T.
        d: Features of a row.
        element_bytes: Bytes of a feature.
    """
    taken = rows * (d * element_bytes)
    return Work(bytes_read=taken + INDEX_BYTES * rows, bytes_written=taken)


def embedding_params(rows: int, d: int) -> int:
    """Parameters: the table `[rows, d]`."""
    return rows * d
