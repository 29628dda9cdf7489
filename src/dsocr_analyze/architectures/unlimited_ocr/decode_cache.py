"""What the model's forward takes besides DeepSeek-OCR's arguments: a cache that is a ring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dsocr_analyze.architectures.key_value_cache import lengthened
from dsocr_analyze.workload import DecodeStep

__all__ = ["decode_cache"]


def decode_cache(cache: Any, step: DecodeStep) -> Any:
    """The cache as a decode step finds it, the window's state on it as the model's code keeps it.

    Latent attention knows no window: it notes nothing, and its cache grows by every token.

    Args:
        cache: What an earlier pass of the same generation left, `[B, heads, K, head_dim]` twice
            per layer.
        step: The step, with the window that the model runs with.

    Source: `SlidingWindowLlamaAttention` (`modeling_deepseekv2.py`), which keeps the prompt's
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
