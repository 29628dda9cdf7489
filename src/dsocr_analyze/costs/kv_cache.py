"""The KV cache: its size and its growth.

Plain attention caches a key and a value per KV head; latent attention caches the latent and one
rotary key (DeepSeek-V2, section 2.1.2), but its flash form caches keys and values per query head.
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import Kernels, copy
from dsocr_analyze.dtypes import Dtype

__all__ = ["append", "cache_bytes", "latent_width", "mha_width", "overwrite"]


def mha_width(kv_heads: int, D: int) -> int:
    """Elements per token and layer: a key and a value per KV head."""
    return 2 * kv_heads * D


def latent_width(kv_lora_rank: int, rope_dim: int) -> int:
    """Elements per token and layer of latent attention: the latent and the rotary key."""
    return kv_lora_rank + rope_dim


def cache_bytes(B: Count, K: Count, layers: int, width: int, element_bytes: int) -> Count:
    """Bytes of a cache of K tokens.

    Args:
        B: Batch.
        K: Tokens held.
        layers: Layers.
        width: Elements per token and layer.
        element_bytes: Bytes per element.
    """
    return B * K * (layers * width * element_bytes)


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
