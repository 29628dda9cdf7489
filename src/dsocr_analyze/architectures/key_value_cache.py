"""The KV cache that is passed to the model, which extends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from dsocr_analyze.workload import DecodeStep

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import DynamicCache

__all__ = ["GrowingCache", "KeyValueCache", "lengthened"]


class GrowingCache:
    """Keys and values per layer, `[B, heads, K, head_dim]` each, grown by concatenation.

    Equivalent to `DynamicCache` of transformers 4.46.3, with the same names. Later versions also
    copy the first keys and values; this way a built-in reference costs the same under all versions.
    """

    def __init__(self) -> None:
        self.key_cache: list[Tensor] = []
        self.value_cache: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.key_cache)

    def __getitem__(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        return self.key_cache[layer_idx], self.value_cache[layer_idx]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.key_cache, self.value_cache, strict=True)

    def update(self, key: Tensor, value: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Appends `[B, heads, T, head_dim]` to a layer; returns all its keys and values.

        Raises:
            IndexError: A layer is filled before the one below it.
        """
        import torch

        if layer_idx > len(self):
            raise IndexError(f"layer {layer_idx} came before layer {len(self)}")
        if layer_idx == len(self):
            self.key_cache.append(key)
            self.value_cache.append(value)
        else:
            self.key_cache[layer_idx] = torch.cat([self.key_cache[layer_idx], key], dim=-2)
            self.value_cache[layer_idx] = torch.cat([self.value_cache[layer_idx], value], dim=-2)
        return self[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions held by a layer."""
        return self.key_cache[layer_idx].shape[-2] if layer_idx < len(self) else 0


KeyValueCache: TypeAlias = "GrowingCache | DynamicCache | tuple[tuple[Tensor, ...], ...]"
"""A cache, or keys and values of every layer, as older models return them."""


def lengthened(cache: KeyValueCache, step: DecodeStep) -> KeyValueCache:
    """Extends a cache to the length that a decode step finds, filling missing tokens with zeros.

    Args:
        cache: The cache after an earlier pass, with no more tokens than that: a cache, or one pair
            of keys and values per layer, `[B, heads, K, head_dim]` each.
        step: The step.
    """
    from transformers import DynamicCache

    longer = GrowingCache() if isinstance(cache, GrowingCache) else DynamicCache()
    for layer_idx, (key, value, *_) in enumerate(cache):
        tokens = step.cached_tokens
        longer.update(_padded(key, tokens), _padded(value, tokens), layer_idx)
    return longer


def _padded(held: Tensor, tokens: int) -> Tensor:
    """`[B, heads, K, head_dim]` -> `[B, heads, tokens, head_dim]`."""
    import torch

    return torch.nn.functional.pad(held, (0, 0, 0, tokens - held.shape[-2]))
