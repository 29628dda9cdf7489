"""Answers operators on `meta` that have run on equal arguments before.

On `meta` an operator only works out the shape, strides and data type of its output, which takes
PyTorch longer than anything else in a pass. A model runs the same few hundred calls over and over.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch

from dsocr_analyze.running.torch_calls import (
    Arguments,
    Function,
    Key,
    Keywords,
    Operator,
    Value,
    Values,
)

__all__ = ["Output", "call_of", "described", "run_on_meta", "tensors_in"]

_TENSORS: Final = (torch.Tensor, torch.nn.Parameter)
_VALUES: Final = (
    int, float, bool, complex, str, type(None),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_MOST_CALLS: Final = 1 << 16
_CALLS: Final[dict[Key, tuple[Output, ...]]] = {}


class Output(NamedTuple):
    """A tensor on `meta` with memory of its own."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def make(self) -> torch.Tensor:
        """A new such tensor."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


def run_on_meta(func: Operator, args: Arguments, kwargs: Keywords) -> Value:
    """An operator's output; calculated only if no call with equal arguments was."""
    # Other code's modes, below, want to see every operator.
    if torch._C._len_torch_dispatch_stack() or not _makes_new_tensors(func):
        return func(*args, **kwargs)
    call = call_of(func, args, kwargs)
    if call is None:
        return func(*args, **kwargs)
    known = _CALLS.get(call)
    if known is None:
        output = func(*args, **kwargs)
        found = described([output], [*args, *kwargs.values()])
        # An undefined tensor among the outputs is None, and no tensor.
        if found is not None and len(found) == len(func._schema.returns):
            if len(_CALLS) >= _MOST_CALLS:
                _CALLS.clear()
            _CALLS[call] = found
        return output
    made = tuple(output.make() for output in known)
    return made[0] if len(made) == 1 else made


def call_of(func: Function | str, args: Arguments, kwargs: Keywords) -> Key | None:
    """A call and all that its outputs may depend on; None if that is unclear.

    Args:
        func: What is called.
        args: Its arguments: plain tensors on `meta`, values, and tuples or lists of these.
        kwargs: Its keyword arguments.
    """
    parts: list[Any] = [func, torch.get_default_dtype()]
    is_clear = _describe(args, parts) and _describe(kwargs.items(), parts)
    return tuple(parts) if is_clear else None


@functools.cache
def _makes_new_tensors(func: Function) -> bool:
    """Whether an operator only returns new tensors, and changes none, by its schema."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return False
    aliases = any(argument.alias_info for argument in (*schema.arguments, *schema.returns))
    tensors = all(str(returned.type) == "Tensor" for returned in schema.returns)
    return bool(schema.returns) and tensors and not aliases


def _describe(arguments: Values, parts: list[Any]) -> bool:
    """Appends to `parts` all that an output may depend on; False if that is unclear."""
    for argument in arguments:
        kind = type(argument)
        if kind in _TENSORS:
            if not argument.is_meta or argument.layout is not torch.strided:
                return False
            if argument.is_conj() or argument.is_neg():
                return False
            parts += (argument.shape, argument.stride(), argument.dtype)
        elif kind in _VALUES:
            parts += (kind, argument)  # 1, 1.0 and True are equal
        elif kind in (tuple, list):
            parts += (kind, len(argument))
            if not _describe(argument, parts):
                return False
        else:
            return False
    return True


def tensors_in(values: Values) -> Iterator[torch.Tensor]:
    """The tensors among values, or in tuples, lists and slices among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors_in(value)
        elif isinstance(value, slice):
            yield from tensors_in((value.start, value.stop, value.step))


def described(outputs: Values, inputs: Values) -> tuple[Output, ...] | None:
    """What makes these outputs again; None if they share memory or have more than they show.

    Args:
        outputs: What a call returned, possibly in tuples and lists.
        inputs: Its arguments, likewise.
    """
    found = []
    used = {tensor.untyped_storage()._cdata for tensor in tensors_in(inputs)}
    for output in tensors_in(outputs):
        if type(output) is not torch.Tensor or not output.is_meta:
            return None
        if output.layout is not torch.strided or output.is_conj() or output.is_neg():
            return None
        described = Output(tuple(output.shape), output.stride(), output.dtype)
        memory = output.untyped_storage()
        if memory._cdata in used or output.storage_offset():
            return None
        if memory.nbytes() != described.make().untyped_storage().nbytes():
            return None
        used.add(memory._cdata)
        found.append(described)
    return tuple(found)
