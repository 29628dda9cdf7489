"""The record of one forward pass, and its repetition for equal calls.

Alike modules do the same work on equal inputs. Which modules are alike is declared, never guessed.
Besides inputs, settings and children are compared, since a model may be changed after loading. The
first call's side effects show whether its record may be repeated at all. A call with a cache always
runs, and its parts are repeated.
"""

from __future__ import annotations

import enum
import functools
import types
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._device import _device_constructors

from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.model.known_values import known_value, was_known
from dsocr_analyze.model.process_settings import (
    SEQUENCES,
    Arguments,
    Function,
    Key,
    Keywords,
    Shapes,
    Value,
    Values,
    tensors_in,
)
from dsocr_analyze.trace.memory import Look


class TracedCall(NamedTuple):
    """What one call of a module did, with all that it calls.

    Attributes:
        peak_bytes: The most bytes alive beyond those alive before.
        cache_bytes: Keys and values in its cache, or in its own layer of it.
        shapes: Of the tensors given, by parameter, and of the first `returned`.
    """

    kernels: tuple[Kernel, ...]
    peak_bytes: int
    cache_bytes: int
    shapes: dict[str, tuple[int, ...]]


@dataclass
class Trace:
    """The record of one forward pass, or of a call within it.

    Attributes:
        kernels: Counted operators in order, each under the module whose own forward called it.
        free: Calls of operators that neither compute nor move anything, by name.
        unknown: Calls of operators without a rule, by name.
        calls: Paths of called modules, one item per call.
        shapes: Input and output shapes of each module's first call, by path.
        peak: The most bytes of tensors alive at once beyond those alive before.
        modules: If asked for, the calls of every module, by path.
    """

    kernels: list[Kernel] = field(default_factory=list)
    free: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    calls: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[Shapes, Shapes]] = field(default_factory=dict)
    peak: Peak = field(default_factory=functools.partial(Peak, 0, ""))
    modules: dict[str, list[TracedCall]] = field(default_factory=dict)

    def add(self, call: Trace, alive: int, old: str, new: str) -> None:
        """Adds a call of the module `old`, with `alive` bytes before it, as one of `new`."""
        here: Callable[[str], str] = str
        if new == old:
            self.kernels += call.kernels
        else:
            here = functools.cache(functools.partial(_moved, old, new))
            paths = map(here, map(attrgetter("path"), call.kernels))
            self.kernels += map(Kernel.at, call.kernels, paths)
        self.calls += map(here, call.calls)
        self.free.update(call.free)
        self.unknown.update(call.unknown)
        for path, shapes in call.shapes.items():
            self.shapes.setdefault(here(path), shapes)
        if alive + call.peak.nbytes > self.peak.nbytes:
            self.peak = Peak(alive + call.peak.nbytes, here(call.peak.path))


def _moved(old: str, new: str, path: str) -> str:
    """Moves a path at or below `old` to `new`; others stay."""
    if path == old:
        return new
    below = old + "." if old else ""
    if not path.startswith(below):
        return path
    return f"{new}.{path[len(below) :]}" if new else path[len(below) :]


# --- equal calls ---------------------------------------------------------------------------------

_VALUES: Final = frozenset({
    int, float, bool, complex, str, type(None), type(...), torch.Size,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
})  # fmt: skip
_TENSORS: Final = frozenset({torch.Tensor, torch.nn.Parameter})
_META: Final = torch.device("meta")


def call_of(
    func: Function | str, args: Arguments, kwargs: Keywords, device: torch.device = _META
) -> Key | None:
    """A call and all that its outputs' looks may depend on; None if that is unclear.

    It is clear of plain tensors on `device`, values, and tuples, lists or slices of these.
    """
    parts: list[Any] = [func, device, torch.get_default_dtype(), *kwargs]
    ids = list[int]()
    if not _describe((*args, *kwargs.values()), parts, ids, device):
        return None
    if len(ids) != len({*ids}):  # `x + x`
        parts += map(ids.index, ids)
    return tuple(parts)


def _describe(arguments: Values, parts: list[Any], ids: list[int], device: torch.device) -> bool:
    """Appends to `parts`, and those of tensors to `ids`; False if it is unclear."""
    for argument in arguments:
        kind = type(argument)
        if kind in _VALUES:
            parts += (kind, argument)  # 1, 1.0 and True are equal
        elif kind in _TENSORS:
            is_lazy = argument.is_conj() or argument.is_neg() or argument.is_nested
            if is_lazy or argument.layout is not torch.strided or argument.device != device:
                return False
            parts += (argument.shape, argument.stride(), argument.dtype)
            ids.append(id(argument))
        elif kind in (tuple, list):
            parts += (kind, len(argument))
            if not _describe(argument, parts, ids, device):
                return False
        elif kind is slice:
            parts.append(kind)
            if not _describe((argument.start, argument.stop, argument.step), parts, ids, device):
                return False
        else:
            return False
    return True


class Output(NamedTuple):
    """What makes the output of a call on `meta` again, if all its tensors are new.

    Attributes:
        looks: By item, how a tensor looks; None for none.
        is_tuple: Whether these are items of a tuple, not the output itself.
    """

    looks: list[Look | None]
    is_tuple: bool

    @classmethod
    def of(cls, output: Value) -> Self | None:
        """What makes it again; None if it is not of plain tensors without values."""
        items = output if type(output) is tuple else (output,)
        if not all(item is None or _is_plain_tensor(item) for item in items):
            return None
        looks = [Look.of(item) if isinstance(item, torch.Tensor) else None for item in items]
        return cls(looks, items is output)

    def make(self) -> Value:
        """Such an output."""
        made: list[Value] = [None if look is None else look.make() for look in self.looks]
        return tuple(made) if self.is_tuple else made[0]


def _is_plain_tensor(item: Value) -> bool:
    if type(item) is not torch.Tensor or not item.is_meta or was_known(item):
        return False
    if item.layout is not torch.strided or item.is_conj() or item.is_neg():
        return False
    return not (item.requires_grad or item.is_inference())


# --- equal calls of functions --------------------------------------------------------------------


ATTRIBUTES: Final[frozenset[Function]] = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in "shape dtype device ndim layout is_cuda is_cpu is_meta requires_grad".split()
) | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.stride, torch.Tensor.numel}
"""Functions that call no operator, on plain tensors."""

_ELSEWHERE: Final = frozenset({torch.Tensor.cpu, torch.Tensor.cuda, *_device_constructors()})
"""Functions whose results may belong on another device, unless one is named."""
_ANSWERED: Final = (
    torch.native_layer_norm, torch.native_batch_norm, torch.native_group_norm,
    torch.Tensor.__contains__,
)  # fmt: skip
"""Functions whose other results look differently on CUDA, or that ask for values on `meta`."""


@functools.cache
def is_repeatable(func: Function) -> bool:
    """Whether a function is torch's own, and does the same for equal arguments in one place."""
    if func in _ANSWERED or isinstance(func, OpOverload | OpOverloadPacket):
        return False  # operators may be of other code
    if isinstance(func, types.FunctionType):
        return func.__module__.startswith("torch.")
    return not isinstance(func, types.MethodWrapperType) or func.__name__ == "__get__"


def stays_on(device: torch.device, func: Function, args: Arguments, kwargs: Keywords) -> bool:
    """Whether a call's results are where its tensors are, on a device, or where it says itself."""
    named = kwargs.get("device")
    if func is torch.Tensor.to and not all(
        type(each) is torch.dtype or (type(each) is torch.device and each == device)
        for each in args[1:]
    ):
        return False
    if named is None:
        return func not in _ELSEWHERE
    return type(named) is torch.device and named == device


class Effect:
    """What a call of a function adds to the record, each time with equal arguments.

    Attributes:
        free: Calls of free operators, by name.
        unknown: Calls of operators without a rule, by name.
        peak_bytes: The most bytes alive beyond those alive before.
        made: Position, among the tensors that it returns, of each with memory that the call made,
            and its bytes.
        output: On `meta`, what makes it again, if that is all that the call does.
    """

    __slots__ = ("_kernels", "_placed", "free", "made", "output", "peak_bytes", "unknown")

    def __init__(
        self, trace: Trace, made: tuple[tuple[int, int], ...], output: Output | None
    ) -> None:
        self._kernels = tuple(trace.kernels)
        self._placed: dict[str, list[Kernel]] = {}
        self.free, self.unknown = tuple(trace.free.items()), tuple(trace.unknown.items())
        self.peak_bytes, self.made, self.output = trace.peak.nbytes, made, output

    def kernels_of(self, path: str) -> list[Kernel]:
        """Its kernels, under a module."""
        placed = self._placed.get(path)
        if placed is None:
            placed = self._placed[path] = [kernel.at(path) for kernel in self._kernels]
        return placed


# --- equal calls of modules ----------------------------------------------------------------------

Alike = Callable[[str], str | None]
"""The name that alike modules share, by path; None for one that is never repeated."""

_PLAIN: Final = (
    type(None), bool, int, float, complex, str, bytes,
    torch.dtype, torch.device, torch.memory_format, torch.layout, enum.Enum,
)  # fmt: skip

_is_plain: Final = functools.cache(lambda kind: issubclass(kind, _PLAIN))

_OF_EVERY_MODULE: Final = frozenset(vars(torch.nn.Module())) - {"training"}
"""What torch keeps on each module: hooks, parameters, buffers, children."""

_UNDESCRIBED: Final = _OF_EVERY_MODULE | {"layer_idx", "layer_id", "forward"}
"""Numbers of layers, in which alike ones may differ, and our `forward`; others' always runs."""


class RecordedCall(NamedTuple):
    """The record of one module call.

    Attributes:
        path: Path of the module.
        trace: What the call did.
        output: What makes its output again.
    """

    path: str
    trace: Trace
    output: Output


class Repetition:
    """Spans of calls that may be repeated, by key."""

    def __init__(self, alike: Alike) -> None:
        self._name_of = functools.cache(alike)
        self._descriptions: dict[Key, int] = {}
        self._variants: dict[torch.nn.Module, int] = {}
        self.spans: dict[Key, RecordedCall | None] = {}
        """Records by key; None where calls may not be repeated, or not yet."""

    def key_of(
        self, module: torch.nn.Module, path: str, args: Arguments, kwargs: Keywords
    ) -> Key | None:
        """A key that determines a call's record, or None if something unforeseen might affect it.

        It has the module's shared name, settings and children, and of the arguments their layouts,
        known values, and which are identical or share memory.
        """
        name = self._name_of(path)
        call = None if name is None else call_of(name, args, kwargs)
        if call is None or list in call:  # which a module may change, and which may be a cache
            return None
        tensors = [*tensors_in([*args, *kwargs.values()])]
        if any(map(torch.is_inference, tensors)):
            return None
        places = [each.untyped_storage()._cdata for each in tensors]
        shared = tuple(map(places.index, places))
        return self._variant_of(module), call, tuple(map(known_value, tensors)), shared

    def _variant_of(self, module: torch.nn.Module) -> int:
        """A number for class, settings, parameters and children, as they are when first asked."""
        if module in self._variants:
            return self._variants[module]
        described: list[Any] = [type(module)]
        for name, value in vars(module).items():
            if name not in _UNDESCRIBED:
                items = value if isinstance(value, SEQUENCES) else (value,)
                if all(map(_is_plain, map(type, items))):
                    described.append((name, items is value, *items))
        described += [
            (name, None if tensor is None else (tensor.shape, tensor.dtype))
            for name, tensor in (*module._parameters.items(), *module._buffers.items())
        ]
        described += [
            (name, None if child is None else self._variant_of(child))
            for name, child in module._modules.items()
        ]
        variant = self._descriptions.setdefault(tuple(described), len(self._descriptions))
        self._variants[module] = variant
        return variant


def state_of(module: torch.nn.Module, arguments: Arguments) -> tuple[list[int], list[Any]]:
    """Versions of the arguments, and attributes and buffers at or below the module.

    Tensors are weak references, so they can die.
    """
    parts = [module]
    for part in parts:
        parts += [child for child in part._modules.values() if child is not None]
    attributes = [
        weakref.ref(value) if isinstance(value, torch.Tensor) else value
        for part in parts
        for table in (vars(part), part._buffers)
        for name, value in table.items()
        if name not in _OF_EVERY_MODULE
    ]
    return [*map(attrgetter("_version"), tensors_in(arguments))], attributes
