"""What a layer does to the KV cache among its arguments: it extends the pair of its own number.

A cache is anything whose whole state is lists of tensors by layer, singly or in tuples, and perhaps
numbers by layer, such as where a window stands.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch

from dsocr_analyze.running.known_values import known_value
from dsocr_analyze.running.torch_calls import Key, Value, Values, tensors_in
from dsocr_analyze.trace.memory import LiveTensors

__all__ = ["Cache", "CacheMark", "Extension", "caches_in", "described_cache", "layout", "maker_of"]


Cache: TypeAlias = Any
"""A cache of any class."""

_Stored: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]
"""What a list has for a layer."""


def caches_in(arguments: Values) -> list[Cache]:
    """The caches among a call's arguments, also within tuples."""
    caches = []
    for each in arguments:
        if type(each) is tuple:
            caches += caches_in(each)
        elif _is_cache(each):
            caches.append(each)
    return caches


def _is_cache(value: Cache) -> bool:
    if isinstance(value, list | tuple | dict | set):  # these hold more than their attributes
        return False
    lists = _lists(value)
    if not lists or len({len(each) for each in lists.values()}) != 1:
        return False
    numbers = [each for name, each in vars(value).items() if name not in lists]
    return all(_is_stored(item) for each in lists.values() for item in each) and all(
        type(each) is dict and all(type(part) is int for pair in each.items() for part in pair)
        for each in numbers
    )


def _is_stored(item: Value) -> bool:
    tensors = item if type(item) is tuple else (item,)
    return all(isinstance(tensor, torch.Tensor) for tensor in tensors)


def _lists(cache: Cache) -> dict[str, list[_Stored]]:
    """Tensors by layer, by the name of the attribute."""
    state = getattr(cache, "__dict__", {})
    return {name: each for name, each in state.items() if type(each) is list}


def _layers(cache: Cache) -> list[list[torch.Tensor]]:
    """The tensors of every layer."""
    return [list(tensors_in(each)) for each in zip(*_lists(cache).values(), strict=True)]


def _numbers(cache: Cache) -> dict[str, dict[int, int]]:
    """Numbers by layer, by the name of the attribute."""
    return {name: each for name, each in vars(cache).items() if type(each) is dict}


def described_cache(cache: Cache, layer: int, memory: LiveTensors) -> Key:
    """All of a cache that the record of a layer may depend on.

    Its own tensors and numbers, and the different ones of the layers before and after it.
    """
    layers = _layers(cache)
    looks = [tuple(map(layout, tensors)) for tensors in layers]
    own = [
        (known_value(tensor), memory.nbytes_of(tensor))
        for tensors in layers[layer : layer + 1]
        for tensor in tensors
    ]
    numbers = [
        (
            name,
            each.get(layer),
            frozenset(number for other, number in each.items() if other < layer),
            frozenset(number for other, number in each.items() if other > layer),
        )
        for name, each in _numbers(cache).items()
    ]
    return (
        type(cache), tuple(looks[layer : layer + 1]), tuple(own), tuple(numbers),
        frozenset(looks[:layer]), frozenset(looks[layer + 1 :]),
    )  # fmt: skip


class Extension(NamedTuple):
    """What a call leaves in a cache for its layer.

    Attributes:
        tensors: Makes what stands in each list.
        numbers: The layer's numbers, by name.
    """

    tensors: Mapping[str, Callable[[], _Stored]]
    numbers: Mapping[str, int]

    def apply(self, cache: Cache, layer: int, memory: LiveTensors) -> None:
        """Extends another layer likewise; its memory counts as made now."""
        for name, make in self.tensors.items():
            vars(cache)[name][layer : layer + 1] = [make()]  # at the end, this appends
        for tensor in _layers(cache)[layer]:
            memory.add(tensor)
        for name, number in self.numbers.items():
            cache.__dict__.setdefault(name, {})[layer] = number


class CacheMark(NamedTuple):
    """A cache as a call finds it.

    Attributes:
        cache: The cache.
        layer: The layer that the call may extend.
        tensors: The tensors of every layer, which may die, with their versions.
        numbers: Numbers by layer, by name.
        nbytes: Bytes of that layer's tensors that count as alive.
    """

    cache: Cache
    layer: int
    tensors: list[list[tuple[weakref.ref[torch.Tensor], int]]]
    numbers: dict[str, dict[int, int]]
    nbytes: int

    @classmethod
    def of(cls, cache: Cache, layer: int, memory: LiveTensors) -> CacheMark:
        """The cache as it is now."""
        layers = _layers(cache)
        tensors = [[(weakref.ref(each), each._version) for each in one] for one in layers]
        numbers = {name: dict(each) for name, each in _numbers(cache).items()}
        own = (tensor for one in layers[layer : layer + 1] for tensor in one)
        return cls(cache, layer, tensors, numbers, sum(map(memory.nbytes_of, own)))

    @property
    def made(self) -> list[torch.Tensor] | None:
        """The layer's tensors after the call; None if it did anything to other layers."""
        if not _is_cache(self.cache):
            return None
        now, layer = _layers(self.cache), self.layer
        if len(now) != max(len(self.tensors), layer + 1):
            return None
        for number, (tensors, before) in enumerate(zip(now, self.tensors, strict=False)):
            is_same = len(tensors) == len(before) and all(
                each is ref() and each._version == version
                for each, (ref, version) in zip(tensors, before, strict=True)
            )
            if not is_same and number != layer:
                return None
        for name, numbers in _numbers(self.cache).items():
            if {**numbers, layer: None} != {**self.numbers.get(name, {}), layer: None}:
                return None
        return now[layer]

    @property
    def extension(self) -> Extension:
        """What the call has left for its layer."""
        numbers = {
            name: each[self.layer]
            for name, each in _numbers(self.cache).items()
            if self.layer in each
        }
        stored = {name: each[self.layer] for name, each in _lists(self.cache).items()}
        return Extension({name: _maker_of_all(each) for name, each in stored.items()}, numbers)


def _maker_of_all(stored: _Stored) -> Callable[[], _Stored]:
    """Makes a tensor, or a tuple of tensors, that looks like this."""
    if isinstance(stored, torch.Tensor):
        return maker_of(stored)
    makers = [*map(maker_of, stored)]
    return lambda: tuple(make() for make in makers)


def layout(tensor: torch.Tensor) -> Key:
    """Shape, strides, type and device."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def maker_of(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Makes tensors on `meta` that look like this one, each with its own memory."""
    shape, stride, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    dtype, elements = tensor.dtype, tensor.untyped_storage().nbytes() // tensor.element_size()

    def make() -> torch.Tensor:
        whole = torch.empty(elements, dtype=dtype, device="meta")
        return whole.as_strided(shape, stride, offset)

    return make
