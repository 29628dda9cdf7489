"""One executed operator as its rule sees it: arguments, outputs, and the bytes they occupy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from dsocr_analyze.kernels import Dimensions, Elements, Kind
from dsocr_analyze.running.torch_calls import Arguments, Keywords

__all__ = [
    "Call",
    "Count",
    "Rule",
    "all_inputs",
    "all_outputs",
    "first_output",
    "inputs_but_first",
    "nothing",
    "occupied_bytes",
    "output_elements",
]


@dataclass(frozen=True, slots=True)
class Call:
    """One executed operator: its arguments in schema order and its output tensors."""

    args: Arguments
    outputs: Sequence[torch.Tensor]
    kwargs: Keywords

    def argument(self, index: int, name: str) -> Any:
        """The argument at `index` or, if passed by keyword, called `name`; None if absent."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name)

    @property
    def is_complex(self) -> bool:
        """Whether any argument or output holds complex numbers."""
        return any(tensor.is_complex() for tensor in (*self.outputs, *self.tensors()))

    def tensors(self) -> list[torch.Tensor]:
        """All tensor arguments, including those in lists."""
        found: list[torch.Tensor] = []
        for argument in (*self.args, *self.kwargs.values()):
            if isinstance(argument, torch.Tensor):
                found.append(argument)
            elif isinstance(argument, tuple | list):
                found.extend(item for item in argument if isinstance(item, torch.Tensor))
        return found


Count: TypeAlias = Callable[[Call], int]


# --- bytes -----------------------------------------------------------------------------------


def occupied_bytes(tensor: torch.Tensor) -> int:
    """Bytes that hold the tensor's elements, counting shared elements once.

    Elements are shared in an expanded dimension (stride 0) and between overlapping windows, where
    the tensor has more positions than there are elements between its first and its last.
    """
    positions, extent = 1, 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        positions *= size if stride or not size else 1
        extent += (size - 1) * stride
    return min(positions, extent) * tensor.element_size() if positions else 0


def all_inputs(call: Call) -> int:
    """Bytes of all tensor arguments."""
    return sum(occupied_bytes(tensor) for tensor in call.tensors())


def all_outputs(call: Call) -> int:
    """Bytes of all outputs."""
    return sum(occupied_bytes(tensor) for tensor in call.outputs)


def first_output(call: Call) -> int:
    """Bytes of the first output."""
    return occupied_bytes(call.outputs[0])


def inputs_but_first(call: Call) -> int:
    """Bytes of all tensor arguments except the first."""
    return sum(occupied_bytes(tensor) for tensor in call.tensors()[1:])


def nothing(_: Call) -> int:
    """No FLOPs, no bytes."""
    return 0


# --- elements --------------------------------------------------------------------------------


def output_elements(call: Call) -> int:
    """Elements of the first output."""
    return call.outputs[0].numel()


def _elements(call: Call) -> Dimensions:
    return Elements(call.outputs[0].numel())


@dataclass(frozen=True, slots=True)
class Rule:
    """How operators of one family are counted.

    Attributes:
        kind: Kind of kernel.
        reason: Where the counts come from.
        macs: Multiply-accumulates; only for matrix operators, whose output elements are the
            `activations`.
        vector_flops: FLOPs of everything else that computes.
        bytes_read: Bytes read.
        bytes_written: Bytes written.
        dimensions: Size of the kernel.
    """

    kind: Kind
    reason: str
    macs: Count | None = None
    vector_flops: Count = nothing
    bytes_read: Count = all_inputs
    bytes_written: Count = all_outputs
    dimensions: Callable[[Call], Dimensions] = _elements
