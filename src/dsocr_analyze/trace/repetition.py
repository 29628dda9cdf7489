"""Repeats the records of equal calls: alike modules do the same work on equal inputs.

Which modules are alike is declared, never guessed. This module compares the inputs of a call, and
checks by its side effects whether its record may be repeated at all. A model may have been changed
after loading (`layer.mlp.act_fn`, `layer.mlp.top_k`), so settings and children are compared, too.
"""

from __future__ import annotations

import enum
import functools
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from operator import is_
from typing import Any, Final

import torch

from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.model.known_values import known_value
from dsocr_analyze.model.torch_calls import Arguments, Key, Keywords, Shapes, Value, tensors_in
from dsocr_analyze.trace.cached_layers import (
    CacheMark,
    Extension,
    Looks,
    caches_in,
    described_cache,
    layout,
    look_of,
    made_like,
)
from dsocr_analyze.trace.memory import LiveTensors
from dsocr_analyze.trace.record import Trace

__all__ = ["Alike", "FirstCall", "Repetition", "Span", "moved"]


Alike = Callable[[str], str | None]
"""Maps a module path to the name that alike modules share; None if it is never repeated."""

_PLAIN: Final = (
    type(None), bool, int, float, complex, str, bytes,
    torch.dtype, torch.device, torch.memory_format, torch.layout, enum.Enum,
)  # fmt: skip

_NUMBERS: Final = frozenset({"layer_idx", "layer_id"})
"""Attributes that number a layer, which may differ between alike layers."""

_OF_EVERY_MODULE: Final = frozenset(vars(torch.nn.Module())) - {"training"}
"""What torch keeps on each module: hooks, parameters, buffers, children."""


@dataclass(frozen=True, slots=True)
class Span:
    """The record of one module call.

    Attributes:
        path: Path of the module.
        kernels: Records of its operators.
        free: Calls of free operators.
        unknown: Calls of operators without a rule.
        calls: Paths of the modules it called.
        shapes: Path and shapes of each of those calls, and of its own.
        peak: The most bytes it held at once, not counting those alive before.
        output: What it returned, item by item: the place of a cache among its arguments, or how a
            tensor looks.
        returns_tuple: Whether these are items of a tuple, not the output itself.
        extensions: What it did to each of these caches.
    """

    path: str
    kernels: list[Kernel]
    free: Counter[str]
    unknown: Counter[str]
    calls: list[str]
    shapes: list[tuple[str, tuple[Shapes, Shapes]]]
    peak: Peak
    output: list[int | Looks | None]
    returns_tuple: bool
    extensions: list[Extension]

    def leave(self, layer: int | None, arguments: Arguments, memory: LiveTensors) -> Value:
        """Leaves what an equal call would: its output, which is returned, and longer caches.

        Args:
            layer: Number of the layer that is called now, if it is one.
            arguments: Its arguments.
            memory: The live tensors, among which the new ones count from now on.
        """
        caches, made = caches_in(arguments), list[Value]()
        for item in self.output:
            if isinstance(item, int):
                made.append(caches[item])
            else:
                made.append(None if item is None else made_like(item))
        for tensor in tensors_in(made):
            memory.add(tensor)
        for cache, extension in zip(caches, self.extensions, strict=True):
            extension.apply(cache, layer or 0, memory)
        return tuple(made) if self.returns_tuple else made[0]


class Repetition:
    """Spans of calls that may be repeated, by key.

    Args:
        alike: Maps the paths of alike modules to a shared name.
        memory: The live tensors.
    """

    def __init__(self, alike: Alike, memory: LiveTensors) -> None:
        self._name_of = functools.cache(alike)
        self._memory = memory
        self._descriptions: dict[Key, int] = {}
        self._variants: dict[torch.nn.Module, int] = {}
        self._layers: dict[torch.nn.Module, int | None] = {}
        self.spans: dict[Key, Span | None] = {}
        """Records by key; None while a call has yet to show whether it may be repeated."""
        self.shapes: list[tuple[str, tuple[Shapes, Shapes]]] = []
        """Path and shapes of every call of the pass."""

    def key_of(
        self, module: torch.nn.Module, path: str, args: Arguments, kwargs: Keywords
    ) -> Key | None:
        """A key that determines a call's record, or None if something unforeseen might affect it.

        It consists of the shared name of the module, its settings and children, how the arguments
        were passed, their shapes, strides and types, which of them are identical or share memory,
        and which have known values.
        """
        name = self._name_of(path)
        if name is None:
            return None
        described: list[Key] = []
        storages: list[int] = []
        if not self._describe([*args, *kwargs.values()], module, described, storages):
            return None
        shared = tuple(map(storages.index, storages)) if len(storages) > 2 else ()
        return name, self._variant_of(module), tuple(kwargs), tuple(described), shared

    def _describe(
        self,
        arguments: Arguments,
        module: torch.nn.Module,
        described: list[Key],
        storages: list[int],
    ) -> bool:
        """Appends all of some arguments that a record may depend on; False if that is unclear."""
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                if not argument.is_meta or argument.is_inference():
                    return False
                described.append((type(argument), *layout(argument), known_value(argument)))
                storages += (id(argument), argument.untyped_storage()._cdata)
            elif isinstance(argument, _PLAIN):
                described.append((type(argument), argument))
            elif type(argument) is tuple:
                described.append((tuple, len(argument)))
                if not self._describe(argument, module, described, storages):
                    return False
            elif caches_in([argument]) and (layer := self.layer_of(module)) is not None:
                described.append(described_cache(argument, layer, self._memory))
            else:
                return False
        return True

    def _variant_of(self, module: torch.nn.Module) -> int:
        """A number, from the module's state when first asked for.

        Equal numbers mean equal class, settings, parameters and children.
        """
        if module in self._variants:
            return self._variants[module]
        described: list[Any] = [type(module)]
        for name, value in vars(module).items():
            if name in _NUMBERS or name in _OF_EVERY_MODULE:
                continue
            items = value if isinstance(value, tuple | list) else (value,)
            if all(isinstance(item, _PLAIN) for item in items):
                described.append((name, items is value, *items))
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            described.append((name, None if tensor is None else (tensor.shape, tensor.dtype)))
        for name, child in module._modules.items():
            described.append((name, None if child is None else self._variant_of(child)))
        variant = self._descriptions.setdefault(tuple(described), len(self._descriptions))
        self._variants[module] = variant
        return variant

    def layer_of(self, module: torch.nn.Module) -> int | None:
        """The number of the layer that a module is, or is part of; None for several or none."""
        if module not in self._layers:
            found = {
                vars(part)[name]
                for part in _modules_in(module)
                for name in _NUMBERS & vars(part).keys()
            }
            self._layers[module] = found.pop() if len(found) == 1 else None
        return self._layers[module]


class FirstCall:
    """The first call with its key, made before it runs: the state of the record and of memory.

    Args:
        module: The module.
        path: Its path.
        arguments: Its arguments.
        layer: The number of its layer, if it is in one.
        trace: The record of the pass.
        shapes: Path and shapes of every call of the pass.
        memory: The live tensors.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        path: str,
        arguments: Arguments,
        layer: int | None,
        trace: Trace,
        shapes: list[tuple[str, tuple[Shapes, Shapes]]],
        memory: LiveTensors,
    ) -> None:
        self._module, self._path, self._arguments = module, path, arguments
        self._trace, self._shapes, self._memory = trace, shapes, memory
        self._kernels, self._calls, self._noted = len(trace.kernels), len(trace.calls), len(shapes)
        self._free, self._unknown = trace.free.copy(), trace.unknown.copy()
        self._births, self._nbytes = memory.births, memory.nbytes
        self._versions, self._attributes = self._state()
        self._caches = [CacheMark.of(cache, layer or 0, memory) for cache in caches_in(arguments)]
        self._made: dict[int, int] = {}
        """Bytes of the memory that the call made and leaves behind, by storage."""

    def span(self, output: Value, peak: Peak) -> Span | None:
        """The record of the call, which has run; None if it may not be repeated.

        It must have extended no more than its own layer of a cache, written to no argument, and
        stored nothing on the module or below. All memory that it leaves alive must be that of its
        output or of its extensions.

        Args:
            output: What it returned.
            peak: The most bytes it held at once, not counting those alive before.
        """
        extensions, held = list[Extension](), 0
        for mark in self._caches:
            extension = mark.extension(self._is_made)
            if extension is None:
                return None
            extensions.append(extension)
            held -= mark.nbytes
        caches = [mark.cache for mark in self._caches]
        items: list[int | Looks | None] = []
        for item in output if type(output) is tuple else (output,):
            places = [place for place, cache in enumerate(caches) if item is cache]
            if item is not None and not places and not self._is_made(item):
                return None
            look = None if item is None or places else look_of(item)
            items.append(places[0] if places else look)
        versions, attributes = self._state()
        is_untouched = (
            versions == self._versions
            and len(attributes) == len(self._attributes)
            and all(map(is_, attributes, self._attributes))
        )
        if (
            not is_untouched
            or self._memory.nbytes != self._nbytes + sum(self._made.values()) + held
        ):
            return None
        return Span(
            path=self._path,
            kernels=self._trace.kernels[self._kernels :],
            free=self._trace.free - self._free,
            unknown=self._trace.unknown - self._unknown,
            calls=self._trace.calls[self._calls :],
            shapes=self._shapes[self._noted :],
            peak=peak,
            output=items,
            returns_tuple=type(output) is tuple,
            extensions=extensions,
        )

    def _is_made(self, tensor: Value) -> bool:
        """Whether a tensor has memory of its own that the call made; if so, notes it."""
        if type(tensor) is not torch.Tensor or not tensor.is_meta:
            return False
        if tensor.requires_grad or tensor.is_inference():
            return False
        storage = tensor.untyped_storage()._cdata
        nbytes = self._memory.nbytes_of(tensor, self._births)
        if not nbytes or storage in self._made or known_value(tensor) is not None:
            return False
        self._made[storage] = nbytes
        return True

    def _state(self) -> tuple[list[int], list[Any]]:
        """Versions of the arguments, and attributes and buffers at or below the module.

        Tensors among these are weak references, so they can die.
        """
        attributes = []
        for part in _modules_in(self._module):
            for value in (*vars(part).values(), *part._buffers.values()):
                is_tensor = isinstance(value, torch.Tensor)
                attributes.append(weakref.ref(value) if is_tensor else value)
        return [tensor._version for tensor in tensors_in(self._arguments)], attributes


def moved(old: str, new: str, path: str) -> str:
    """Moves a path at or below `old` to below `new`; any other path is unchanged."""
    if path == old:
        return new
    below = old + "." if old else ""
    if not path.startswith(below):
        return path
    return f"{new}.{path[len(below) :]}" if new else path[len(below) :]


def _modules_in(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The module and those below it, a shared one in each of its places.

    Much faster than `modules()`, whose generators are nested as deeply as the modules.
    """
    found = [module]
    for each in found:
        found += [child for child in each._modules.values() if child is not None]
    return found
