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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

import torch

from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.running.known_values import known_value
from dsocr_analyze.running.torch_calls import Arguments, Key, Keywords, Shapes, Value, tensors_in
from dsocr_analyze.trace.cached_layers import (
    Cache,
    CacheMark,
    Extension,
    caches_in,
    described_cache,
    layout,
    maker_of,
)
from dsocr_analyze.trace.memory import LiveTensors
from dsocr_analyze.trace.record import Trace

__all__ = ["Alike", "Occasion", "Repetition", "Span", "moved"]


Alike = Callable[[str], str | None]
"""Maps a module path to the name that alike modules share; None if it is never repeated."""

_PLAIN: Final = (
    type(None), bool, int, float, complex, str, bytes,
    torch.dtype, torch.device, torch.memory_format, torch.layout, enum.Enum,
)  # fmt: skip


_Maker = Callable[[list[Cache]], Value]
"""Makes what a module returns, from the caches among its arguments."""


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
        make_output: Makes tensors like those it returned, from the caches among its arguments.
        extensions: What it did to each of these caches.
    """

    path: str
    kernels: list[Kernel]
    free: Counter[str]
    unknown: Counter[str]
    calls: list[str]
    shapes: list[tuple[str, tuple[Shapes, Shapes]]]
    peak: Peak
    make_output: _Maker
    extensions: list[Extension]

    def leave(self, layer: int | None, arguments: Arguments, memory: LiveTensors) -> Value:
        """Leaves what an equal call would: its output, which is returned, and longer caches.

        Args:
            layer: Number of the layer that is called now, if it is one.
            arguments: Its arguments.
            memory: The live tensors, among which the new ones count from now on.
        """
        caches = caches_in(arguments)
        output = self.make_output(caches)
        for tensor in tensors_in([output]):
            memory.add(tensor)
        for cache, extension in zip(caches, self.extensions, strict=True):
            extension.apply(cache, layer or 0, memory)
        return output


class Occasion(NamedTuple):
    """One call of a module."""

    key: Key
    """Determines its record."""
    module: torch.nn.Module
    path: str
    arguments: Arguments


class _Mark(NamedTuple):
    """State of the record and of memory when a call began."""

    kernels: int
    free: Counter[str]
    unknown: Counter[str]
    calls: int
    shapes: int
    births: int
    nbytes: int
    versions: list[int]
    attributes: list[Any]
    caches: list[CacheMark]


class Repetition:
    """Spans of calls that may be repeated, by key.

    Args:
        alike: Maps the paths of alike modules to a shared name.
        memory: The live tensors.
    """

    def __init__(self, alike: Alike, memory: LiveTensors) -> None:
        self._name_of = functools.cache(alike)
        self._variant_of = _Variants()
        self.layer_of = self._variant_of.layer_of
        self._memory = memory
        self._spans: dict[Key, Span | None] = {}
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

    def span_of(self, key: Key) -> Span | None:
        """The record of an equal call, if it may be repeated."""
        return self._spans.get(key)

    def run(self, occasion: Occasion, trace: Trace, call: Callable[[], Value]) -> Value:
        """Runs a call and, if it is the first with its key, keeps its record.

        Args:
            occasion: The call.
            trace: The record of the pass.
            call: Runs the module.

        Returns:
            The module's output.
        """
        if occasion.key in self._spans:
            return call()
        self._spans[occasion.key] = None  # until the call's side effects are known
        mark = self._mark(occasion, trace)
        before = trace.peak
        trace.peak = Peak(mark.nbytes, occasion.path)
        try:
            output = call()
        finally:
            within = trace.peak
            if before.nbytes >= within.nbytes:
                trace.peak = before
        with torch._C.DisableTorchFunction():
            made, extensions = self._extensions(mark)
            make_output = self._output_maker(output, mark, made)
            if make_output and extensions is not None and _is_untouched(occasion, mark):
                self._spans[occasion.key] = Span(
                    path=occasion.path,
                    kernels=trace.kernels[mark.kernels :],
                    free=trace.free - mark.free,
                    unknown=trace.unknown - mark.unknown,
                    calls=trace.calls[mark.calls :],
                    shapes=self.shapes[mark.shapes :],
                    peak=Peak(within.nbytes - mark.nbytes, within.path),
                    make_output=make_output,
                    extensions=extensions,
                )
        return output

    def _mark(self, occasion: Occasion, trace: Trace) -> _Mark:
        return _Mark(
            kernels=len(trace.kernels),
            free=trace.free.copy(),
            unknown=trace.unknown.copy(),
            calls=len(trace.calls),
            shapes=len(self.shapes),
            births=self._memory.births,
            nbytes=self._memory.nbytes,
            versions=_versions(occasion.arguments),
            attributes=_attributes(occasion.module),
            caches=[
                CacheMark.of(cache, self.layer_of(occasion.module) or 0, self._memory)
                for cache in caches_in(occasion.arguments)
            ],
        )

    def _extensions(self, mark: _Mark) -> tuple[dict[int, int], list[Extension] | None]:
        """What a call did to its caches, and the memory that it made for them, by storage.

        None if it did anything but extend its own layer.
        """
        made: dict[int, int] = {}
        extensions = []
        for each in mark.caches:
            tensors = each.made
            if tensors is None or not all(self._is_made(one, mark, made) for one in tensors):
                return {}, None
            extensions.append(each.extension)
        return made, extensions

    def _is_made(self, tensor: Value, mark: _Mark, made: dict[int, int]) -> bool:
        """Whether a tensor has memory of its own that the call made; if so, notes it in `made`."""
        if type(tensor) is not torch.Tensor or not tensor.is_meta:
            return False
        if tensor.requires_grad or tensor.is_inference():
            return False
        storage = tensor.untyped_storage()._cdata
        nbytes = self._memory.made_since(mark.births, tensor)
        if nbytes is None or storage in made or known_value(tensor) is not None:
            return False
        made[storage] = nbytes
        return True

    def _output_maker(self, output: Value, mark: _Mark, made: dict[int, int]) -> _Maker | None:
        """Makes tensors like `output`; None if the call left anything else behind.

        All memory that the call leaves alive must be that of its output or of its extensions of
        caches, `made` during the call.
        """
        caches, makers = [each.cache for each in mark.caches], list[_Maker]()
        for part in output if type(output) is tuple else (output,):
            places = [place for place, cache in enumerate(caches) if part is cache]
            if places:
                makers.append(itemgetter(*places))
            elif part is None:
                makers.append(lambda _: None)
            elif self._is_made(part, mark, made):
                makers.append(_regardless(maker_of(part)))
            else:
                return None
        freed = sum(each.nbytes for each in mark.caches)
        if self._memory.nbytes != mark.nbytes + sum(made.values()) - freed:
            return None
        if type(output) is not tuple:
            return makers[0]
        return lambda caches: tuple(make(caches) for make in makers)


def _regardless(make: Callable[[], torch.Tensor]) -> _Maker:
    """The same without a look at the caches."""
    return lambda _: make()


def moved(path: str, old: str, new: str) -> str:
    """Moves a path at or below `old` to below `new`; any other path is unchanged."""
    if path == old:
        return new
    below = old + "." if old else ""
    if not path.startswith(below):
        return path
    return f"{new}.{path[len(below) :]}" if new else path[len(below) :]


def _is_untouched(occasion: Occasion, mark: _Mark) -> bool:
    """Whether the call wrote to no argument and stored nothing on the module or below."""
    now = _attributes(occasion.module)
    return (
        mark.versions == _versions(occasion.arguments)
        and len(now) == len(mark.attributes)
        and all(one is other for one, other in zip(now, mark.attributes, strict=True))
    )


def _versions(arguments: Arguments) -> list[int]:
    return [tensor._version for tensor in tensors_in(arguments)]


def _attributes(module: torch.nn.Module) -> list[Any]:
    """Attributes and buffers at or below the module; tensors by weak reference so they can die."""
    return [
        weakref.ref(value) if isinstance(value, torch.Tensor) else value
        for part in _modules_in(module)
        for value in (*vars(part).values(), *part._buffers.values())
    ]


_NUMBERS: Final = frozenset({"layer_idx", "layer_id"})
"""Attributes that number a layer, which may differ between alike layers."""

_OF_EVERY_MODULE: Final = frozenset(vars(torch.nn.Module())) - {"training"}
"""What torch keeps on each module: hooks, parameters, buffers, children."""


class _Variants:
    """Numbers modules; equal numbers mean equal class, settings, parameters and children."""

    def __init__(self) -> None:
        self._of_description: dict[Key, int] = {}
        self._of_module: dict[torch.nn.Module, int] = {}
        self._layers: dict[torch.nn.Module, int | None] = {}

    def __call__(self, module: torch.nn.Module) -> int:
        """The module's number, from its state when first asked for."""
        variant = self._of_module.get(module)
        if variant is None:
            description = (
                type(module),
                *_settings(module),
                *(
                    (name, None if tensor is None else (tensor.shape, tensor.dtype))
                    for name, tensor in (*module._parameters.items(), *module._buffers.items())
                ),
                *(
                    (name, None if child is None else self(child))
                    for name, child in module._modules.items()
                ),
            )
            variant = self._of_description.setdefault(description, len(self._of_description))
            self._of_module[module] = variant
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


def _settings(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if name in _NUMBERS or name in _OF_EVERY_MODULE:
            continue
        if isinstance(value, _PLAIN):
            yield name, value
        elif isinstance(value, tuple | list) and all(isinstance(item, _PLAIN) for item in value):
            yield name, tuple(value)


def _modules_in(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The module and those below it, a shared one in each of its places.

    Much faster than `modules()`, whose generators are nested as deeply as the modules.
    """
    found = [module]
    for each in found:
        found += [child for child in each._modules.values() if child is not None]
    return found
