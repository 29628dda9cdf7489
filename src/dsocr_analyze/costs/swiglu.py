"""Gated MLP: `W_down (act(W_gate x) * W_up x)`, three linears without bias.

Source: Shazeer 2020, eq. 6 (SwiGLU if act is SiLU); `DeepseekV2MLP` (`modeling_deepseekv2.py`).
"""

from __future__ import annotations

from dsocr_analyze.costs.activations import activation
from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.operators import elementwise
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import Dtype

__all__ = ["swiglu"]


def swiglu(rows: Count, d: int, f: int, dtype: Dtype, act: str = "silu") -> ModuleKernels:
    """`[rows, d] -> [rows, d]` through a hidden width f: 3 rows d f MACs.

    Args:
        rows: Tokens.
        d: Width.
        f: Hidden width.
        dtype: Type of features and weights.
        act: The activation, one of `ACTIVATIONS`.

    Returns:
        Own kernel (the product of gate and up), the three projections and `act_fn`.
    """
    hidden = rows * f
    widening = linear(rows, d, f, dtype)
    return {
        "": elementwise("mul", hidden, dtype, inputs=2),
        "gate_proj": widening,
        "act_fn": activation(act, hidden, dtype),
        "up_proj": widening,
        "down_proj": linear(rows, f, d, dtype),
    }
