"""The head: logits at every position, cast to fp32.

Source: `DeepseekOCRForCausalLM.forward` (`modeling_deepseekocr.py`).
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.operators import cast
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import FLOAT32, Dtype

__all__ = ["lm_head"]


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
