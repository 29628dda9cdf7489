"""Tracks which tensors a pass has made and not yet freed, and their bytes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["LiveTensors"]


class _Storage(weakref.ref[Any]):
    """A weak reference to a storage made during the pass.

    Attributes:
        key: Its address, which another storage may get once it is freed.
        nbytes: Its size in bytes.
        birth: Number of storages made so far, including this one.
    """

    __slots__ = ("birth", "key", "nbytes")
    key: int
    nbytes: int
    birth: int


class LiveTensors:
    """Memory of the tensors made during a pass; one storage counts once, until it is freed.

    A freed storage is only appended to a list, by a C function, and subtracted on the next query:
    a signal handler's exception inside a Python callback would be dropped, and the update lost.

    Args:
        existing: Tensors from before the pass, such as parameters. If they are all on one device,
            only its memory counts; otherwise every device's.
    """

    def __init__(self, existing: Iterable[torch.Tensor]) -> None:
        existing = list(existing)
        devices = {tensor.device for tensor in existing}
        self._device = devices.pop() if len(devices) == 1 else None
        storages = (tensor.untyped_storage() for tensor in existing)
        # Keep the storages themselves: once one is freed, another may get its address.
        self._existing = {storage._cdata: storage for storage in storages}
        self._live: dict[int, _Storage] = {}
        self._freed: list[_Storage] = []
        self._nbytes = 0
        self.births = 0
        """Storages counted so far."""

    def clear(self) -> None:
        """Starts over: tensors alive now don't count from here on."""
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
        """Counts a storage's growth from `before` bytes.

        For a storage from before the pass, only the growth counts.

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
        """Bytes of the tensor's storage; None if it was made before the count `births`."""
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
