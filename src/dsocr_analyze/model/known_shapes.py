"""Answers operators on `meta` whose output shape depends on values, such as a mask's.

Some operators return as many elements as their arguments' values demand (`nonzero`, a boolean mask
as an index), or read a number below Python (`torch.arange(n)` of a tensor n). They fail on `meta`.
If `KnownValues` knows those values, they run here as on a device, visible to anyone recording
operators.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.known_values import WITH_VALUES, known_value, set_known_value
from dsocr_analyze.model.torch_calls import (
    Arguments,
    DispatchMode,
    Function,
    Key,
    Keywords,
    Operator,
    Value,
    Values,
    tensors_in,
    uncounted,
)

__all__ = [
    "KnownShapes",
    "Output",
    "call_of",
    "described",
]


_ATEN: Final = torch.ops.aten
_GROUPED_MM: Final = getattr(getattr(_ATEN, "_grouped_mm", None), "default", None)
"""Missing from the oldest supported versions of torch."""
_MASKS: Final = (torch.bool, torch.uint8)


class KnownShapes(DispatchMode):
    """Answers operators on `meta` whose output depends on values, if those are known.

    Belongs below all other dispatch modes, so that those see the operator as called.
    """

    def __torch_dispatch__(
        self,
        func: Operator,
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Value:
        kwargs = kwargs or {}
        if func is _GROUPED_MM and args[0].is_meta and args[0].dtype != torch.bfloat16:
            # [M, K] x [E, K, N] -> [M, N], whose own function on `meta` only takes bfloat16
            product: torch.Tensor = args[0].new_empty((*args[0].shape[:-1], args[1].shape[-1]))
            return product
        if not _asks_for_values(func) or not any(tensor.is_meta for tensor in tensors_in(args)):
            return _run_on_meta(func, args, kwargs)
        if kwargs.get("output_size") is not None:  # as repeat_interleave accepts it
            return func(*args, **kwargs)
        if func is _ATEN.index.Tensor:
            indices = [found for index in args[1] for found in _indices_of(func, index)]
            return func(args[0], indices, **kwargs)
        if func is _ATEN.masked_select.default:
            return _selected(func, *args)
        with uncounted():
            return _on_meta(func(*_values_of(func, args), **_values_of(func, kwargs)))


@functools.cache
def _asks_for_values(func: Function) -> bool:
    """Whether an operator's output or its shape depends on values, by PyTorch's own tags."""
    tags = getattr(func, "tags", ())
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


def _value_of(func: Operator, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's value, on the CPU.

    Raises:
        ModelCodeError: Its value is unknown.
    """
    if not tensor.is_meta:
        return tensor
    known = known_value(tensor)
    if known is None:
        raise ModelCodeError(
            f"the model's code calls {func.overloadpacket.__name__} on a tensor of shape"
            f" {tuple(tensor.shape)} that has no values on meta, and its result depends on them;"
            f" {WITH_VALUES}",
            arguments=["device='cpu'"],
        )
    value: torch.Tensor = known()
    return value


def _values_of(func: Operator, arguments: Value) -> Any:
    """Arguments with tensors replaced by their values, and `meta` by the CPU."""
    if isinstance(arguments, torch.Tensor):
        return _value_of(func, arguments)
    if isinstance(arguments, torch.device):
        return torch.device("cpu")
    if isinstance(arguments, dict):
        return {name: _values_of(func, argument) for name, argument in arguments.items()}
    if isinstance(arguments, tuple | list):
        return [_values_of(func, argument) for argument in arguments]
    return arguments


def _on_meta(output: Value) -> Value:
    """Tensors on `meta` like the computed ones, with known values; numbers unchanged."""
    if isinstance(output, tuple | list):
        return tuple(map(_on_meta, output))
    if not isinstance(output, torch.Tensor):
        return output
    tensor = torch.empty_like(output, device="meta")
    set_known_value(tensor, lambda: output)
    return tensor


def _indices_of(func: Operator, index: Value) -> list[Value]:
    """The index as a device would use it: for a mask, its set positions, by dimension."""
    if not (isinstance(index, torch.Tensor) and index.is_meta and index.dtype in _MASKS):
        return [index]
    with uncounted():
        return [_on_meta(place) for place in _value_of(func, index).nonzero().unbind(1)]


def _selected(func: Operator, source: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The elements of `source` where a known mask is set; their own values are not needed."""
    with uncounted():
        shape = torch.broadcast_shapes(source.shape, mask.shape)
        count = int(_value_of(func, mask).expand(shape).count_nonzero())
        return source.new_empty(count)


# --- operators that ran on equal arguments before --------------------------------------------
#
# On `meta` an operator only works out the shape, strides and data type of its output. This takes
# PyTorch longer than anything else in a pass, and a model runs the same few hundred calls again.

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


def _run_on_meta(func: Operator, args: Arguments, kwargs: Keywords) -> Value:
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
