"""Tracks which tensors a pass has made and not yet freed, and their bytes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from dsocr_analyze.model.known_shapes import Look

__all__ = ["LiveTensors"]


class _Storage(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a storage made during the pass.

    Attributes:
        key: Its address, which may be reused once it is freed.
        nbytes: Its size.
        birth: Number of storages made up to this one.
    """

    __slots__ = ("birth", "key", "nbytes")
    key: int
    nbytes: int
    birth: int


class LiveTensors:
    """Memory of the tensors made during a pass, each storage once, until it is freed.

    A C function appends freed storages to a list: in a Python callback, a signal handler's
    exception would be dropped, and the update lost.

    Args:
        existing: Tensors from before the pass. If all are on one device, only its memory counts.
    """

    def __init__(self, existing: Iterable[torch.Tensor]) -> None:
        # Keep the storages themselves: once one is freed, another may get its address.
        self._existing, devices = dict[int, torch.UntypedStorage](), set[torch.device]()
        for storage in map(torch.Tensor.untyped_storage, existing):
            self._existing[storage._cdata] = storage
            devices.add(storage.device)
        self.device = devices.pop() if len(devices) == 1 else None
        """The device whose memory counts; None for every device."""
        self._live: dict[int, _Storage] = {}
        self._on_host: dict[int, _Storage] = {}
        self._freed: list[_Storage] = []
        self._nbytes = 0
        self.births = 0
        """Storages made so far."""

    def clear(self) -> None:
        """Starts over: tensors alive now don't count from here on."""
        self._book_freed()
        self._live.clear()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes alive."""
        self._book_freed()
        return self._nbytes

    def add(self, tensor: torch.Tensor) -> bool:
        """Counts a tensor's memory until it is freed; whether it is new, and on the device."""
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if self._is_known(storage) or not nbytes or self.device not in (None, storage.device):
            return False
        self._watch(storage, nbytes, self._live)
        return True

    def _is_known(self, storage: torch.UntypedStorage) -> bool:
        self._book_freed()
        key = storage._cdata
        return key in self._live or key in self._existing or key in self._on_host

    def made(self, look: Look) -> torch.Tensor:
        """A new tensor that looks like this, counted as alive."""
        tensor = look.make()
        self.add(tensor)
        return tensor

    def replace(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Counts a tensor in place of another, in whose memory it would be."""
        self._book_freed()
        living = self._live.pop(old.untyped_storage()._cdata, None)
        if living is not None:
            self._nbytes -= living.nbytes
        self.add(new)

    def put_on_host(self, tensor: torch.Tensor) -> None:
        """Leaves out a tensor on the CPU that would be on the host beside a GPU.

        Those that already count are on the device; those that no trace counts have no place.
        """
        if not tensor.is_nested and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            if not self._is_known(storage):
                self._watch(storage, 0, self._on_host)

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was put on the host; one without memory of its own never is."""
        if tensor.is_nested or tensor.layout is not torch.strided:
            return False
        self._book_freed()
        return tensor.untyped_storage()._cdata in self._on_host

    def grow(self, storage: torch.UntypedStorage, before: int) -> int:
        """Counts a storage's growth from `before` bytes; returns the bytes alive while it grew.

        The old memory is freed after the new one is filled.
        """
        if self.device not in (None, storage.device) or storage._cdata in self._on_host:
            return self.nbytes
        while_growing = self.nbytes + storage.nbytes()
        grown = storage.nbytes() - before
        living = self._live.get(storage._cdata)
        if living is None:
            self._watch(storage, grown, self._live)
        else:
            living.nbytes += grown
            self._nbytes += grown
        return while_growing

    def _watch(
        self, storage: torch.UntypedStorage, nbytes: int, among: dict[int, _Storage]
    ) -> None:
        self.births += 1
        living = _Storage(storage, self._freed.append)
        living.key, living.nbytes, living.birth = storage._cdata, nbytes, self.births
        among[living.key] = living
        self._nbytes += nbytes

    def nbytes_of(self, tensor: torch.Tensor, births: int = 0) -> int:
        """Bytes of the tensor's storage that count as alive, if made after the first `births`."""
        self._book_freed()
        living = self._live.get(tensor.untyped_storage()._cdata)
        return 0 if living is None or living.birth <= births else living.nbytes

    def _book_freed(self) -> None:
        freed = self._freed
        while freed:
            storage = freed.pop()
            if self._live.get(storage.key) is storage:
                del self._live[storage.key]
                self._nbytes -= storage.nbytes
            elif self._on_host.get(storage.key) is storage:
                del self._on_host[storage.key]
