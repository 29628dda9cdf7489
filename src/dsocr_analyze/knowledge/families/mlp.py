"""MLPs: gated in the language models, plain in the vision encoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.dtypes import BFLOAT16, Dtype
from dsocr_analyze.knowledge.machinery.page import Formulas

__all__ = ["SILU_GATE", "gated_mlp_formulas", "mlp_formulas", "mlp_kernels"]

SILU_GATE: Final = r"y = \left(\mathrm{silu}(x W_{gate}^T) \odot x W_{up}^T\right) W_{down}^T"


def gated_mlp_formulas(tokens: str) -> Formulas:
    """Formulas of two maps up, one activated times the other, and a map down; no biases.

    Args:
        tokens: How many there are, in the page's symbols.
    """
    return Formulas(
        macs=f"3 * {tokens} * d * m",
        vector_flops=f"(a + 1) * {tokens} * m",
        params="3 * d * m",
        activations=f"{tokens} * (2 * m + d)",
    )


def mlp_formulas(tokens: str, activation: int) -> Formulas:
    """Formulas of a map up, an activation and a map down; both maps with bias.

    Args:
        tokens: How many there are, in the page's symbols.
        activation: FLOPs of the activation per element.
    """
    return Formulas(
        macs=f"2 * {tokens} * d * m",
        vector_flops=f"{tokens} * ({activation + 1} * m + d)",
        params="2 * d * m + m + d",
        activations=f"{tokens} * (m + d)",
    )


def mlp_kernels(
    tokens: int, d: int, m: int, activation: Callable[[int, Dtype], Kernels]
) -> Kernels:
    """Kernels of the same MLP from the closed forms; `activation` returns its activation's."""
    return (
        *linear(tokens, d, m, BFLOAT16, bias=True),
        *activation(tokens * m, BFLOAT16),
        *linear(tokens, m, d, BFLOAT16, bias=True),
    )
