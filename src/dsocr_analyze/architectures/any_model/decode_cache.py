"""Extends a transformers cache (version 4 or 5) to the length that a later decode step finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dsocr_analyze.workload import DecodeStep

__all__ = ["lengthened"]


def lengthened(cache: Any, step: DecodeStep) -> Any:
    """Extends the cache with zeros to the length that the step finds.

    Every layer takes them like any tokens: a sliding window drops the oldest. Layers without keys
    stay unchanged.

    Args:
        cache: The cache after an earlier pass, with no more tokens than that: a transformers cache,
            or keys and values, `[B, heads, K, head_dim]` each, by layer. May be modified.
        step: The step.
    """
    if isinstance(cache, tuple):
        return tuple(_longer_layer(layer, step.cached_tokens) for layer in cache)
    own = getattr(cache, "self_attention_cache", cache)
    missing = step.cached_tokens - int(own.get_seq_length())
    if missing > 0:
        for layer, keys, values in list(_layers_of(own)):
            own.update(_zeros_like(keys, missing), _zeros_like(values, missing), layer)
    return cache


def _longer_layer(layer: Any, tokens: int) -> Any:
    """A layer with padded keys and values; its other contents (of an encoder) stay."""
    keys, values, *rest = layer
    missing = tokens - keys.shape[-2]
    padded = (torch.nn.functional.pad(held, (0, 0, 0, missing)) for held in (keys, values))
    return (*padded, *rest)


def _layers_of(cache: Any) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Index, keys and values of every layer that has any."""
    if hasattr(cache, "key_cache"):  # transformers 4
        pairs = list(zip(cache.key_cache, cache.value_cache, strict=True))
    else:
        pairs = [
            (getattr(each, "keys", None), getattr(each, "values", None)) for each in cache.layers
        ]
    for number, (keys, values) in enumerate(pairs):
        if isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) and keys.dim() == 4:
            yield number, keys, values


def _zeros_like(held: torch.Tensor, tokens: int) -> torch.Tensor:
    """`[B, heads, K, head_dim]` -> `[B, heads, tokens, head_dim]` of zeros."""
    return held.new_zeros((*held.shape[:2], tokens, held.shape[-1]))
