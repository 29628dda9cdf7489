"""An outside witness of memory: which tensors that operators have made are alive."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.model import forward, generation, loading
from dsocr_analyze.workload import PageWorkload


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
        made = (each for each in self._tensors(output) if self._key(each) not in given)
        self.note(func.overloadpacket.__name__, *made)
        return output

    def note(self, name: str, *made: torch.Tensor) -> None:
        """Notes tensors that an operator has made."""
        for tensor in made:
            key, storage = self._key(tensor), tensor.untyped_storage()
            if key in self._known or self._device not in (None, tensor.device):
                continue
            self.nbytes += storage.nbytes()
            self._known[key] = weakref.finalize(storage, self._freed, key, storage.nbytes())
            self.curve.append((name, self.nbytes))

    def _freed(self, key: int, nbytes: int) -> None:
        del self._known[key]
        self.nbytes -= nbytes

    @staticmethod
    def _tensors(value: Any) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]

    @staticmethod
    def _key(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage()._cdata


def held_by_prefill(
    model: loading.LoadedModel, architecture: Architecture, workload: PageWorkload
) -> int:
    """The most bytes that a prefill pass on a CPU holds without its weights and inputs."""
    with (
        generation.left_as_it_was(model.module.modules()),
        forward.running(model.device, has_weights=model.has_weights),
    ):
        passes = generation.Generation(model, workload, architecture, lambda: None)
        with Alive() as alive:
            passes.prefill()
    return max(nbytes for _, nbytes in alive.curve)
