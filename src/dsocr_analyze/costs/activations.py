"""Activation functions, element by element."""

from __future__ import annotations

from typing import Final, NamedTuple

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.movement import elementwise
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.work import Work

__all__ = ["ACTIVATIONS", "Passes", "activation", "gelu", "quick_gelu", "silu"]


class Passes(NamedTuple):
    """What an activation does to a tensor, operator by operator."""

    flops: int
    """FLOPs an element."""
    reads: int
    """Tensors of that size read."""
    writes: int
    """Tensors of that size written."""


ACTIVATIONS: Final[dict[str, Passes]] = {
    "silu": Passes(5, 1, 1),
    "swish": Passes(5, 1, 1),
    "gelu": Passes(5, 1, 1),
    "gelu_pytorch_tanh": Passes(5, 1, 1),
    "quick_gelu": Passes(6, 4, 3),
    "relu": Passes(1, 1, 1),
    "relu2": Passes(2, 2, 2),
    "leaky_relu": Passes(1, 1, 1),
    "sigmoid": Passes(4, 1, 1),
    "tanh": Passes(1, 1, 1),
    "linear": Passes(0, 0, 0),
}
"""By the name that `hidden_act` has in `transformers.activations.ACT2FN`."""


def activation(name: str, elements: Count, element_bytes: int) -> Work:
    """Any activation of `ACTIVATIONS`.

    Args:
        name: Its name, as `hidden_act` gives it.
        elements: Elements.
        element_bytes: Bytes of each.

    Raises:
        ConfigError: No closed form for that name.
    """
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"config.json: no closed form for 'hidden_act' {name!r}; "
            f"give one of {', '.join(ACTIVATIONS)}, or trace the model"
        )
    passes = ACTIVATIONS[name]
    size = elements * element_bytes
    return Work(
        vector_flops=passes.flops * elements,
        bytes_read=passes.reads * size,
        bytes_written=passes.writes * size,
    )


def gelu(elements: Count, element_bytes: int) -> Work:
    """`x / 2 (1 + erf(x / sqrt 2))`: 5 FLOPs an element (Hendrycks and Gimpel 2016).

    Args:
        elements: Elements.
        element_bytes: Bytes of each.
    """
    return elementwise(elements, element_bytes, flops=5)


def quick_gelu(elements: Count, element_bytes: int) -> Work:
    """`x sigmoid(1.702 x)` as a product, a sigmoid (4 FLOPs) and a product, each in memory.

    Source: Hendrycks and Gimpel 2016; `quick_gelu` (`deepencoder.py`).

    Args:
        elements: Elements.
        element_bytes: Bytes of each.
    """
    return activation("quick_gelu", elements, element_bytes)


def silu(elements: Count, element_bytes: int) -> Work:
    """`x sigmoid(x)`: 5 FLOPs an element.

    Args:
        elements: Elements.
        element_bytes: Bytes of each.
    """
    return elementwise(elements, element_bytes, flops=5)
