"""Activation functions, operator by operator, as `ACT2FN` of transformers 4.46 runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from dsocr_analyze.kernels import Kind
from dsocr_analyze.tape.tape import Tape
from dsocr_analyze.tape.tensor import Operand

__all__ = ["ACTIVATIONS", "activation", "quick_gelu"]

Activation: TypeAlias = Callable[[Tape, Operand], Operand]


def activation(t: Tape, x: Operand, name: str) -> Operand:
    """The module of an activation of `ACTIVATIONS`; elements in, as many out."""
    return ACTIVATIONS[name](t, x)


def _one(operator: str, flops: int = 1, kind: Kind = "activation") -> Activation:
    """An activation that is a single operator."""
    return lambda t, x: t.map(operator, x, flops=flops, kind=kind)


_SIGMOID: Final = _one("sigmoid", 4)
_TANH: Final = _one("tanh")
_ERF: Final = _one("erf")
_RELU: Final = _one("relu")
_GELU: Final = _one("gelu", 5)


def quick_gelu(t: Tape, x: Operand) -> Operand:
    """`x sigmoid(1.702 x)` (Hendrycks and Gimpel 2016)."""
    return t.map("mul", x, _SIGMOID(t, t.map("mul", x)))


def _gelu_new(t: Tape, x: Operand) -> Operand:
    """`0.5 x (1 + tanh(c (x + 0.044715 x^3)))`."""
    half = t.map("mul", x)
    return t.map(
        "mul",
        half,
        t.map("add", _TANH(t, t.map("mul", t.map("add", x, t.map("mul", t.map("pow", x)))))),
    )


def _gelu_fast(t: Tape, x: Operand) -> Operand:
    """`0.5 x (1 + tanh(c x (1 + 0.044715 x x)))`."""
    half = t.map("mul", x)
    return t.map(
        "mul",
        half,
        t.map(
            "add",
            _TANH(t, t.map("mul", t.map("mul", x), t.map("add", t.map("mul", t.map("mul", x), x)))),
        ),
    )


def _gelu_python(t: Tape, x: Operand) -> Operand:
    """`0.5 x (1 + erf(x / sqrt(2)))`."""
    half = t.map("mul", x)
    return t.map("mul", half, t.map("add", _ERF(t, t.map("div", x))))


def _laplace(t: Tape, x: Operand) -> Operand:
    """`0.5 (1 + erf((x - mu) / (sigma sqrt(2))))`."""
    x = t.map("div", t.map("sub", x))
    halved = t.map("mul", t.map("add", _ERF(t, x)))
    t.hold(x)
    return halved


def _relu2(t: Tape, x: Operand) -> Operand:
    """`relu(x)^2`."""
    return t.map("pow", _RELU(t, x))


ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": _one("silu", 5),
    "swish": _one("silu", 5),
    "gelu": _GELU,
    "gelu_pytorch_tanh": _GELU,
    "gelu_new": _gelu_new,
    "gelu_accurate": _gelu_new,
    "gelu_10": lambda t, x: t.map("clamp", _GELU(t, x)),
    "gelu_fast": _gelu_fast,
    "gelu_python": _gelu_python,
    "laplace": _laplace,
    "mish": _one("mish", 5),
    "quick_gelu": quick_gelu,
    "relu": _RELU,
    "relu2": _relu2,
    "relu6": _one("hardtanh", kind="elementwise"),
    "leaky_relu": _one("leaky_relu"),
    "sigmoid": _SIGMOID,
    "tanh": _TANH,
    "linear": lambda _, x: x,
}
"""Names of `hidden_act`, each with its operators."""
