"""While a vendor's `infer()` runs: what it asks of the machine is answered, beyond a bare pass.

As in `forward`, nothing of the vendor's is edited, and all is undone on the way out.
"""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dsocr_analyze.running import picture_transforms
from dsocr_analyze.running.forward import running_unwatched
from dsocr_analyze.running.generation import flash_attention
from dsocr_analyze.running.loading import LoadedModel
from dsocr_analyze.running.missing_packages import is_missing
from dsocr_analyze.running.process_settings import answered, replaced

__all__ = ["inferring", "stands_in_for_torchvision"]


@contextlib.contextmanager
def inferring(model: LoadedModel) -> Iterator[None]:
    """While a model's `infer()` runs, on any device that computes."""
    device = model.device
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            running_unwatched(device, flash_attention, has_weights=model.has_weights)
        )
        # It switches the initialisation of layers off, for good.
        for layer in (torch.nn.Linear, torch.nn.LayerNorm):
            stack.enter_context(replaced(layer, "reset_parameters", layer.reset_parameters))
        # transformers warns about a temperature that greedy generation does not use.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", UserWarning)
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        else:
            autocast = torch.amp.autocast_mode.autocast
            stack.enter_context(
                answered(autocast, "__init__", _autocast_on(device, autocast.__init__))
            )
        code = _code_of(model)
        if stands_in_for_torchvision(model):
            stack.enter_context(replaced(code, "transforms", picture_transforms))
        yield


def stands_in_for_torchvision(model: LoadedModel) -> bool:
    """Whether the code of `infer()` wants torchvision, which is not installed."""
    transforms = getattr(_code_of(model), "transforms", None)
    return is_missing(getattr(transforms, "ToTensor", None))


def _code_of(model: LoadedModel) -> types.ModuleType:
    """The file that the model's class stands in."""
    return sys.modules[type(model.module).__module__]


def _autocast_on(device: torch.device, original: Callable[..., None]) -> Callable[..., None]:
    """The constructor of a region, in which CUDA's is the device's own."""

    def __init__(  # noqa: N807 - stands in for it
        self: Any, device_type: str, *args: Any, **kwargs: Any
    ) -> None:
        original(self, device.type if device_type == "cuda" else device_type, *args, **kwargs)

    return __init__
