"""Answers operators on `meta`: those whose output depends on known values, and equal calls once.

The result of `nonzero` has as many elements as values demand. Any other operator works out the
shape, strides and type of its output, and nothing in a pass takes PyTorch longer.
"""

from __future__ import annotations

import functools
from operator import attrgetter
from typing import Any, Final, NamedTuple

import torch

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.known_values import WITH_VALUES, frozen, known_value, set_known_value
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

_ATEN: Final = torch.ops.aten
_GROUPED_MM: Final = getattr(getattr(_ATEN, "_grouped_mm", None), "default", None)
"""Missing from the oldest supported versions of torch."""
_MASKS: Final = (torch.bool, torch.uint8)

_TENSORS: Final = (torch.Tensor, torch.nn.Parameter)
_VALUES: Final = (
    int, float, bool, complex, str, type(None),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_MOST_CALLS: Final = 1 << 16
_CALLS: Final[dict[Key, list[Look]]] = {}


class Look(NamedTuple):
    """What makes a tensor on `meta` like another."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    nbytes: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Look:
        """How a tensor looks."""
        offset, nbytes = int(tensor.storage_offset()), tensor.untyped_storage().nbytes()
        return cls(tuple(tensor.shape), tensor.stride(), offset, tensor.dtype, nbytes)

    def make(self) -> torch.Tensor:
        """A new tensor that looks like this."""
        made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")
        if not self.offset and made.untyped_storage().nbytes() == self.nbytes:
            return made
        whole = torch.empty(self.nbytes // made.element_size(), dtype=self.dtype, device="meta")
        return whole.as_strided(self.shape, self.strides, self.offset)


def known_shape(func: Operator, args: Arguments, kwargs: Keywords) -> Any:
    """An operator's output; on `meta`, like that of an earlier call with equal arguments."""
    if func is _GROUPED_MM and args[0].is_meta and args[0].dtype != torch.bfloat16:
        # [M, K] x [E, K, N] -> [M, N], whose own function on `meta` only takes bfloat16
        return args[0].new_empty((*args[0].shape[:-1], args[1].shape[-1]))
    if _depends_on_values(func) and any(map(attrgetter("is_meta"), tensors_in(args))):
        return _answer(func, args, kwargs)
    # Other code's modes, below, want to see every operator.
    is_watched = torch._C._len_torch_dispatch_stack()
    call = call_of(func, args, kwargs) if makes_tensors(func) and not is_watched else None
    if call is None:
        return func(*args, **kwargs)
    known = _CALLS.get(call)
    if known is None:
        output = func(*args, **kwargs)
        found = looks_of([output], [*args, *kwargs.values()])
        # An undefined tensor among the outputs is None, and no tensor.
        if found is not None and len(found) == len(func._schema.returns):
            if len(_CALLS) >= _MOST_CALLS:
                _CALLS.clear()
            _CALLS[call] = found
        return output
    made = tuple(map(Look.make, known))
    return made[0] if len(made) == 1 else made


KnownShapes: Final = functools.partial(DispatchMode, known_shape)
"""The mode, which belongs below all others."""


@functools.cache
def _depends_on_values(func: Operator) -> bool:
    """By PyTorch's own tags."""
    tags = getattr(func, "tags", ())
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


@functools.cache
def makes_tensors(func: Operator) -> bool:
    """Whether an operator only makes new tensors, which look alike for all values."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.returns or _depends_on_values(func):
        return False
    if any(map(attrgetter("alias_info"), (*schema.arguments, *schema.returns))):
        return False
    return {*map(str, map(attrgetter("type"), schema.returns))} == {"Tensor"}


# --- values ----------------------------------------------------------------------------------


def _answer(func: Operator, args: Arguments, kwargs: Keywords) -> Any:
    """The output of an operator that depends on values."""
    if kwargs.get("output_size") is not None:  # as repeat_interleave accepts it
        return func(*args, **kwargs)
    if func is _ATEN.index.Tensor:
        indices = list[Any]()
        for index in args[1]:
            if isinstance(index, torch.Tensor) and index.is_meta and index.dtype in _MASKS:
                with uncounted():  # as a device would use it: its set positions, by dimension
                    [mask] = _values_of(func, index)
                    indices += map(_on_meta, mask.nonzero().unbind(1))
            else:
                indices.append(index)
        return func(args[0], indices, **kwargs)
    with uncounted():
        if func is _ATEN.masked_select.default:  # its elements' own values are not needed
            shape = torch.broadcast_shapes(*(each.shape for each in args))
            [mask] = _values_of(func, args[1])
            return args[0].new_empty(int(mask.expand(shape).count_nonzero()))
        values = _values_of(func, *args, *kwargs.values())
        positional, named = values[: len(args)], values[len(args) :]
        return _on_meta(func(*positional, **dict(zip(kwargs, named, strict=True))))


def _values_of(func: Operator, *arguments: Value) -> Any:
    """Arguments on the CPU, with the tensors' values; ModelCodeError if one is unknown."""
    for tensor in tensors_in(arguments):
        if tensor.is_meta and known_value(tensor) is None:
            raise ModelCodeError(
                f"the model's code calls {func.overloadpacket.__name__} on a tensor of shape"
                f" {tuple(tensor.shape)} that has no values on meta, and its result depends on"
                f" them; {WITH_VALUES}",
                arguments=["device='cpu'"],
            )
    return frozen(arguments)()


def _on_meta(output: Value) -> Value:
    """Tensors on `meta`, with known values, for computed ones."""
    if isinstance(output, tuple | list):
        return tuple(map(_on_meta, output))
    if not isinstance(output, torch.Tensor):
        return output
    tensor = torch.empty_like(output, device="meta")
    set_known_value(tensor, lambda: output)
    return tensor


# --- calls -----------------------------------------------------------------------------------


def call_of(func: Function | str, args: Arguments, kwargs: Keywords) -> Key | None:
    """A call and all that its outputs may depend on; None if that is unclear.

    It is clear of plain tensors on `meta`, values, and tuples or lists of these.
    """
    parts: list[Any] = [func, torch.get_default_dtype()]
    is_clear = _describe(args, parts) and _describe(kwargs.items(), parts)
    return tuple(parts) if is_clear else None


def _describe(arguments: Values, parts: list[Any]) -> bool:
    """Appends to `parts`; False if it is unclear."""
    for argument in arguments:
        kind = type(argument)
        if kind in _TENSORS:
            is_lazy = argument.is_conj() or argument.is_neg() or argument.is_nested
            if not argument.is_meta or argument.layout is not torch.strided or is_lazy:
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


def looks_of(outputs: Values, inputs: Values) -> list[Look] | None:
    """What makes a call's outputs again; None if they share memory, or are not plain tensors."""
    found, used = list[Look](), set[int]()
    for each in tensors_in(inputs):
        used.add(each.untyped_storage()._cdata)
    for output in tensors_in(outputs):
        if type(output) is not torch.Tensor or not output.is_meta:
            return None
        if output.layout is not torch.strided or output.is_conj() or output.is_neg():
            return None
        memory = output.untyped_storage()._cdata
        if memory in used:
            return None
        used.add(memory)
        found.append(Look.of(output))
    return found
