"""The environment of a model's forward pass: settings and functions that its code relies on.

The vendor's files are written for one GPU, one version of transformers and a full set of packages.
The process is adapted to them and restored afterwards, even on errors.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, ParamSpec, TypeAlias

import torch
import transformers

from dsocr_analyze.interruption import safe_point
from dsocr_analyze.model.known_shapes import KnownShapes
from dsocr_analyze.model.known_values import KnownValues, UniformRouting, routed_uniformly
from dsocr_analyze.model.process_settings import (
    answered,
    discarding_stdout,
    exclusive,
    quiet_transformers,
    replaced,
)
from dsocr_analyze.model.source_package import REMOTE_PACKAGE
from dsocr_analyze.model.torch_calls import (
    Arguments,
    Function,
    FunctionMode,
    Keywords,
    Value,
)
from dsocr_analyze.model.unused_imports import without_unused_imports

__all__ = ["running", "running_unwatched"]

_Inputs = ParamSpec("_Inputs")
_TopK: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Values and indices."""

_LOADED: Final = f"{REMOTE_PACKAGE}."
_ARCHITECTURES: Final = "dsocr_analyze.architectures."


@contextlib.contextmanager
def running(
    device: torch.device,
    flash_attention: Callable[..., torch.Tensor] | None = None,
    *,
    has_weights: bool = False,
    assign: Callable[..., None] = torch.Tensor.__setitem__,
) -> Iterator[None]:
    """Sets up the environment for a model's forward pass on `device`.

    Args:
        device: Device of the model's parameters.
        flash_attention: Replaces `flash_attn_func` in the model's code, if given.
        has_weights: Whether the parameters are a checkpoint's; if not, routing is made uniform, as
            it is on `meta`.
        assign: Makes assignments to items of tensors on `meta`.
    """
    with _asked_by_model_code(flash_attention) as stack, without_unused_imports():
        # Scripted functions run operator by operator: a fused kernel would hide its operators.
        optimize = torch._C._set_graph_executor_optimize  # of this thread only
        stack.callback(optimize, torch._C._get_graph_executor_optimize())
        optimize(False)
        if device.type == "meta":
            autocast = torch.amp.autocast_mode.autocast
            stack.enter_context(
                answered(autocast, "__init__", _autocast_anywhere(autocast.__init__))
            )
            stack.enter_context(KnownValues(assign))
            stack.enter_context(KnownShapes())
        else:
            stack.enter_context(FunctionMode(partial(_on_device, device)))
            if not has_weights:
                stack.enter_context(UniformRouting())
        yield


@contextlib.contextmanager
def running_unwatched(
    device: torch.device,
    flash_attention: Callable[..., torch.Tensor] | None = None,
    *,
    has_weights: bool = False,
) -> Iterator[None]:
    """The same for timing, not on `meta`: no mode sees the functions, and scripts run fused."""
    with _asked_by_model_code(flash_attention) as stack:
        if device.type != "cuda":
            stack.enter_context(answered(torch.Tensor, "cuda", lambda self, *_: self.to(device)))
        if not has_weights:
            for owner in (torch, torch.Tensor):
                stack.enter_context(answered(owner, "topk", _uniform_top_k(owner.topk)))
        yield


def _uniform_top_k(top_k: Callable[_Inputs, _TopK]) -> Callable[_Inputs, _TopK]:
    def uniform(*args: _Inputs.args, **kwargs: _Inputs.kwargs) -> _TopK:
        result = top_k(*args, **kwargs)
        result[1].copy_(routed_uniformly(result[1], args, kwargs)())
        return result

    return uniform


@contextlib.contextmanager
def _asked_by_model_code(
    flash_attention: Callable[..., torch.Tensor] | None,
) -> Iterator[contextlib.ExitStack]:
    """Settings wherever a model runs; the caller may enter more on the stack."""
    with (
        exclusive(),
        discarding_stdout(),  # the vendor's forward prints feature shapes
        quiet_transformers(),
        torch.no_grad(),
        contextlib.ExitStack() as stack,
    ):
        if flash_attention is not None:
            # The loaded model's own files, files shared by built-in references, and transformers'.
            callers = [transformers.modeling_flash_attention_utils]
            for name, module in tuple(sys.modules.items()):
                is_shared = name.startswith(_ARCHITECTURES) and hasattr(module, "flash_attn_func")
                if name.startswith(_LOADED) or is_shared:
                    callers.append(module)
            for module in callers:
                stack.enter_context(answered(module, "flash_attn_func", flash_attention))
                if not hasattr(module, "_flash_supports_window_size"):
                    stack.enter_context(replaced(module, "_flash_supports_window_size", False))
        yield stack


def _on_device(device: torch.device, func: Function, args: Arguments, kwargs: Keywords) -> Value:
    """Ends a pass if interrupted; `.cuda()` moves to the device under analysis."""
    safe_point()
    if func is torch.Tensor.cuda and device.type != "cuda":
        moved: torch.Tensor = args[0].to(device)
        return moved
    return func(*args, **kwargs)


def _autocast_anywhere(original: Callable[..., None]) -> Callable[..., None]:
    """A constructor of autocast that enters CUDA's for `meta` without needing a GPU."""

    def __init__(  # noqa: N807 - replaces it
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type not in ("cuda", "meta"):
            original(self, device_type, dtype, enabled, cache_enabled)
            return
        original(self, "cuda", dtype, False, cache_enabled)  # disabled, so it needs no GPU
        self._enabled = enabled

    return __init__
