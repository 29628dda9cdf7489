"""The head: logits of every position, cast to fp32.

Source: `DeepseekOCRForCausalLM.forward` (`modeling_deepseekocr.py`).
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.linear import linear, linear_params
from dsocr_analyze.costs.movement import FP32_BYTES, cast
from dsocr_analyze.costs.sums import ModuleWork

__all__ = ["lm_head", "lm_head_params"]


def lm_head(n: Count, d: int, vocabulary: int, element_bytes: int) -> ModuleWork:
    """`[n, d] -> [n, V]` without bias: n d V MACs; the cast is the model's own work.

    Args:
        n: Tokens, B T.
        d: Width.
        vocabulary: V.
        element_bytes: Bytes of a feature.
    """
    return {
        "lm_head": linear(n, d, vocabulary, element_bytes),
        "": cast(n * vocabulary, element_bytes, FP32_BYTES),
    }


def lm_head_params(d: int, vocabulary: int, *, tied: bool = False) -> int:
    """Parameters: `[V, d]`; none of its own where it shares the embedding's."""
    return 0 if tied else linear_params(d, vocabulary)
