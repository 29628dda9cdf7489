"""The head: logits at every position, cast to fp32.

Source: `DeepseekOCRForCausalLM.forward` (`modeling_deepseekocr.py`).
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.linear import linear, linear_params
from dsocr_analyze.costs.operators import cast
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import FLOAT32, Dtype

__all__ = ["lm_head", "lm_head_params", "logits_bytes"]


def lm_head(n: Count, d: int, vocabulary: int, dtype: Dtype) -> ModuleKernels:
    """`[n, d] -> [n, V]` without bias: n d V MACs; the cast is the model's own work.

    Args:
        n: Tokens, B T.
        d: Width.
        vocabulary: V.
        dtype: Type of features and weights.
    """
    return {
        "": cast(n * vocabulary, dtype, FLOAT32),
        "lm_head": linear(n, d, vocabulary, dtype),
    }


def logits_bytes(n: Count, vocabulary: int, element_bytes: int) -> Count:
    """Bytes of the logits `[n, V]` while they are cast: in their own type and in fp32.

    Args:
        n: Tokens.
        vocabulary: V.
        element_bytes: Bytes per element in their own type; fp32 logits are not cast.
    """
    copy = 0 if element_bytes == FLOAT32.nbytes else FLOAT32.nbytes
    return n * vocabulary * (element_bytes + copy)


def lm_head_params(d: int, vocabulary: int, *, tied: bool = False) -> int:
    """Parameters: `[V, d]`; none if it shares the embedding's."""
    return 0 if tied else linear_params(d, vocabulary)
