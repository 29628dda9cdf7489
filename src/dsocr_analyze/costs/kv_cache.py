"""The KV cache: its size and its growth.

Plain attention caches a key and a value per KV head; latent attention caches the latent and one
rotary key (DeepSeek-V2, section 2.1.2), but its flash form caches keys and values per query head.
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import Kernels, copy
from dsocr_analyze.dtypes import Dtype

__all__ = ["append", "overwrite"]


def append(B: Count, K: Count, width: int, dtype: Dtype) -> Kernels:
    """Grows one of a layer's two cache tensors by one token, copying it into a longer one.

    Args:
        B: Batch.
        K: Tokens held before.
        width: Elements per token of a layer's keys, or of its values.
        dtype: Their type.
    """
    return copy("cat", B * (K + 1) * width, dtype)


def overwrite(B: Count, width: int, dtype: Dtype) -> Kernels:
    """Writes one token over another in one of a layer's two cache tensors.

    Args:
        B: Batch.
        width: Elements per token of a layer's keys, or of its values.
        dtype: Their type.
    """
    return copy("copy", B * width, dtype)
