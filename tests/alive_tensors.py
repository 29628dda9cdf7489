"""An outside witness of memory: which tensors that operators have made are alive."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """Bytes of the tensors that operators have made and nothing has freed, at each one made.

    Args:
        device: Where the tensors are that count; None for all.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        self._device = device
        self.curve: list[tuple[str, int]] = []
        self.nbytes = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {self._key(value) for value in self._tensors((args, kwargs))}
        output = func(*args, **(kwargs or {}))
        for tensor in self._tensors(output):
            key, storage = self._key(tensor), tensor.untyped_storage()
            if key in given or key in self._known:
                continue
            if self._device not in (None, tensor.device):
                continue
            self.nbytes += storage.nbytes()
            self._known[key] = weakref.finalize(storage, self._freed, key, storage.nbytes())
            self.curve.append((func.overloadpacket.__name__, self.nbytes))
        return output

    def _freed(self, key: int, nbytes: int) -> None:
        del self._known[key]
        self.nbytes -= nbytes

    @staticmethod
    def _tensors(value: Any) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]

    @staticmethod
    def _key(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage()._cdata
