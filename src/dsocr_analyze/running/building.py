"""Settings while a model is built: no initialisation, and no search for kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.modules.module import register_module_module_registration_hook

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.forking import undone
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.running.exclusive import exclusive, is_running_thread
from dsocr_analyze.running.process_settings import answered, default_dtype, quiet_transformers
from dsocr_analyze.running.unused_imports import without_unused_imports

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["building"]

_MOST_MODULES: Final = 100_000
"""Builds in 10 s at most; without a limit, a one-line config could exhaust memory."""


@contextlib.contextmanager
def building(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Builds a model on `device` in `dtype` without initialising weights or probing for kernels.

    Weights are absent (`meta`) or are loaded or drawn afterwards, so values drawn by constructors
    would be thrown away; drawing them takes longer than everything else.
    """
    from transformers import PreTrainedModel

    with exclusive(), contextlib.ExitStack() as stack:
        for name in dir(torch.nn.init):
            if name.endswith("_") and not name.startswith("_"):
                stack.enter_context(answered(torch.nn.init, name, _leave_as_is))
        for name in _DRAWING:
            if hasattr(PreTrainedModel, name):
                stack.enter_context(answered(PreTrainedModel, name, _do_nothing))
        # transformers rejects flash attention if the package is missing, which meta does not need.
        for name, answer in _ATTENTION_CHECKS.items():
            if hasattr(PreTrainedModel, name):
                stack.enter_context(answered(PreTrainedModel, name, answer))
        stack.enter_context(quiet_transformers())
        stack.enter_context(without_unused_imports())
        stack.enter_context(default_dtype(dtype))
        stack.enter_context(torch.device(device))
        stack.enter_context(_bounded())
        yield


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """While the body runs, limits the number of registered submodules to `_MOST_MODULES`."""
    count = 0

    def counted(_: torch.nn.Module, __: str, ___: torch.nn.Module | None) -> None:
        nonlocal count
        count += is_running_thread()
        if count > _MOST_MODULES:
            raise ConfigError(
                f"the model has more than {_MOST_MODULES:,} modules; give a config with fewer"
                " layers or experts"
            )

    with undone(register_module_module_registration_hook(counted).remove):
        yield


def _leave_as_is(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    safe_point()
    return tensor


def _do_nothing(*_: Any, **__: Any) -> None:
    return None


def _keep_config(_: type, config: PretrainedConfig, *__: Any, **___: Any) -> PretrainedConfig:
    return config


def _keep_attention(_: torch.nn.Module, attention: str | None, *__: Any, **___: Any) -> str:
    return attention or "eager"  # the default in configs of transformers 4


_DRAWING: Final = ("_initialize_weights", "initialize_weights")
"""What `init_weights` of transformers 4 and 5 draws values with; pruning and ties stay."""

_ATTENTION_CHECKS: Final[dict[str, Callable[..., PretrainedConfig | str]]] = {
    "_autoset_attn_implementation": _keep_config,  # transformers 4
    "_check_and_adjust_attn_implementation": _keep_attention,  # transformers 5
}
