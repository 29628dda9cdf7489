"""Checks whether modules declared alike still are: a model may have been changed after loading.

Setting `layer.mlp.act_fn` or `layer.mlp.top_k` on a loaded model makes a layer unlike its
neighbours. Comparing settings and children tells such modules apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from dsocr_analyze.running.torch_calls import Key, Value

__all__ = ["Variants", "modules_in"]

_PLAIN: Final = (type(None), bool, int, float, complex, str, torch.dtype)

_NUMBERS: Final = frozenset({"layer_idx", "layer_id"})
"""Attributes that number a layer, which may differ between alike layers."""

_OF_EVERY_MODULE: Final = frozenset(vars(torch.nn.Module())) - {"training"}
"""What torch keeps on each module: hooks, parameters, buffers, children."""


class Variants:
    """Numbers modules; equal numbers mean equal class, settings, parameters and children."""

    def __init__(self) -> None:
        self._of_description: dict[Key, int] = {}
        self._of_module: dict[torch.nn.Module, int] = {}
        self._layers: dict[torch.nn.Module, int | None] = {}

    def __call__(self, module: torch.nn.Module) -> int:
        """The module's number, from its state when first asked for."""
        variant = self._of_module.get(module)
        if variant is None:
            description = (
                type(module),
                *_settings(module),
                *(
                    (name, None if tensor is None else (tensor.shape, tensor.dtype))
                    for name, tensor in (*module._parameters.items(), *module._buffers.items())
                ),
                *(
                    (name, None if child is None else self(child))
                    for name, child in module._modules.items()
                ),
            )
            variant = self._of_description.setdefault(description, len(self._of_description))
            self._of_module[module] = variant
        return variant

    def layer_of(self, module: torch.nn.Module) -> int | None:
        """The number of the layer that a module is, or is part of; None for several or none."""
        if module not in self._layers:
            found = {
                vars(part)[name]
                for part in modules_in(module)
                for name in _NUMBERS & vars(part).keys()
            }
            self._layers[module] = found.pop() if len(found) == 1 else None
        return self._layers[module]


def _settings(module: torch.nn.Module) -> Iterator[tuple[str, Value]]:
    for name, value in vars(module).items():
        if name in _NUMBERS or name in _OF_EVERY_MODULE:
            continue
        if isinstance(value, _PLAIN):
            yield name, value
        elif isinstance(value, tuple | list) and all(isinstance(item, _PLAIN) for item in value):
            yield name, tuple(value)


def modules_in(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The module and those below it, a shared one in each of its places.

    Much faster than `modules()`, whose generators are nested as deeply as the modules.
    """
    found = [module]
    for each in found:
        found += [child for child in each._modules.values() if child is not None]
    return found
