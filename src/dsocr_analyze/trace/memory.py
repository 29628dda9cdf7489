"""Which tensors a pass has made and not yet freed, and how many bytes they hold."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

__all__ = ["LiveTensors"]


class _Living(NamedTuple):
    reference: weakref.ref[Any]
    nbytes: int
    birth: int
    """How many were born up to this one."""


class LiveTensors:
    """Memory of the tensors made during a pass; one storage counts once, until it is freed.

    Args:
        existing: Tensors that were there before, such as parameters.
    """

    def __init__(self, existing: Iterable[torch.Tensor]) -> None:
        storages = (tensor.untyped_storage() for tensor in existing)
        # The storages themselves: once one is freed, another may get its address.
        self._existing = {storage._cdata: storage for storage in storages}
        self._live: dict[int, _Living] = {}
        self.births = 0
        """Storages counted so far."""
        self.nbytes = 0
        """Bytes alive."""

    def clear(self) -> None:
        """Starts afresh: existing tensors don't count from here on."""
        self._live.clear()
        self.nbytes = 0

    def add(self, tensor: torch.Tensor) -> None:
        """Counts a tensor's memory as alive until its storage is freed."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live or key in self._existing:
            return
        size = storage.nbytes()
        if not size:
            return
        self.births += 1
        freed = functools.partial(self._freed, key)
        self._live[key] = _Living(weakref.ref(storage, freed), size, self.births)
        self.nbytes += size

    def made_since(self, births: int, tensor: torch.Tensor) -> int | None:
        """Bytes of the tensor's storage; None where it is older than the count `births`."""
        living = self._live.get(tensor.untyped_storage()._cdata)
        return living.nbytes if living is not None and living.birth > births else None

    def _freed(self, key: int, reference: Any) -> None:
        living = self._live.get(key)
        if living is not None and living.reference is reference:
            del self._live[key]
            self.nbytes -= living.nbytes
