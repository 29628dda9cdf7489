"""Extends whatever cache a model keeps by tokens of decode steps that do not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from transformers import Cache

__all__ = ["AnyCache", "Lengths", "lengthened", "lengths_of"]

AnyCache: TypeAlias = "Cache | tuple[torch.Tensor | AnyCache, ...] | list[torch.Tensor | AnyCache]"
"""A cache of transformers, or tensors that a model nests by itself."""

Lengths: TypeAlias = "tuple[int | Lengths, ...] | dict[int, int]"
"""Sizes of nested tensors, or tokens by layer."""


def lengths_of(cache: AnyCache) -> Lengths:
    """Sizes of a cache's tensors, nested like it, or tokens by layer of one of transformers."""
    if isinstance(cache, tuple | list):
        return tuple(
            tuple(each.shape) if isinstance(each, torch.Tensor) else lengths_of(each)
            for each in cache
        )
    own = getattr(cache, "self_attention_cache", cache)
    return {layer: own.get_seq_length(layer) for layer, *_ in _growing_layers(own)}


def lengthened(cache: AnyCache, tokens: int, before: Any) -> AnyCache:
    """Extends the cache by tokens that are all zeros.

    A cache of transformers takes them like any tokens: a sliding window drops the oldest. One that
    is allocated as a whole, or that holds a state, stays as it is.

    Args:
        cache: The cache after one decode step at least. May be modified.
        tokens: Tokens by which it grows.
        before: Its sizes after the prefill pass. What has not grown since, such as the keys of an
            image, stays as it is.
    """
    if isinstance(cache, tuple | list):
        return type(cache)(
            _longer(each, tokens, then)
            if isinstance(each, torch.Tensor)
            else lengthened(each, tokens, then)
            for each, then in zip(cache, before, strict=True)
        )
    own = getattr(cache, "self_attention_cache", cache)
    for layer, keys, values in list(_growing_layers(own)):
        if own.get_seq_length(layer) > before.get(layer, 0):
            own.update(_zeros(keys, -2, tokens), _zeros(values, -2, tokens), layer)
    for layer in getattr(own, "layers", ()):
        indexer = getattr(layer, "indexer_keys", None)
        if indexer is not None:
            layer.update_indexer(_zeros(indexer, 1, tokens))
    return cache


def _longer(held: torch.Tensor, tokens: int, before: tuple[int, ...]) -> torch.Tensor:
    """A tensor that grows in the dimension in which it has grown since the prefill pass."""
    for dim, then in enumerate(before):
        if held.shape[dim] > then:
            return torch.cat([held, _zeros(held, dim, tokens)], dim=dim)
    return held


def _growing_layers(cache: Cache) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Index, keys and values of every layer that takes tokens."""
    from transformers import DynamicCache

    if hasattr(cache, "layers"):  # transformers 5
        pairs = [
            (getattr(each, "keys", None), getattr(each, "values", None)) for each in cache.layers
        ]
    elif isinstance(cache, DynamicCache):
        pairs = list(zip(cache.key_cache, cache.value_cache, strict=True))
    else:
        return
    for number, (keys, values) in enumerate(pairs):
        if isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) and keys.dim() == 4:
            yield number, keys, values


def _zeros(held: torch.Tensor, dim: int, tokens: int) -> torch.Tensor:
    """Zeros like a tensor, of some tokens along a dimension."""
    shape = list(held.shape)
    shape[dim] = tokens
    return held.new_zeros(shape)
