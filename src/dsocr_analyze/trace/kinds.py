"""Which modules are equal, so that one's record is the other's: class, attributes, shapes.

Whatever this file does not understand makes a module unlike every other, never equal to one.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Iterator
from typing import Any, Final

import torch

from dsocr_analyze.model.known_values import known_value

__all__ = ["Kinds"]

_PLAIN: Final = (
    type(None), bool, int, float, complex, str, bytes,
    torch.dtype, torch.device, torch.memory_format, torch.layout, enum.Enum,
)  # fmt: skip
_POSITIONS: Final = frozenset({"layer_idx", "layer_id"})
"""Attributes that number a module among its neighbours, where its class makes no use of them."""

_TENSORS: Final = frozenset({"_parameters", "_buffers"})
_HOOKS: Final = frozenset({"_forward_hooks", "_forward_pre_hooks"})
_INDIFFERENT: Final = vars(torch.nn.Module()).keys() - _TENSORS - _HOOKS - {
    "_modules", "_backward_hooks", "_backward_pre_hooks", "training",
}  # fmt: skip
"""Bookkeeping of `torch.nn.Module` that a forward pass does not see."""


class _Unlike(Exception):  # noqa: N818 - an answer, not an error
    """Raised at something that cannot be compared."""


class Kinds:
    """Numbers for modules and calls: equal ones share a number.

    Args:
        own_hooks: Hooks that change nothing; a module with any other is unlike every other.
        own_forwards: The `forward` that a module had among its own attributes, by module; the one
            found there now is the recorder's.
    """

    def __init__(
        self, own_hooks: tuple[Any, ...], own_forwards: dict[torch.nn.Module, Any]
    ) -> None:
        self._own_hooks = own_hooks
        self._own_forwards = own_forwards
        self._numbers: dict[Any, int] = {}
        self._kept: dict[int, Any] = {}

    def of_call(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """What determines a call's record, or None where something unforeseen might.

        That is the module, how the arguments were given, their shapes, strides and types, which of
        them are the same or share memory, and which have known values.
        """
        described: list[Any] = []
        storages: list[int] = []
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, torch.Tensor):
                if not argument.is_meta or argument.is_inference():
                    return None
                described.append((type(argument), *_layout(argument), known_value(argument)))
                storages += (id(argument), argument.untyped_storage()._cdata)
            elif isinstance(argument, _PLAIN):
                described.append((type(argument), argument))
            else:
                return None
        kind = self.of(module)
        if kind is None:
            return None
        shared = tuple(map(storages.index, storages)) if len(storages) > 2 else ()
        return kind, tuple(kwargs), tuple(described), shared

    def of(self, module: torch.nn.Module) -> int | None:
        """The module's number as it is now, or None."""
        try:
            return self._number(module, {})
        except (_Unlike, RecursionError):  # or something that holds itself
            return None

    def _number(self, module: torch.nn.Module, seen: dict[int, Any]) -> int:
        if isinstance(module, torch.jit.ScriptModule):
            raise _Unlike
        cls: type = type(module)
        described: list[Any] = [cls]
        indifferent = _indifferent_attributes(cls)
        for name, value in vars(module).items():
            if name in indifferent:
                continue
            if name in _TENSORS:
                for key, tensor in value.items():
                    described.append((key, None if tensor is None else _unknown_layout(tensor)))
            elif name == "_modules":
                for key, child in value.items():
                    number = None if child is None else self._number(child, seen)
                    described.append((key, number))
            elif name in _HOOKS:
                if any(hook not in self._own_hooks for hook in value.values()):
                    raise _Unlike
            elif name in ("_backward_hooks", "_backward_pre_hooks"):
                if value:
                    raise _Unlike
            elif name == "forward":
                own = self._own_forwards.get(module)
                if own is not None or module not in self._own_forwards:
                    described.append((name, self._plain(own or value, seen)))
            else:
                described.append((name, self._plain(value, seen)))
        return self._numbers.setdefault(tuple(described), len(self._numbers))

    def _plain(self, value: Any, seen: dict[int, Any]) -> Any:
        """Something hashable that equals another's where the values do the same."""
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, type | types.FunctionType | torch.jit.ScriptFunction):
            return value
        if isinstance(value, types.BuiltinFunctionType):
            if isinstance(value.__self__, types.ModuleType | type | None):
                return value
            raise _Unlike
        if isinstance(value, tuple | list):
            return type(value), tuple(self._plain(item, seen) for item in value)
        if isinstance(value, dict):
            return type(value), tuple((key, self._plain(item, seen)) for key, item in value.items())
        if isinstance(value, torch.Tensor):
            return _unknown_layout(value)
        if isinstance(value, torch.nn.Module | types.MethodType) or not hasattr(value, "__dict__"):
            raise _Unlike
        # A config, most often: the same object, unchanged.
        key = id(value)
        if key not in seen:
            self._kept[key] = value
            seen[key] = None  # it may hold itself
            seen[key] = self._plain(vars(value), seen)
        return type(value), key, seen[key]


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _unknown_layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A tensor's layout; a known value might steer what is executed."""
    if known_value(tensor) is not None:
        raise _Unlike
    return _layout(tensor)


@functools.cache
def _indifferent_attributes(cls: type) -> frozenset[str]:
    """Attributes that do not say what a module of this class does."""
    used: set[Any] = set()
    for base in cls.__mro__[: cls.__mro__.index(torch.nn.Module)]:
        for name, attribute in vars(base).items():
            if name != "__init__":
                for function in _functions_of(attribute):
                    used.update(_names_in(function.__code__))
    return frozenset(_INDIFFERENT | (_POSITIONS - used))


def _functions_of(attribute: Any) -> Iterator[types.FunctionType]:
    if isinstance(attribute, property):
        candidates = [attribute.fget, attribute.fset, attribute.fdel]
    else:
        candidates = [getattr(attribute, "__func__", attribute)]
    for candidate in candidates:
        while candidate is not None:
            if isinstance(candidate, types.FunctionType):
                yield candidate
            candidate = getattr(candidate, "__wrapped__", None)


def _names_in(code: types.CodeType) -> Iterator[Any]:
    """Names and strings that a function's code mentions, functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, str):
            yield constant
