"""What a model's code asks of the machine, answered around it and only while it runs.

The vendor's files were written for one GPU, one version of transformers and a full set of
packages. Nothing of theirs is edited; instead these context managers

* stand in for imports that are not installed and that no counted operator needs (`importing`),
* build a model without initialising weights or probing for flash-attn (`building`),
* answer `.cuda()`, `torch.autocast("meta")`, questions about values and prints (`running`),

and undo all of it on the way out, also after an error.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import io
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dsocr_analyze.model.known_values import KnownValues, UniformRouting
from dsocr_analyze.model.uncompiled import without_compiler

__all__ = ["REMOTE_PACKAGE", "building", "importing", "running"]

REMOTE_PACKAGE = "dsocr_analyze_remote"
"""The package under which the Python files of model directories are imported."""

# Packages that the vendor imports and that its forward pass never calls, with the names it takes.
_STAND_INS: dict[str, tuple[str, ...]] = {
    "torchvision": (),
    "torchvision.transforms": ("Compose", "ToTensor", "Normalize"),
    "torchvision.transforms.functional": ("InterpolationMode",),
}


class _Missing:
    """A name of a package that is not installed; using it says so."""

    def __init__(self, qualified_name: str) -> None:
        self._qualified_name = qualified_name

    def __call__(self, *_: Any, **__: Any) -> Any:
        package = self._qualified_name.partition(".")[0]
        raise ImportError(
            f"{self._qualified_name} was called, but {package} is not installed;"
            f" pip install {package}"
        )


def _stand_in(name: str, names: tuple[str, ...]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []
    for attribute in names:
        setattr(module, attribute, _Missing(f"{name}.{attribute}"))
    return module


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """While model code is imported: packages it names but does not need need not be there."""
    added: list[str] = []
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        # RuntimeError: a torchvision built for another torch registers operators that fail.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name, names in _STAND_INS.items():
            sys.modules[name] = _stand_in(name, names)
            added.append(name)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[name])
    try:
        with _quiet_transformers():
            yield
    finally:
        for name in added:
            sys.modules.pop(name, None)


@contextlib.contextmanager
def building(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """While a model is built on `device` in `dtype`: no initialisation, no probing for kernels.

    Weights are either absent (`meta`), loaded afterwards or drawn afterwards, so what the
    constructors would draw is thrown away; drawing it takes longer than everything else.
    """
    from transformers import PreTrainedModel

    default_dtype = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        for name in dir(torch.nn.init):
            if name.endswith("_") and not name.startswith("_"):
                stack.enter_context(_replaced(torch.nn.init, name, _leave_as_is))
        stack.enter_context(_replaced(PreTrainedModel, "init_weights", _do_nothing))
        # transformers refuses flash attention without the package, which meta does not need.
        stack.enter_context(
            _replaced(
                PreTrainedModel,
                "_autoset_attn_implementation",
                classmethod(_keep_config),
            )
        )
        stack.enter_context(_quiet_transformers())
        stack.enter_context(without_compiler())
        stack.callback(torch.set_default_dtype, default_dtype)
        torch.set_default_dtype(dtype)
        stack.enter_context(torch.device(device))
        yield


@contextlib.contextmanager
def running(
    device: torch.device,
    flash_attention: Callable[..., torch.Tensor] | None = None,
    *,
    has_weights: bool = False,
) -> Iterator[None]:
    """While a model's forward pass runs on `device`: its questions are answered.

    Args:
        device: Where the model's parameters are.
        flash_attention: What the model's code finds as `flash_attn_func`, where it uses it.
        has_weights: Whether the parameters hold a checkpoint's values; routing by drawn ones would
            be chance, so it is uniform then, as on `meta`.
    """
    with contextlib.ExitStack() as stack:
        # The vendor's forward prints feature shapes; stdout belongs to the result.
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(_quiet_transformers())
        stack.enter_context(without_compiler())
        stack.enter_context(_unfused_script())
        stack.enter_context(torch.no_grad())
        if flash_attention is not None:
            for module in _modules_calling_flash_attention():
                for name, value in {
                    "flash_attn_func": flash_attention,
                    "_flash_supports_window_size": False,
                }.items():
                    stack.enter_context(_replaced(module, name, value))
        if device.type == "meta":
            autocast = torch.amp.autocast_mode.autocast
            stack.enter_context(
                _replaced(autocast, "__init__", _autocast_anywhere(autocast.__init__))
            )
            stack.enter_context(KnownValues())
        else:
            if device.type != "cuda":
                stack.enter_context(_CudaMeans(device))
            if not has_weights:
                stack.enter_context(UniformRouting())
        yield


def _modules_calling_flash_attention() -> list[types.ModuleType]:
    """The loaded model's own files, and the file of transformers that calls it for Llama."""
    from transformers import modeling_flash_attention_utils

    own = [
        module for name, module in sys.modules.items() if name.partition(".")[0] == REMOTE_PACKAGE
    ]
    return [modeling_flash_attention_utils, *own]


class _CudaMeans(TorchFunctionMode):
    """`.cuda()` moves to the device under analysis."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0].to(self._device)
        return func(*args, **(kwargs or {}))


def _autocast_anywhere(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - stands in for it
        original(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    return __init__


@contextlib.contextmanager
def _unfused_script() -> Iterator[None]:
    """Scripted functions run operator by operator: a fused kernel would hide what it computes."""
    gpu = torch._C._jit_can_fuse_on_gpu()
    cpu = torch._C._jit_can_fuse_on_cpu()
    texpr = torch._C._jit_texpr_fuser_enabled()
    torch._C._jit_override_can_fuse_on_gpu(False)
    torch._C._jit_override_can_fuse_on_cpu(False)
    torch._C._jit_set_texpr_fuser_enabled(False)
    try:
        yield
    finally:
        torch._C._jit_override_can_fuse_on_gpu(gpu)
        torch._C._jit_override_can_fuse_on_cpu(cpu)
        torch._C._jit_set_texpr_fuser_enabled(texpr)


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """transformers warns about model types and generation, which no count depends on."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` for a while; an inherited attribute is inherited again afterwards."""
    own = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


_ABSENT = object()


def _leave_as_is(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


def _do_nothing(*_: Any, **__: Any) -> None:
    return None


def _keep_config(_: Any, config: Any, *__: Any, **___: Any) -> Any:
    return config
