"""From a model directory to a model: the same path for a vendor checkout and for the reference.

The directory's Python files are executed under `trust_remote_code` terms, from the very bytes that
were hashed; `auto_map` in config.json names the config and model classes, as for
`transformers.AutoModel`. Nothing is copied, cached or written beside the files.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsocr_analyze.errors import ConfigError, DeviceError, ModelCodeError, ModelDirectoryError
from dsocr_analyze.model import accommodation
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.trust import require_trust
from dsocr_analyze.model.versions import require_transformers

__all__ = ["ATTENTION_IMPLEMENTATIONS", "LoadedModel", "is_out_of_memory", "load_model"]

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
    if not directory.is_reference:
        require_transformers()
    with _sources(directory) as package:
        config_class, model_class = _classes(directory, package)
    attention = ATTENTION_IMPLEMENTATIONS[flash_attention]
    has_weights = device.type != "meta" and bool(directory.weight_files())
    try:
        with _sources(directory), accommodation.building(device, dtype):
            values = copy.deepcopy(directory.config)
            config = config_class.from_dict(values, attn_implementation=attention)
            config.use_cache = True
            module = model_class(config)
            if getattr(config, "tie_word_embeddings", False) and hasattr(module, "tie_weights"):
                # transformers ties in the initialisation that `building` leaves out.
                module.tie_weights()
    except (Exception, SystemExit) as error:
        raise _blamed(error, directory, "could not be built") from error
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(
            f"{model_class.__name__} of {str(directory.path)!r} is no torch.nn.Module"
        )
    module.eval()
    if has_weights:
        _load_weights(module, directory)
    elif device.type != "meta":
        _draw_weights(module)
    return LoadedModel(module, directory, device, dtype, attention, has_weights)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a device's memory is full; the CPU's says so in words only."""
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def _blamed(error: BaseException, directory: ModelDirectory, what: str) -> Exception:
    if is_out_of_memory(error):
        return DeviceError(f"the device has not enough memory: {_first_line(error)}")
    first_line = _first_line(error)
    return ModelCodeError(
        f"the model in {str(directory.path)!r} {what}: {type(error).__name__}: {first_line}"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]


def _classes(directory: ModelDirectory, package: str) -> tuple[Any, Any]:
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
        module = _import(directory, f"{package}.{module_name}")
        if not isinstance(getattr(module, class_name, None), type):
            raise ConfigError(
                f"{module_name}.py of {str(directory.path)!r} has no class {class_name!r}"
            )
        classes.append(getattr(module, class_name))
    return classes[0], classes[1]


@contextlib.contextmanager
def _sources(directory: ModelDirectory) -> Iterator[str]:
    """While model code is imported or built: the package under which its files are found."""
    identity = f"{directory.path.resolve()}\n{directory.code_digest()}"
    digest = hashlib.sha256(identity.encode()).hexdigest()
    package = f"{accommodation.REMOTE_PACKAGE}.m_{digest[:16]}"
    finder = _SourceFinder(package, directory)
    sys.meta_path.insert(0, finder)
    try:
        with accommodation.importing():
            yield package
    finally:
        sys.meta_path.remove(finder)


def _import(directory: ModelDirectory, name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        package = name.rpartition(".")[0]
        for loaded in [loaded for loaded in sys.modules if loaded.startswith(package)]:
            del sys.modules[loaded]
        raise _blamed(error, directory, "could not be imported") from error


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
    # Each parameter once: of a shared one the file may hold either name.
    missing = {id(parameter): name for name, parameter in module.named_parameters()}
    try:
        for file in directory.weight_files():
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a dict: it has no iterator
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
                    missing.pop(id(target), None)
    except (OSError, SafetensorError) as error:
        raise ModelDirectoryError(
            f"cannot read weights in {str(directory.path)!r}: {error}"
        ) from error
    if missing:
        raise ModelDirectoryError(
            f"the weights in {str(directory.path)!r} lack {len(missing)} parameters,"
            f" {min(missing.values())!r} among them"
        )


def _draw_weights(module: torch.nn.Module) -> None:
    """Draws every parameter anew: what was left uninitialised may hold NaN, that routes nowhere."""
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
