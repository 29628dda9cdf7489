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
        existing: Tensors that were there before, such as parameters. Where they are all on one
            device, its memory alone counts; else every device's.
    """

    def __init__(self, existing: Iterable[torch.Tensor]) -> None:
        existing = list(existing)
        devices = {tensor.device for tensor in existing}
        self._device = devices.pop() if len(devices) == 1 else None
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
        self._book_freed()
        storage = tensor.untyped_storage()
        if storage._cdata not in self._live and storage._cdata not in self._existing:
            self._add(storage, storage.nbytes())

    def grow(self, storage: torch.UntypedStorage, before: int) -> int:
        """Counts what a storage has grown by since it had `before` bytes.

        Of a storage that was there before the pass, that is all that counts.

        Returns:
            Bytes alive while it grew: the old memory was freed after the new one was filled.
        """
        if self._device not in (None, storage.device):
            return self.nbytes
        while_growing = self.nbytes + storage.nbytes()
        grown = storage.nbytes() - before
        living = self._live.get(storage._cdata)
        if living is None:
            self._add(storage, grown)
        else:
            living.nbytes += grown
            self._nbytes += grown
        return while_growing

    def _add(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        if not nbytes or self._device not in (None, storage.device):
            return
        self.births += 1
        living = _Storage(storage, self._freed.append)
        living.key, living.nbytes, living.birth = storage._cdata, nbytes, self.births
        self._live[living.key] = living
        self._nbytes += nbytes

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
