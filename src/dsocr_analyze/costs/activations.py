"""Activation functions, operator by operator."""

from __future__ import annotations

from typing import Final, NamedTuple

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import Kernels, elementwise
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.kernels import Kind

__all__ = ["activation", "activation_flops", "gelu", "quick_gelu"]


class _Step(NamedTuple):
    """One operator of an activation."""

    operator: str
    flops: int = 1
    inputs: int = 1
    kind: Kind = "elementwise"


def _one(operator: str, flops: int) -> tuple[_Step, ...]:
    return (_Step(operator, flops, kind="activation"),)


_SCALE: Final = _Step("mul")
_PRODUCT: Final = _Step("mul", inputs=2)
_SHIFT: Final = _Step("add")
_SUM: Final = _Step("add", inputs=2)
_POWER: Final = _Step("pow")
_TANH: Final = _Step("tanh", kind="activation")
_ERF: Final = _Step("erf", kind="activation")
_TANH_GELU: Final = (_SCALE, _POWER, _SCALE, _SUM, _SCALE, _TANH, _SHIFT, _PRODUCT)

ACTIVATIONS: Final[dict[str, tuple[_Step, ...]]] = {
    "silu": _one("silu", 5),
    "swish": _one("silu", 5),
    "gelu": _one("gelu", 5),
    "gelu_pytorch_tanh": _one("gelu", 5),
    "gelu_new": _TANH_GELU,
    "gelu_accurate": _TANH_GELU,
    "gelu_10": (*_one("gelu", 5), _Step("clamp")),
    "gelu_fast": (_SCALE, _SCALE, _SCALE, _PRODUCT, _SHIFT, _PRODUCT, _TANH, _SHIFT, _PRODUCT),
    "gelu_python": (_SCALE, _Step("div"), _ERF, _SHIFT, _PRODUCT),
    "laplace": (_Step("sub"), _Step("div"), _ERF, _SHIFT, _SCALE),
    "mish": _one("mish", 5),
    "quick_gelu": (_SCALE, _Step("sigmoid", 4, kind="activation"), _PRODUCT),
    "relu": _one("relu", 1),
    "relu2": (*_one("relu", 1), _POWER),
    "relu6": (_Step("hardtanh"),),
    "leaky_relu": _one("leaky_relu", 1),
    "sigmoid": _one("sigmoid", 4),
    "tanh": (_TANH,),
    "linear": (),
}
"""Names of `hidden_act` supported by `ACT2FN` of transformers 4.46."""


def activation(name: str, elements: Count, dtype: Dtype) -> Kernels:
    """Any activation of `ACTIVATIONS`.

    Args:
        name: Its name, as in `hidden_act`.
        elements: Number of elements.
        dtype: Their type.

    Raises:
        ConfigError: The name has no closed form.
    """
    kernels: Kernels = ()
    for step in _steps(name):
        kernels += elementwise(
            step.operator, elements, dtype, flops=step.flops, inputs=step.inputs, kind=step.kind
        )
    return kernels


def activation_flops(name: str) -> int:
    """FLOPs per element of an activation of `ACTIVATIONS`; raises ConfigError like `activation`."""
    return sum(step.flops for step in _steps(name))


def _steps(name: str) -> tuple[_Step, ...]:
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"config.json: no closed form for 'hidden_act' {name!r}; "
            f"give one of {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def gelu(elements: Count, dtype: Dtype) -> Kernels:
    """`x / 2 (1 + erf(x / sqrt 2))`: 5 FLOPs per element (Hendrycks and Gimpel 2016).

    Args:
        elements: Number of elements.
        dtype: Their type.
    """
    return activation("gelu", elements, dtype)


def quick_gelu(elements: Count, dtype: Dtype) -> Kernels:
    """`x sigmoid(1.702 x)` as a product, a sigmoid (4 FLOPs) and a product, each in memory.

    Source: Hendrycks and Gimpel 2016; `quick_gelu` (`deepencoder.py`).

    Args:
        elements: Number of elements.
        dtype: Their type.
    """
    return activation("quick_gelu", elements, dtype)
