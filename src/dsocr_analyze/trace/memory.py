"""Which tensors a pass has made and not yet freed, and how many bytes they hold."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["LiveTensors"]


class _Storage(weakref.ref[Any]):
    """A storage that was made during the pass; it does not keep it alive.

    Attributes:
        key: Its address: another storage's once it is freed.
        nbytes: Bytes that it holds.
        birth: How many were born up to this one.
    """

    __slots__ = ("birth", "key", "nbytes")
    key: int
    nbytes: int
    birth: int


class LiveTensors:
    """Memory of the tensors made during a pass; one storage counts once, until it is freed.

    What is freed is only put on a list as it goes, by a function of C, and booked by whoever asks
    next: an exception of a signal's handler would get lost in a callback of ours, and its booking.

    Args:
        existing: Tensors that were there before, such as parameters.
    """

    def __init__(self, existing: Iterable[torch.Tensor]) -> None:
        storages = (tensor.untyped_storage() for tensor in existing)
        # The storages themselves: once one is freed, another may get its address.
        self._existing = {storage._cdata: storage for storage in storages}
        self._live: dict[int, _Storage] = {}
        self._freed: list[_Storage] = []
        self._nbytes = 0
        self.births = 0
        """Storages counted so far."""

    def clear(self) -> None:
        """Starts afresh: existing tensors don't count from here on."""
        self._live.clear()
        self._freed.clear()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes alive."""
        self._book_freed()
        return self._nbytes

    def add(self, tensor: torch.Tensor) -> None:
        """Counts a tensor's memory as alive until its storage is freed."""
        if tensor.layout is not torch.strided:
            return
        self._book_freed()
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live or key in self._existing:
            return
        size = storage.nbytes()
        if not size:
            return
        self.births += 1
        living = _Storage(storage, self._freed.append)
        living.key, living.nbytes, living.birth = key, size, self.births
        self._live[key] = living
        self._nbytes += size

    def made_since(self, births: int, tensor: torch.Tensor) -> int | None:
        """Bytes of the tensor's storage; None where it is older than the count `births`."""
        self._book_freed()
        living = self._live.get(tensor.untyped_storage()._cdata)
        return living.nbytes if living is not None and living.birth > births else None

    def _book_freed(self) -> None:
        freed = self._freed
        while freed:
            storage = freed.pop()
            if self._live.get(storage.key) is storage:
                del self._live[storage.key]
                self._nbytes -= storage.nbytes
