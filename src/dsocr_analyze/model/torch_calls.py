"""The types of what torch's modes and hooks pass on: functions, and the arguments of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "Arguments",
    "DispatchMode",
    "Function",
    "Key",
    "Keywords",
    "Operator",
    "Result",
    "Shapes",
    "Value",
    "Values",
    "tensors_in",
    "uncounted",
]


Value: TypeAlias = (
    "torch.Tensor | bool | int | float | complex | str | torch.dtype | torch.device | torch.layout"
    " | torch.memory_format | slice | Sequence[Value] | Mapping[str, Value] | None"
)
"""What operators take and return, and most modules."""

Function: TypeAlias = "Callable[..., Value]"
"""A function of torch or the forward of a module, of any signature."""

Operator: TypeAlias = "OpOverload[..., Value]"
"""An operator below Python."""

Arguments: TypeAlias = Sequence[Any]
"""A call's positional arguments: whatever a model passes to its modules and to torch."""

Values: TypeAlias = Iterable[Any]
"""Arguments or results of a call, however collected."""

Keywords: TypeAlias = dict[str, Any]
"""A call's keyword arguments."""

Result = TypeVar("Result")
"""What a function returns, for modes that pass it on."""

Key: TypeAlias = tuple[Any, ...]
"""What tells a call from others: functions, shapes, types and plain values, all hashable."""

Shapes: TypeAlias = "tuple[int, ...] | list[Shapes] | None"
"""Shapes of tensors as they were nested in tuples, lists and dictionaries; None for others."""


def tensors_in(values: Values) -> Iterator[torch.Tensor]:
    """The tensors among values, or in tuples, lists and slices among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors_in(value)
        elif isinstance(value, slice):
            yield from tensors_in((value.start, value.stop, value.step))


@contextmanager
def uncounted() -> Iterator[None]:
    """Runs the body outside every hook and mode, so its operators are not counted."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that torch.compile is not guarded against, unless it is in use."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Guarding against torch.compile would import all of torch._dynamo for nothing.
        return False
