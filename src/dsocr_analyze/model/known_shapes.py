"""Answers operators on `meta` that PyTorch's own functions there can't, or answer otherwise.

The result of `nonzero` has as many elements as known values demand. That of a convolution is laid
out as on a CPU or GPU.
"""

import functools
from operator import attrgetter
from typing import Any, Final

import torch
from torch._prims_common import suggest_memory_format

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.known_values import WITH_VALUES, frozen, known_value, set_known_value
from dsocr_analyze.model.torch_calls import (
    Arguments,
    DispatchMode,
    Keywords,
    Operator,
    Value,
    tensors_in,
    uncounted,
)

_ATEN: Final = torch.ops.aten
_GROUPED_MM: Final = getattr(getattr(_ATEN, "_grouped_mm", None), "default", None)
"""Missing from the oldest supported versions of torch."""
_MASKS: Final = (torch.bool, torch.uint8)


def known_shape(func: Operator, args: Arguments, kwargs: Keywords) -> Any:
    """An operator's output, on `meta` also where its shape depends on values, or its layout."""
    if func is _GROUPED_MM and args[0].is_meta and args[0].dtype != torch.bfloat16:
        # [M, K] x [E, K, N] -> [M, N], whose own function on `meta` only takes bfloat16
        return args[0].new_empty((*args[0].shape[:-1], args[1].shape[-1]))
    if func is _ATEN.convolution.default and args[0].is_meta:
        return _convolved(func(*args, **kwargs), *args[:2])
    if depends_on_values(func) and any(map(attrgetter("is_meta"), tensors_in(args))):
        return _answer(func, args, kwargs)
    return func(*args, **kwargs)


KnownShapes: Final = functools.partial(DispatchMode, known_shape)
"""The mode, which belongs below all others."""


@functools.cache
def depends_on_values(func: Operator) -> bool:
    """Whether an operator's output does, by PyTorch's own tags."""
    tags = getattr(func, "tags", ())
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


# --- layouts ---------------------------------------------------------------------------------


def _convolved(output: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A convolution's output, whose channels are last in memory if those of one factor are.

    Source: `cudnn_conv_suggest_memory_format` and `mkldnn_conv_use_channels_last` of ATen.
    """
    layout = suggest_memory_format(x)
    if layout == torch.contiguous_format:
        layout = suggest_memory_format(weight)
    return torch.empty_like(output, memory_format=layout)


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
    """Tensors on `meta`, with known values, for computed ones, in as much memory.

    PyTorch makes room for as many elements as there may be, and keeps it.
    """
    if isinstance(output, tuple | list):
        return tuple(map(_on_meta, output))
    if not isinstance(output, torch.Tensor):
        return output
    elements = output.untyped_storage().nbytes() // output.element_size()
    memory = torch.empty(elements, dtype=output.dtype, device="meta")
    tensor = memory.as_strided(output.shape, output.stride(), output.storage_offset())
    set_known_value(tensor, lambda: output)
    return tensor
