"""What a layer does to the KV cache among its arguments: it extends the pair of its own number.

A cache is anything whose whole state is lists of tensors by layer, singly or in tuples, and perhaps
numbers by layer, such as where a window stands.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from operator import attrgetter, call, is_
from typing import Any, TypeAlias

import torch

from dsocr_analyze.model.known_shapes import Look
from dsocr_analyze.model.known_values import known_value
from dsocr_analyze.model.torch_calls import Key, Values, tensors_in
from dsocr_analyze.trace.memory import LiveTensors

__all__ = [
    "CachedLayer",
    "Extension",
    "caches_in",
    "described_cache",
    "extend",
    "layout",
    "version_of",
]


Cache: TypeAlias = Any
"""A cache of any class."""

Extension: TypeAlias = tuple[dict[str, tuple[bool, list[Look]]], dict[str, int]]
"""What a call leaves in a cache for its layer.

By list, whether a tuple stands in it, and how its tensors look; and the layer's numbers by name.
"""

version_of = attrgetter("_version")
"""How often a tensor has been written to."""


_State: TypeAlias = tuple[dict[str, list[Any]], dict[str, dict[int, int]], list[list[torch.Tensor]]]
"""What a cache holds: its lists and its numbers by name, and the tensors of every layer."""


def _state_of(value: Cache) -> _State | None:
    """What a cache holds; None if the value is no cache."""
    if isinstance(value, list | tuple | dict | set):  # these hold more than their attributes
        return None
    lists: dict[str, list[Any]] = {}
    numbers: dict[str, dict[int, int]] = {}
    for name, each in getattr(value, "__dict__", {}).items():
        if type(each) is list:
            for item in each:
                if not all(map(torch.is_tensor, item if type(item) is tuple else (item,))):
                    return None
            lists[name] = each
        elif type(each) is dict and {*map(type, (*each.keys(), *each.values()))} <= {int}:
            numbers[name] = each
        else:
            return None
    if len({*map(len, lists.values())}) != 1:
        return None
    return lists, numbers, [*map(list, map(tensors_in, zip(*lists.values(), strict=True)))]


def caches_in(arguments: Values) -> list[Cache]:
    """The caches among a call's arguments, also within tuples."""
    caches = []
    for each in arguments:
        if type(each) is tuple:
            caches += caches_in(each)
        elif _state_of(each) is not None:
            caches.append(each)
    return caches


def layout(tensor: torch.Tensor) -> Key:
    """Shape, strides, type and device."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def described_cache(value: Cache, layer: int, memory: LiveTensors) -> Key | None:
    """All of a cache that the record of a layer may depend on; None if the value is no cache.

    Its own tensors and numbers, and the different ones of the layers before and after it.
    """
    state = _state_of(value)
    if state is None:
        return None
    _, numbers, layers = state
    own: list[Any] = [type(value)]
    before, after = set[Key](), set[Key]()
    for number, tensors in enumerate(layers):
        looks = tuple(map(layout, tensors))
        if number == layer:
            own += looks, *map(known_value, tensors), *map(memory.nbytes_of, tensors)
        else:
            (before if number < layer else after).add(looks)
    for name, each in numbers.items():
        own.append((name, each.get(layer)))
        for other, number in each.items():
            if other != layer:
                (before if other < layer else after).add((name, number))
    return *own, frozenset(before), frozenset(after)


class CachedLayer:
    """A cache and the layer of it that a call may extend, as the call finds them."""

    def __init__(self, cache: Cache, layer: int, memory: LiveTensors) -> None:
        state = _state_of(cache)
        assert state is not None, "it is a cache"
        _, numbers, layers = state
        self.cache, self._layer, self._length = cache, layer, len(layers)
        self._numbers = copy.deepcopy(numbers)
        others = [*tensors_in(layers[:layer] + layers[layer + 1 :])]
        self._others = [*map(weakref.ref, others)]
        """Tensors of the other layers, which may die."""
        self._versions = [*map(version_of, others)]
        self.nbytes = sum(map(memory.nbytes_of, tensors_in(layers[layer : layer + 1])))
        """Bytes of the layer's tensors that count as alive."""

    def extension(self, is_made: Callable[[torch.Tensor], bool]) -> Extension | None:
        """What the call has left for its layer; None if it did anything else to the cache.

        `is_made` tells whether a tensor has memory of its own that the call made.
        """
        state, layer = _state_of(self.cache), self._layer
        if state is None or len(state[2]) != max(self._length, layer + 1):
            return None
        lists, numbers, layers = state
        others = [*tensors_in(layers[:layer] + layers[layer + 1 :])]
        is_same = all(map(is_, map(call, self._others), others))
        if not is_same or [*map(version_of, others)] != self._versions:
            return None
        looks: dict[str, tuple[bool, list[Look]]] = {}
        own: dict[str, int] = {}
        for name, each in numbers.items():
            if {**each, layer: None} != {**self._numbers.get(name, {}), layer: None}:
                return None
            if layer in each:
                own[name] = each[layer]
        for name, stored in lists.items():
            tensors = tensors_in([stored[layer]])
            looks[name] = type(stored[layer]) is tuple, [*map(Look.of, tensors)]
        return (looks, own) if all(map(is_made, layers[layer])) else None


def extend(cache: Cache, layer: int, extension: Extension, memory: LiveTensors) -> None:
    """Extends another layer likewise; its memory counts as made now."""
    for name, (is_tuple, looks) in extension[0].items():
        made = tuple(map(Look.make, looks))
        for tensor in made:
            memory.add(tensor)
        # At the end, this appends.
        vars(cache)[name][layer : layer + 1] = [made if is_tuple else made[0]]
    for name, number in extension[1].items():
        cache.__dict__.setdefault(name, {})[layer] = number
