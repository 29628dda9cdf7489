"""From a model directory to a model: the same path for a vendor checkout and for the reference.

The directory's Python files are executed under `trust_remote_code` terms, from the very bytes that
were hashed; `auto_map` in config.json names the config and model classes, as for
`transformers.AutoModel`. Nothing is copied, cached or written beside the files.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsocr_analyze.errors import ConfigError, DeviceError, ModelCodeError, ModelDirectoryError
from dsocr_analyze.model import accommodation
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.trust import require_trust

__all__ = ["ATTENTION_IMPLEMENTATIONS", "LoadedModel", "load_model"]

ATTENTION_IMPLEMENTATIONS = {False: "eager", True: "flash_attention_2"}
"""transformers' name of the attention, by whether flash attention is used."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and where it came from."""

    module: torch.nn.Module
    directory: ModelDirectory
    device: torch.device
    dtype: torch.dtype
    attention: str
    has_weights: bool
    """Whether the parameters hold the checkpoint's values (on `meta` they hold none)."""


def load_model(
    directory: ModelDirectory,
    *,
    device: torch.device,
    dtype: torch.dtype,
    flash_attention: bool = False,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Builds the directory's model on `device`, with its weights where it holds any.

    Args:
        directory: A directory with `config.json` (with `auto_map`) and the Python files it names.
        device: `meta` builds the network without values. Elsewhere safetensors in the directory
            are loaded; without them the weights are drawn from a seeded normal distribution.
        dtype: Type of the parameters.
        flash_attention: Build the decoder with FlashAttention-2 instead of eager attention.
        trust_remote_code: The user agreed to execute the directory's Python files.

    Raises:
        TrustError: Nobody agreed to execute the files.
        ModelCodeError: The files raised.
        ConfigError: `auto_map` is missing or names what is not there.
        DeviceError: The device has not enough memory.
    """
    if not trust_remote_code:
        require_trust(directory)
    config_class, model_class = _classes(directory)
    attention = ATTENTION_IMPLEMENTATIONS[flash_attention]
    has_weights = device.type != "meta" and bool(directory.weight_files())
    try:
        config = config_class.from_dict(dict(directory.config), attn_implementation=attention)
        config.use_cache = True
        with accommodation.building(device, dtype):
            module = model_class(config)
    except Exception as error:  # noqa: BLE001 - somebody else's code may raise anything
        raise _blamed(error, directory, "could not be built") from error
    module.eval()
    if has_weights:
        _load_weights(module, directory)
    elif device.type != "meta":
        _draw_weights(module)
    return LoadedModel(module, directory, device, dtype, attention, has_weights)


def _blamed(error: Exception, directory: ModelDirectory, what: str) -> Exception:
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return DeviceError(f"the device has not enough memory: {error}")
    first_line = (str(error).splitlines() or [""])[0]
    return ModelCodeError(
        f"the model in {str(directory.path)!r} {what}: {type(error).__name__}: {first_line}"
    )


def _classes(directory: ModelDirectory) -> tuple[Any, Any]:
    """The config class and the model class that `auto_map` names."""
    auto_map = directory.config.get("auto_map")
    if not isinstance(auto_map, dict):
        raise ConfigError(f"config.json of {str(directory.path)!r} lacks 'auto_map'")
    classes = []
    for role in ("AutoConfig", "AutoModel"):
        reference = auto_map.get(role)
        if not isinstance(reference, str) or "." not in reference:
            raise ConfigError(
                f"'auto_map' in config.json of {str(directory.path)!r} lacks {role!r}"
                " (a 'file.Class')"
            )
        module_name, _, class_name = reference.rpartition(".")
        if f"{module_name.replace('.', '/')}.py" not in directory.sources:
            raise ModelDirectoryError(
                f"{str(directory.path)!r} lacks {module_name}.py, which 'auto_map' names;"
                f" it has {', '.join(directory.sources) or 'no Python files'}"
            )
        module = _import(directory, module_name)
        if not hasattr(module, class_name):
            raise ConfigError(f"{module_name}.py of {str(directory.path)!r} has no {class_name!r}")
        classes.append(getattr(module, class_name))
    return classes[0], classes[1]


def _import(directory: ModelDirectory, module_name: str) -> types.ModuleType:
    package = f"{accommodation.REMOTE_PACKAGE}.m_{directory.code_digest()[:16]}"
    finder = _SourceFinder(package, directory)
    sys.meta_path.insert(0, finder)
    try:
        with accommodation.importing():
            return importlib.import_module(f"{package}.{module_name}")
    except Exception as error:  # noqa: BLE001 - somebody else's code may raise anything
        for name in [name for name in sys.modules if name.startswith(package)]:
            del sys.modules[name]
        raise _blamed(error, directory, "could not be imported") from error
    finally:
        sys.meta_path.remove(finder)


class _SourceFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports a directory's Python files, from bytes already read, as one private package."""

    def __init__(self, package: str, directory: ModelDirectory) -> None:
        self._package = package
        self._directory = directory

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in (accommodation.REMOTE_PACKAGE, self._package):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if not fullname.startswith(self._package + "."):
            return None
        name = self._source_name(fullname)
        if name is None:
            return None
        origin = str(self._directory.path / name)
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=origin, is_package=name.endswith("__init__.py")
        )
        spec.has_location = True
        return spec

    def _source_name(self, fullname: str) -> str | None:
        stem = fullname.removeprefix(self._package + ".").replace(".", "/")
        for name in (f"{stem}.py", f"{stem}/__init__.py"):
            if name in self._directory.sources:
                return name
        return None

    def is_package(self, fullname: str) -> bool:
        name = self._source_name(fullname)
        return name is None or name.endswith("__init__.py")

    def get_source(self, fullname: str) -> str | None:
        name = self._source_name(fullname)
        return None if name is None else importlib.util.decode_source(self._directory.sources[name])

    def exec_module(self, module: types.ModuleType) -> None:
        name = self._source_name(module.__name__)
        if name is not None:
            source = self._directory.sources[name]
            code = compile(source, str(self._directory.path / name), "exec", dont_inherit=True)
            exec(code, module.__dict__)


def _load_weights(module: torch.nn.Module, directory: ModelDirectory) -> None:
    """Copies the directory's safetensors into `module`; every parameter must be among them."""
    from safetensors import SafetensorError, safe_open

    targets = dict(module.state_dict(keep_vars=True))
    missing = set(dict(module.named_parameters()))
    try:
        for file in directory.weight_files():
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():
                    target = targets.get(name)
                    if target is None:
                        raise ModelDirectoryError(
                            f"{file.name} holds {name!r}, which the model does not have"
                        )
                    tensor = tensors.get_tensor(name)
                    if tensor.shape != target.shape:
                        raise ModelDirectoryError(
                            f"{name!r} in {file.name} has shape {tuple(tensor.shape)};"
                            f" the model's has {tuple(target.shape)}"
                        )
                    with torch.no_grad():
                        target.copy_(tensor)
                    missing.discard(name)
    except (OSError, SafetensorError) as error:
        raise ModelDirectoryError(
            f"cannot read weights in {str(directory.path)!r}: {error}"
        ) from error
    if missing:
        raise ModelDirectoryError(
            f"the weights in {str(directory.path)!r} lack {len(missing)} parameters,"
            f" {min(missing)!r} among them"
        )


def _draw_weights(module: torch.nn.Module) -> None:
    """Draws every parameter anew: what was left uninitialised may hold NaN, which routes nowhere."""
    generators = {
        device: torch.Generator(device).manual_seed(0)
        for device in {parameter.device for parameter in module.parameters()}
    }
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02, generator=generators[parameter.device])
