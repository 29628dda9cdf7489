"""The environment of a vendor's `infer()`, which needs more than a bare pass.

As in `forward`, the vendor's files are not edited and everything is restored on the way out.
"""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator

import torch

from dsocr_analyze.measuring import picture_transforms
from dsocr_analyze.running.forward import running_unwatched
from dsocr_analyze.running.generation import flash_attention
from dsocr_analyze.running.loading import LoadedModel
from dsocr_analyze.running.process_settings import answered, replaced
from dsocr_analyze.running.torch_calls import Value
from dsocr_analyze.running.unused_imports import is_missing

__all__ = ["inferring", "stands_in_for_torchvision"]


@contextlib.contextmanager
def inferring(model: LoadedModel) -> Iterator[None]:
    """Sets up the environment for a model's `infer()`, on any device that computes."""
    device = model.device
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            running_unwatched(device, flash_attention, has_weights=model.has_weights)
        )
        # It permanently disables the initialisation of layers.
        for layer in (torch.nn.Linear, torch.nn.LayerNorm):
            stack.enter_context(replaced(layer, "reset_parameters", layer.reset_parameters))
        # transformers warns about a temperature that greedy generation ignores.
        quiet = [("ignore", None, UserWarning, None, 0), *warnings.filters]
        stack.enter_context(replaced(warnings, "filters", quiet))
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
    """Whether the code of `infer()` needs torchvision, which is not installed."""
    transforms = getattr(_code_of(model), "transforms", None)
    return is_missing(getattr(transforms, "ToTensor", None))


def _code_of(model: LoadedModel) -> types.ModuleType:
    """The module that defines the model's class."""
    return sys.modules[type(model.module).__module__]


def _autocast_on(device: torch.device, original: Callable[..., None]) -> Callable[..., None]:
    """A region's constructor that replaces CUDA by the given device."""

    def __init__(  # noqa: N807 - replaces it
        self: torch.autocast, device_type: str, *args: Value, **kwargs: Value
    ) -> None:
        original(self, device.type if device_type == "cuda" else device_type, *args, **kwargs)

    return __init__
