"""Root-mean-square norms."""

from __future__ import annotations

from typing import Any, Final

from dsocr_analyze.knowledge.machinery.page import Formulas, Parameter

__all__ = ["RMS_NORM", "rms_norm_formulas", "rms_norm_parameters"]

RMS_NORM: Final = r"y = w \odot \frac{x}{\sqrt{\frac{1}{d} \sum_{i=1}^{d} x_i^2 + \varepsilon}}"


def rms_norm_formulas(tokens: str) -> Formulas:
    """Formulas of a norm over d features of `tokens` tokens, in the page's symbols."""
    return Formulas(vector_flops=f"{tokens} * (4 * d + 2)", params="d")


def rms_norm_parameters(d: int, eps: Any) -> dict[str, Parameter]:
    """Parameters of the constructor."""
    return {
        "hidden_size": Parameter("Width that is normalised.", d),
        "eps": Parameter("Added to the mean square before the root.", eps),
    }
