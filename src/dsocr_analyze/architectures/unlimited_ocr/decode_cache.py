"""The cache that the model's forward takes, which is a ring buffer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dsocr_analyze.architectures.key_value_cache import lengthened
from dsocr_analyze.workload import DecodeStep

__all__ = ["decode_cache"]


def decode_cache(cache: Any, step: DecodeStep) -> Any:
    """The cache that a decode step finds, with the window's state stored as the model's code does.

    Latent attention has no window: it stores no state, and its cache grows with every token.

    Args:
        cache: The cache after an earlier pass of the same generation, `[B, heads, K, head_dim]`
            twice per layer.
        step: The step, with the window the model runs with.

    Source: `SlidingWindowLlamaAttention` (`modeling_deepseekv2.py`), which stores the prompt's
    length and the slot to overwrite next on the cache, by layer.
    """
    noted = getattr(cache, "_prefill_length", None)
    if not noted:
        return lengthened(cache, replace(step, window=None))
    ring = lengthened(cache, step)
    ring._prefill_length = dict.fromkeys(noted, step.prompt_tokens)
    if step.slot is not None:
        ring._ring_pos = dict.fromkeys(noted, step.slot)
    return ring
