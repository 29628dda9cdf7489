"""Repeats the records of equal calls: alike modules do the same work on equal inputs.

Which modules are alike is declared, never guessed. The inputs of a call are compared, and, as a
model may have been changed after loading, settings and children, too; the side effects of the first
call show whether its record may be repeated at all.
"""

from __future__ import annotations

import enum
import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from operator import is_
from typing import Any, Final

import torch

from dsocr_analyze.model.known_shapes import Look
from dsocr_analyze.model.known_values import known_value
from dsocr_analyze.model.torch_calls import SEQUENCES, Arguments, Key, Keywords, Value, tensors_in
from dsocr_analyze.trace.cached_layers import (
    CachedLayer,
    Extension,
    caches_in,
    described_cache,
    extend,
    layout,
    version_of,
)
from dsocr_analyze.trace.memory import LiveTensors
from dsocr_analyze.trace.record import Trace

__all__ = ["Alike", "FirstCall", "RecordedCall", "Repetition"]


Alike = Callable[[str], str | None]
"""Maps a module path to the name that alike modules share; None if it is never repeated."""

_PLAIN: Final = (
    type(None), bool, int, float, complex, str, bytes,
    torch.dtype, torch.device, torch.memory_format, torch.layout, enum.Enum,
)  # fmt: skip

_is_plain: Final = functools.cache(lambda kind: issubclass(kind, _PLAIN))

_NUMBERS: Final = frozenset({"layer_idx", "layer_id"})
"""Attributes that number a layer, which may differ between alike layers."""

_OF_EVERY_MODULE: Final = frozenset(vars(torch.nn.Module())) - {"training"}
"""What torch keeps on each module: hooks, parameters, buffers, children."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """The record of one module call.

    Attributes:
        path: Path of the module.
        trace: What the call did.
        output: By item, the place of a returned cache among its arguments, or how a tensor looks.
        returns_tuple: Whether these are items of a tuple, not the output itself.
        extensions: What it did to each of these caches.
    """

    path: str
    trace: Trace
    output: list[int | Look | None]
    returns_tuple: bool
    extensions: list[Extension]

    def leave(self, layer: int | None, arguments: Arguments, memory: LiveTensors) -> Value:
        """Leaves what an equal call would: its output, which is returned, and longer caches."""
        caches, made = caches_in(arguments), list[Value]()
        for item in self.output:
            if isinstance(item, Look):
                tensor = item.make()
                memory.add(tensor)
                made.append(tensor)
            else:
                made.append(None if item is None else caches[item])
        for cache, extension in zip(caches, self.extensions, strict=True):
            extend(cache, layer or 0, extension, memory)
        return tuple(made) if self.returns_tuple else made[0]


class Repetition:
    """Spans of calls that may be repeated, by key."""

    def __init__(self, alike: Alike, memory: LiveTensors) -> None:
        self._name_of = functools.cache(alike)
        self._memory = memory
        self._descriptions: dict[Key, int] = {}
        self._modules: dict[torch.nn.Module, tuple[int, frozenset[int]]] = {}
        self.spans: dict[Key, RecordedCall | None] = {}
        """Records by key; None while a call has yet to show whether it may be repeated."""

    def key_of(
        self, module: torch.nn.Module, path: str, args: Arguments, kwargs: Keywords
    ) -> tuple[Key, int | None] | None:
        """A key that determines a call's record, or None if something unforeseen might affect it.

        It consists of the shared name of the module, its settings and children, how the arguments
        were
        passed, their layout, which of them are identical or share memory, and which have known
        values.
        With it, the number of the layer that the module is part of; None for several or none.
        """
        name = self._name_of(path)
        if name is None:
            return None
        variant, layers = self._variant_of(module)
        layer = next(iter(layers)) if len(layers) == 1 else None
        described: list[Key] = []
        storages: list[int] = []
        if not self._describe([*args, *kwargs.values()], layer, described, storages):
            return None
        shared = tuple(map(storages.index, storages)) if len(storages) > 2 else ()
        return (name, variant, tuple(kwargs), tuple(described), shared), layer

    def _describe(
        self,
        arguments: Arguments,
        layer: int | None,
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
                if not self._describe(argument, layer, described, storages):
                    return False
            else:
                cache = None if layer is None else described_cache(argument, layer, self._memory)
                if cache is None:
                    return False
                described.append(cache)
        return True

    def _variant_of(self, module: torch.nn.Module) -> tuple[int, frozenset[int]]:
        """A number, from the module's state when first asked for, and the layers it belongs to.

        Equal numbers mean equal class, settings, parameters and children.
        """
        if module in self._modules:
            return self._modules[module]
        described: list[Any] = [type(module)]
        layers = set[int]()
        for name, value in vars(module).items():
            if name in _OF_EVERY_MODULE or name == "forward":  # which is ours, else it always runs
                continue
            if name in _NUMBERS:
                layers.add(value)
                continue
            items = value if isinstance(value, SEQUENCES) else (value,)
            if all(map(_is_plain, map(type, items))):
                described.append((name, items is value, *items))
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            described.append((name, None if tensor is None else (tensor.shape, tensor.dtype)))
        for name, child in module._modules.items():
            variant = None
            if child is not None:
                variant, below = self._variant_of(child)
                layers |= below
            described.append((name, variant))
        variant = self._descriptions.setdefault(tuple(described), len(self._descriptions))
        self._modules[module] = variant, frozenset(layers)
        return self._modules[module]


class FirstCall:
    """The first call with its key, made before it runs: the state of memory and arguments."""

    def __init__(
        self,
        module: torch.nn.Module,
        arguments: Arguments,
        layer: int | None,
        memory: LiveTensors,
    ) -> None:
        self._module, self._arguments, self._memory = module, arguments, memory
        self._births, self._nbytes = memory.births, memory.nbytes
        self._versions, self._attributes = self._state()
        self._caches = list[CachedLayer]()
        for cache in caches_in(arguments):
            self._caches.append(CachedLayer(cache, layer or 0, memory))
        self._made: dict[int, int] = {}
        """Bytes of the memory that the call made and leaves behind, by storage."""

    def span(self, path: str, trace: Trace, output: Value) -> RecordedCall | None:
        """The record of the call, which has run; None if it may not be repeated.

        It must have extended no more than its own layer of a cache, written to no argument, and
        stored
        nothing on the module or below. All memory that it leaves alive must be that of its output
        or of
        its extensions.
        """
        extensions, held, places = list[Extension](), 0, dict[int, int]()
        for place, cache in enumerate(self._caches):
            extension = cache.extension(self._is_made)
            if extension is None:
                return None
            extensions.append(extension)
            held -= cache.nbytes
            places.setdefault(id(cache.cache), place)
        items: list[int | Look | None] = []
        for item in output if type(output) is tuple else (output,):
            if item is None or id(item) in places:
                items.append(None if item is None else places[id(item)])
            elif self._is_made(item):
                items.append(Look.of(item))
            else:
                return None
        versions, attributes = self._state()
        if versions != self._versions or len(attributes) != len(self._attributes):
            return None
        is_untouched = all(map(is_, attributes, self._attributes))
        is_all = self._memory.nbytes == self._nbytes + sum(self._made.values()) + held
        if not is_untouched or not is_all:
            return None
        return RecordedCall(path, trace, items, type(output) is tuple, extensions)

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
        attributes, parts = list[Any](), [self._module]
        # Much faster than `modules()`, whose generators are nested as deeply as the modules.
        for part in parts:
            own = [value for name, value in vars(part).items() if name not in _OF_EVERY_MODULE]
            for value in (*own, *part._buffers.values()):
                is_tensor = isinstance(value, torch.Tensor)
                attributes.append(weakref.ref(value) if is_tensor else value)
            parts += part.children()
        return [*map(version_of, tensors_in(self._arguments))], attributes
