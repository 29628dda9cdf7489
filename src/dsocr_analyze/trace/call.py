"""One executed operator as its rule sees it, and fvcore's handles as counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from dsocr_analyze.kernels import Dimensions, Kind
from dsocr_analyze.model.torch_calls import Arguments, Keywords

with warnings.catch_warnings():
    # fvcore scripts its loss functions when it is imported; nothing here calls them.
    warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
    from fvcore.nn import jit_handles

__all__ = [
    "Call",
    "Count",
    "Rule",
    "all_inputs",
    "all_outputs",
    "first_output",
    "fvcore_count",
    "inputs_but_first",
    "jit_handles",
    "nothing",
    "occupied_bytes",
    "per_output",
]


@dataclass(frozen=True, slots=True)
class Call:
    """One executed operator, with its arguments in schema order."""

    args: Arguments
    outputs: Sequence[torch.Tensor]
    kwargs: Keywords
    tensors: Sequence[torch.Tensor]
    """All tensor arguments, also in lists."""

    def argument(self, index: int, name: str) -> Any:
        """An argument by position or keyword; None if absent."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name)


Count: TypeAlias = Callable[[Call], int]


# --- bytes -----------------------------------------------------------------------------------


def occupied_bytes(tensor: torch.Tensor) -> int:
    """Bytes that hold the tensor's elements, counting shared ones once.

    Expanded dimensions and overlapping windows share elements: there are more positions than
    elements between the first and the last.
    """
    positions, extent = 1, 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        positions *= size if stride or not size else 1
        extent += (size - 1) * stride
    return min(positions, extent) * tensor.element_size() if positions else 0


def all_inputs(call: Call) -> int:
    """Bytes of all tensor arguments."""
    return sum(map(occupied_bytes, call.tensors))


def inputs_but_first(call: Call) -> int:
    """Bytes of all other tensor arguments."""
    return sum(map(occupied_bytes, call.tensors[1:]))


def all_outputs(call: Call) -> int:
    """Bytes of all outputs."""
    return sum(map(occupied_bytes, call.outputs))


def first_output(call: Call) -> int:
    """Bytes of the first output."""
    return occupied_bytes(call.outputs[0])


def nothing(_: Call) -> int:
    """No FLOPs, no bytes."""
    return 0


# --- elements --------------------------------------------------------------------------------


def per_output(flops: int, call: Call) -> int:
    """FLOPs per element of the first output."""
    return flops * call.outputs[0].numel()


@dataclass(frozen=True, slots=True)
class Rule:
    """How operators of one family are counted.

    Attributes:
        kind: Kind of kernel.
        reason: Where the counts come from.
        macs: Multiply-accumulates; only of matrix operators.
        vector_flops: All other FLOPs.
        dimensions: Size of the kernel; None for the elements of its first output.
    """

    kind: Kind
    reason: str
    macs: Count | None = None
    vector_flops: Count = nothing
    bytes_read: Count = all_inputs
    bytes_written: Count = all_outputs
    dimensions: Callable[[Call], Dimensions] | None = None


# --- fvcore's handles ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Value:
    """A `torch._C.Value` with a shape or a constant, as fvcore's handles see it."""

    value: Any
    flat: bool
    """Whether a tensor's shape is presented as [1, elements]."""

    def isCompleteTensor(self) -> bool:  # noqa: N802 - fvcore's name
        return isinstance(self.value, torch.Tensor)

    def type(self) -> _Value:
        return self

    def sizes(self) -> list[int]:
        return [1, self.value.numel()] if self.flat else list(self.value.shape)

    def toIValue(self) -> Any:  # noqa: N802 - fvcore's name
        return self.value


def fvcore_count(
    handle: Callable[..., float | dict[str, float]],
    call: Call,
    *,
    inputs: int | None = None,
    flat: bool = False,
) -> int:
    """The count of one of `fvcore.nn.jit_handles`; of matrix operators, its flop is a MAC.

    Args:
        handle: The handle.
        call: The call.
        inputs: Number of arguments that the handle expects; None for all.
        flat: Whether to present shapes as [1, elements], as some handles need.
    """
    arguments = [*map(partial(_Value, flat=flat), call.args[:inputs])]
    counted = handle(arguments, [_Value(call.outputs[0], flat)])
    return int(sum(counted.values()) if isinstance(counted, dict) else counted)
