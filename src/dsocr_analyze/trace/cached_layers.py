"""What a layer does to the KV cache among its arguments: it extends the pair of its own number.

A cache is anything whose whole state is lists of tensors by layer, singly or in tuples, and perhaps
numbers by layer, such as where a window stands.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch

from dsocr_analyze.model.known_values import known_value
from dsocr_analyze.model.torch_calls import Key, Values, tensors_in
from dsocr_analyze.trace.memory import LiveTensors

__all__ = [
    "CacheMark",
    "Extension",
    "Looks",
    "caches_in",
    "described_cache",
    "layout",
    "look_of",
    "made_like",
]


Cache: TypeAlias = Any
"""A cache of any class."""

_Stored: TypeAlias = "torch.Tensor | tuple[_Stored, ...]"
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
    lists, numbers = _state_of(value)
    if len({*map(len, lists.values())}) != 1:
        return False
    for each in lists.values():
        for item in each:
            if not all(map(torch.is_tensor, item if type(item) is tuple else (item,))):
                return False
    return all(
        type(each) is dict and {*map(type, (*each.keys(), *each.values()))} <= {int}
        for each in numbers.values()
    )


def _state_of(cache: Cache) -> tuple[dict[str, list[_Stored]], dict[str, dict[int, int]]]:
    """What stands for each layer in lists, and in the other attributes: numbers, of a cache."""
    lists: dict[str, list[_Stored]] = {}
    others: dict[str, Any] = {}
    for name, each in getattr(cache, "__dict__", {}).items():
        if type(each) is list:
            lists[name] = each
        else:
            others[name] = each
    return lists, others


def _layers(cache: Cache) -> list[list[torch.Tensor]]:
    """The tensors of every layer."""
    return [list(tensors_in(each)) for each in zip(*_state_of(cache)[0].values(), strict=True)]


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
        for name, each in _state_of(cache)[1].items()
    ]
    return (
        type(cache), tuple(looks[layer : layer + 1]), tuple(own), tuple(numbers),
        frozenset(looks[:layer]), frozenset(looks[layer + 1 :]),
    )  # fmt: skip


class Look(NamedTuple):
    """How a tensor with memory of its own looks.

    Attributes:
        shape: Its shape.
        strides: Its strides.
        offset: Where it begins in its memory.
        dtype: Its type.
        elements: Elements for which it has memory.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    elements: int


Looks: TypeAlias = "Look | tuple[Looks, ...]"
"""Of one tensor, or of each of some."""


def layout(tensor: torch.Tensor) -> Key:
    """Shape, strides, type and device."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def look_of(stored: _Stored) -> Looks:
    """How a tensor looks, or each of some."""
    if isinstance(stored, tuple):
        return tuple(map(look_of, stored))
    elements = stored.untyped_storage().nbytes() // stored.element_size()
    shape, offset = tuple(stored.shape), int(stored.storage_offset())
    return Look(shape, stored.stride(), offset, stored.dtype, elements)


def made_like(looks: Looks) -> _Stored:
    """Tensors on `meta` that look like this, each with its own memory."""
    if not isinstance(looks, Look):
        return tuple(map(made_like, looks))
    whole = torch.empty(looks.elements, dtype=looks.dtype, device="meta")
    return whole.as_strided(looks.shape, looks.strides, looks.offset)


class Extension(NamedTuple):
    """What a call leaves in a cache for its layer.

    Attributes:
        looks: How what stands in each list looks.
        numbers: The layer's numbers, by name.
    """

    looks: Mapping[str, Looks]
    numbers: Mapping[str, int]

    def apply(self, cache: Cache, layer: int, memory: LiveTensors) -> None:
        """Extends another layer likewise; its memory counts as made now."""
        for name, looks in self.looks.items():
            vars(cache)[name][layer : layer + 1] = [made_like(looks)]  # at the end, this appends
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
        nbytes = sum(map(memory.nbytes_of, tensors_in(layers[layer : layer + 1])))
        return cls(cache, layer, tensors, copy.deepcopy(_state_of(cache)[1]), nbytes)

    def extension(self, is_made: Callable[[torch.Tensor], bool]) -> Extension | None:
        """What the call has left for its layer; None if it did anything else to the cache.

        Args:
            is_made: Whether a tensor has memory of its own that the call made.
        """
        if not _is_cache(self.cache):
            return None
        now, layer = _layers(self.cache), self.layer
        if len(now) != max(len(self.tensors), layer + 1):
            return None
        for number, (tensors, before) in enumerate(zip(now, self.tensors, strict=False)):
            is_same = [(id(each), each._version) for each in tensors] == [
                (id(ref()), version) for ref, version in before
            ]
            if not is_same and number != layer:
                return None
        lists, numbers = _state_of(self.cache)
        for name, each in numbers.items():
            if {**each, layer: None} != {**self.numbers.get(name, {}), layer: None}:
                return None
        if not all(map(is_made, now[layer])):
            return None
        looks = {name: look_of(each[layer]) for name, each in lists.items()}
        own = {name: each[layer] for name, each in numbers.items() if layer in each}
        return Extension(looks, own)
