"""The KV cache: its size, and what a token reads and writes of it.

Plain attention caches a key and a value for each KV head; latent attention the latent and one
rotary key (DeepSeek-V2, section 2.1.2), but in its flash form keys and values as heads use them.
"""

from __future__ import annotations

from typing import NamedTuple

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.movement import copy
from dsocr_analyze.work import Work

__all__ = ["CacheTraffic", "append", "cache_bytes", "latent_width", "mha_width", "token_traffic"]


class CacheTraffic(NamedTuple):
    """What one layer's attention moves for one new token: bytes of the cache itself."""

    bytes_read: Count
    """All keys and values, the new ones included."""
    bytes_written: Count
    """The new ones."""


def mha_width(kv_heads: int, D: int) -> int:
    """Elements a token and layer: a key and a value of each KV head."""
    return 2 * kv_heads * D


def latent_width(kv_lora_rank: int, rope_dim: int) -> int:
    """Elements a token and layer of latent attention: the latent and the rotary key."""
    return kv_lora_rank + rope_dim


def cache_bytes(B: Count, K: Count, layers: int, width: int, element_bytes: int) -> Count:
    """Bytes of the cache of K tokens.

    Args:
        B: Batch.
        K: Tokens held.
        layers: Layers.
        width: Elements a token and layer.
        element_bytes: Bytes of each.
    """
    return B * K * (layers * width * element_bytes)


def token_traffic(B: Count, K: Count, width: int, element_bytes: int) -> CacheTraffic:
    """What one new token a sequence reads and writes of one layer's cache at least.

    Args:
        B: Batch.
        K: Tokens held before.
        width: Elements a token and layer.
        element_bytes: Bytes of each.
    """
    row = B * (width * element_bytes)
    return CacheTraffic((K + 1) * row, row)


def append(B: Count, K: Count, width: int, element_bytes: int) -> Work:
    """Growing one layer's cache by one token: it is copied into a longer one.

    Args:
        B: Batch.
        K: Tokens held before.
        width: Elements a token and layer.
        element_bytes: Bytes of each.
    """
    return copy(B * (K + 1) * width, element_bytes)
