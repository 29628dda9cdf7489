"""torch's modes, and types of what they and hooks pass on."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Value: TypeAlias = (
    "torch.Tensor | bool | int | float | complex | str | torch.dtype | torch.device | torch.layout"
    " | torch.memory_format | slice | Sequence[Value] | Mapping[str, Value] | None"
)
"""What operators and most modules take and return."""

Function: TypeAlias = "Callable[..., Value]"
"""A function of torch or a module's forward."""

Operator: TypeAlias = "OpOverload[..., Value]"
"""An operator below Python."""

Arguments: TypeAlias = Sequence[Any]
"""A call's positional arguments."""

Values: TypeAlias = Iterable[Any]
"""Arguments or results of a call, however collected."""

Keywords: TypeAlias = dict[str, Any]
"""A call's keyword arguments."""

Result = TypeVar("Result")
"""What a function returns."""

Key: TypeAlias = tuple[Any, ...]
"""What identifies a call."""

Shapes: TypeAlias = "tuple[int, ...] | list[Shapes] | None"
"""Shapes of nested tensors; None for other values."""


SEQUENCES: Final = tuple | list
_NUMBERS: Final = frozenset({int, float, bool, type(None)})


def tensors_in(values: Values) -> Iterator[torch.Tensor]:
    """The tensors among values, or in tuples, lists and slices among them."""
    for value in values:
        if type(value) in _NUMBERS:
            continue
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, SEQUENCES):
            yield from tensors_in(value)
        elif isinstance(value, slice):
            yield from tensors_in((value.start, value.stop, value.step))


@contextmanager
def uncounted() -> Iterator[None]:
    """Runs the body outside every mode, so its operators are not counted."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


class FunctionMode(TorchFunctionMode):
    """Has `answer` answer every call of a function of torch."""

    def __init__(self, answer: Callable[[Function, Arguments, Keywords], Any]) -> None:
        super().__init__()
        self._answer = answer

    def __torch_function__(
        self,
        func: Function,
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Any:
        return self._answer(func, args, kwargs or {})


class DispatchMode(TorchDispatchMode):
    """The same for operators below Python; those that take functions raise by default."""

    def __init__(
        self,
        answer: Callable[[Any, Arguments, Keywords], Any],
        *,
        takes_functions: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
        self.answer = answer
        self.supports_higher_order_operators = takes_functions

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Any:
        return self.answer(func, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Guarding against torch.compile would import torch._dynamo.
        return False
