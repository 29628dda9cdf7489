"""The KV cache as a decode step finds it, where the steps before it do not run."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from dsocr_analyze.workload import DecodeStep

__all__ = ["lengthened"]


def lengthened(cache: Any, step: DecodeStep) -> DynamicCache:
    """A cache of as many tokens as the step finds, those that are missing filled with zeros.

    Args:
        cache: What an earlier pass left: a cache or pairs, `[B, heads, K, head_dim]` twice per
            layer, of no more tokens.
        step: The step.
    """
    layers = cache if isinstance(cache, tuple) else cache.to_legacy_cache()
    return DynamicCache.from_legacy_cache(
        tuple(tuple(_lengthened(held, step.cached_tokens) for held in layer) for layer in layers)
    )


def _lengthened(held: torch.Tensor, tokens: int) -> torch.Tensor:
    """`[B, heads, K, head_dim]` -> `[B, heads, tokens, head_dim]`."""
    return torch.nn.functional.pad(held, (0, 0, 0, tokens - held.shape[-2]))
