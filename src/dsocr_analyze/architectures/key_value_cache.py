"""The KV cache that is passed to the model, which extends it, and the steps that find it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import DynamicCache

__all__ = ["CacheStep", "GrowingCache", "KeyValueCache", "lengthened"]


@dataclass(frozen=True, slots=True)
class CacheStep:
    """Decode step k = `number`, from 1, whose input is the k-th generated token.

    Attributes:
        prompt_tokens: S, all of which stay in the cache.
        window: W >= 1, the most generated tokens that the cache keeps; None for all.
    """

    prompt_tokens: int
    number: int
    window: int | None = None

    @property
    def position(self) -> int:
        """Position of the step's token, from 0: S + k - 1."""
        return self.prompt_tokens + self.number - 1

    @property
    def cached_tokens(self) -> int:
        """Tokens in the cache before the step: S + min(k - 1, W)."""
        return self.prompt_tokens + min(self.number - 1, self.window or self.number)

    @property
    def keys(self) -> int:
        """Keys that the step attends to, its own included: S + min(k, W)."""
        return self.prompt_tokens + min(self.number, self.window or self.number)

    @property
    def slot(self) -> int | None:
        """Index of the generated token that the step overwrites; None if it appends."""
        if self.window is None or self.number <= self.window:
            return None
        return (self.number - 1) % self.window


@dataclass(eq=False)
class GrowingCache:
    """Keys and values per layer, `[B, heads, K, head_dim]`, grown by concatenation.

    As `DynamicCache` of transformers 4.46.3, whatever version is installed: later ones also copy
    the first keys and values.
    """

    key_cache: list[Tensor] = field(default_factory=list)
    value_cache: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.key_cache)

    def __getitem__(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        return self.key_cache[layer_idx], self.value_cache[layer_idx]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.key_cache, self.value_cache, strict=True)

    def update(self, key: Tensor, value: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Appends `[B, heads, T, head_dim]` to a layer; returns all its keys and values.

        Raises IndexError if the layer below is empty.
        """
        import torch

        keys, values = self.key_cache, self.value_cache
        if layer_idx > len(keys):
            raise IndexError(f"layer {layer_idx} came before layer {len(keys)}")
        if layer_idx == len(keys):
            keys.append(key)
            values.append(value)
        else:
            keys[layer_idx] = torch.cat([keys[layer_idx], key], dim=-2)
            values[layer_idx] = torch.cat([values[layer_idx], value], dim=-2)
        return keys[layer_idx], values[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions held by a layer."""
        keys = self.key_cache
        return keys[layer_idx].shape[-2] if layer_idx < len(keys) else 0


KeyValueCache: TypeAlias = "GrowingCache | DynamicCache | tuple[tuple[Tensor, ...], ...]"
"""A cache, or keys and values by layer, as older models return them."""


def lengthened(cache: KeyValueCache, step: CacheStep) -> KeyValueCache:
    """A cache extended with zeros to the length that a decode step finds."""
    from transformers import DynamicCache

    longer = GrowingCache() if isinstance(cache, GrowingCache) else DynamicCache()
    for layer_idx, (key, value, *_) in enumerate(cache):
        missing = step.cached_tokens - key.shape[-2]
        longer.update(key, value, layer_idx)
        longer.update(_zeros(key, missing), _zeros(value, missing), layer_idx)
    return longer


def _zeros(held: Tensor, tokens: int) -> Tensor:
    """`[B, heads, tokens, head_dim]`, like `[B, heads, K, head_dim]`."""
    return held.new_zeros(*held.shape[:2], tokens, held.shape[3])
