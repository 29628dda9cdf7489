"""Builds a model from a directory, a vendor checkout or the reference."""

import contextlib
import copy
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
import transformers
from packaging.specifiers import SpecifierSet
from safetensors import SafetensorError, safe_open
from torch.nn.modules.module import register_module_module_registration_hook

from dsocr_analyze.errors import ConfigError, ModelCodeError, ModelDirectoryError
from dsocr_analyze.forking import importing, undone
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.model.described_model import (
    FLASH_ATTENTION,
    check_attention,
    check_stages,
    config_and_class,
    confined,
    use_attention,
)
from dsocr_analyze.model.directory import ModelDirectory, read_config
from dsocr_analyze.model.forward import REMOTE_PACKAGE, blamed_on
from dsocr_analyze.model.known_values import KnownValues
from dsocr_analyze.model.process_settings import (
    answered,
    default_dtype,
    exclusive,
    is_running_thread,
    missing_packages_stood_in,
    quiet_transformers,
    without_unused_imports,
)
from dsocr_analyze.model.trust import require_trust

_MOST_MODULES: Final = 100_000
"""Otherwise a one-line config could exhaust memory. They are built in 10 s at most."""


@contextlib.contextmanager
def building(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Models are built on `device` in `dtype`, without kernels, and without drawing any weights.

    Constructors spend most of their time on these.
    """
    count = 0

    def counted(_: torch.nn.Module, __: str, ___: torch.nn.Module | None) -> None:
        nonlocal count
        count += is_running_thread()
        if count > _MOST_MODULES:
            raise ConfigError(
                f"the model has more than {_MOST_MODULES:,} modules; give a config with fewer"
                " layers or experts"
            )

    with (
        exclusive(),
        contextlib.ExitStack() as stack,
        quiet_transformers(),
        without_unused_imports(),
        default_dtype(dtype),
        torch.device(device),
        undone(register_module_module_registration_hook(counted).remove),
    ):
        for name in dir(torch.nn.init):
            if name.endswith("_") and not name.startswith("_"):
                stack.enter_context(answered(torch.nn.init, name, _leave_as_is))
        for name, answer in _ANSWERS.items():
            if hasattr(transformers.PreTrainedModel, name):
                stack.enter_context(answered(transformers.PreTrainedModel, name, answer))
        yield


def _leave_as_is(tensor: Any, *_: Any, **__: Any) -> Any:
    safe_point()
    return tensor


_ANSWERS: Final[dict[str, Callable[..., Any]]] = {
    # What `init_weights` of transformers 4 and 5 draws values with; pruning and ties stay.
    "_initialize_weights": _leave_as_is,
    "initialize_weights": _leave_as_is,
    # These of 4 and 5 reject flash attention without its package, which meta does not need.
    "_autoset_attn_implementation": lambda _class, config, *_, **__: config,
    "_check_and_adjust_attn_implementation": lambda _, attention, *__, **___: attention or "eager",
}


RING_WINDOW: Final = "_ring_window"
"""Attribute of a config that `infer()` of Unlimited-OCR sets; no key of `config.json`."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and its origin.

    Attributes:
        has_weights: Whether the parameters hold the checkpoint's values.
        sliding_window: As `load_model` takes it.
    """

    module: torch.nn.Module
    directory: ModelDirectory
    device: torch.device
    dtype: torch.dtype
    attention: str
    has_weights: bool
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        if self.sliding_window is not None:
            vars(self.module.config)[RING_WINDOW] = self.sliding_window


def load_model(
    directory: ModelDirectory,
    *,
    device: torch.device,
    dtype: torch.dtype,
    flash_attention: bool = False,
    sliding_window: int | None = None,
    random_weights: bool = False,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Builds the directory's model on `device`, once no other thread builds or runs one.

    Args:
        directory: Has an `auto_map` that names its classes, or is described by a stages file.
        device: Not on `meta`, the directory's safetensors are loaded; without any, weights are
            drawn from a seeded normal distribution.
        dtype: Type of the parameters.
        flash_attention: Whether the decoder has FlashAttention-2 instead of eager attention.
        sliding_window: Generated tokens, from 1, that the decoder keeps in its cache; None for all.
        random_weights: Whether weights are drawn even if the directory has some.
        trust_remote_code: Whether the user agreed to execute the directory's Python files.

    Raises:
        TrustError: The user has not agreed.
        ModelCodeError: The files raised, or the installed transformers cannot run them.
        ConfigError: `auto_map` names no class.
        ModelDirectoryError: A file named in `auto_map` is missing, or the weights do not fit.
        DeviceError: The device is out of memory.
    """
    if directory.has_code and not trust_remote_code:
        require_trust(directory)
    described = directory.of_transformers
    usual = "eager" if described is None else described.attention
    attention = FLASH_ATTENTION if flash_attention else usual
    with without_unused_imports():
        if described is None:
            require_transformers(directory)
        with importing():  # parts of transformers, and the model's files
            build = _of_its_code if directory.has_code else _of_transformers
            module = build(directory, device, dtype, attention)
        if described is not None:
            check_stages(module, described)
            if not directory.has_code:
                check_attention(module, attention)
            _configure_generation(module, directory)
        module.eval()
        is_real = device.type != "meta"
        has_weights = is_real and not random_weights and bool(directory.weight_files())
        if has_weights:
            _load_weights(module, directory)
        elif is_real:
            _draw_weights(module)
    return LoadedModel(module, directory, device, dtype, attention, has_weights, sliding_window)


def _configure_generation(module: torch.nn.Module, directory: ModelDirectory) -> None:
    """Takes over the directory's way to generate, if any, of which `generate` takes its cache."""
    how = directory.path / "generation_config.json"
    if how.is_file():
        read_config(how)  # a JSON object, and not too large
        with blamed_on(directory, f"has a {how.name} that transformers refuses"):
            vars(module)["generation_config"] = transformers.GenerationConfig.from_pretrained(
                directory.path, local_files_only=True
            )


def _of_transformers(
    directory: ModelDirectory, device: torch.device, dtype: torch.dtype, attention: str
) -> torch.nn.Module:
    with (
        blamed_on(directory, "could not be built", str(device)),
        building(device, dtype),
        # Constructors read values, too, such as rates of dropping paths from a range.
        KnownValues() if device.type == "meta" else contextlib.nullcontext(),
        confined(directory),
    ):
        config, model_class = config_and_class(directory)
        use_attention(config, attention)
        return model_class(config)


def _of_its_code(
    directory: ModelDirectory, device: torch.device, dtype: torch.dtype, attention: str
) -> torch.nn.Module:
    with importable(directory) as package:
        config_class = _class_in(directory, package, "AutoConfig")
        model_class = _class_in(directory, package, "AutoModel")
        with blamed_on(directory, "could not be built", str(device)), building(device, dtype):
            values = copy.deepcopy(directory.config)
            config = config_class.from_dict(values, attn_implementation=attention)
            config.use_cache = True
            module = model_class(config)
            if getattr(config, "tie_word_embeddings", False) and hasattr(module, "tie_weights"):
                # As `from_pretrained` does, even if the constructor does not.
                module.tie_weights()
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(
            f"{model_class.__name__} of {str(directory.path)!r} is not a torch.nn.Module"
        )
    return module


def _class_in(directory: ModelDirectory, package: str, role: str) -> Any:
    file, name = directory.class_in(role)
    found = getattr(import_file(directory, package, file), name, None)
    if not isinstance(found, type):
        raise ConfigError(f"{file} of {str(directory.path)!r} has no class {name!r}")
    return found


_PACKAGE: Final = "transformers"

VENDOR_TRANSFORMERS: Final = SpecifierSet(">=4.46.3,<4.48")
"""Versions that published code runs on: it is made for 4.46.3, and 4.48 lacks what it imports."""


def require_transformers(directory: ModelDirectory) -> None:
    """Raises ModelCodeError if the installed transformers cannot run the code."""
    if directory.is_reference:
        return
    installed = metadata.version(_PACKAGE)
    if not VENDOR_TRANSFORMERS.contains(installed, prereleases=True):
        raise ModelCodeError(
            f"transformers {installed} is installed, but the code of {str(directory.path)!r} needs"
            f" {_PACKAGE}{VENDOR_TRANSFORMERS}: other versions lack what it imports;"
            " pip install 'dsocr-analyze[vendor]', or run the built-in reference"
        )


# --- a directory's own files, from the bytes that were hashed; nothing is written ---------------


@contextlib.contextmanager
def importable(directory: ModelDirectory) -> Iterator[str]:
    """Yields the package in which a directory's files can be imported meanwhile."""
    identity = f"{directory.path.resolve()}\n{directory.code_digest()}".encode()
    package = f"{REMOTE_PACKAGE}.m_{hashlib.sha256(identity).hexdigest()[:16]}"
    finder = _SourceFinder(package, directory)

    def forget() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    with exclusive(), undone(forget), contextlib.ExitStack() as stack:
        sys.meta_path.insert(0, finder)
        if not directory.is_reference:  # which imports no package that may be missing
            stack.enter_context(missing_packages_stood_in())
        stack.enter_context(quiet_transformers())
        yield package


def import_file(directory: ModelDirectory, package: str, file: str) -> types.ModuleType:
    """Imports a file into the package of `importable`; if one raises, none of them stays."""
    name = f"{package}.{file.removesuffix('.py').replace('/', '.')}"
    try:
        with blamed_on(directory, "could not be imported"):
            return importlib.import_module(name)
    except BaseException:
        for loaded in [loaded for loaded in sys.modules if loaded.startswith(package)]:
            del sys.modules[loaded]
        raise


@dataclass(eq=False)
class _SourceFinder(  # type: ignore[misc]  # two stubs of one class of Python disagree
    importlib.abc.MetaPathFinder, importlib.abc.SourceLoader
):
    """Imports a directory's Python files as a private package."""

    package: str
    directory: ModelDirectory

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        file = self._file_of(fullname)
        if not file and fullname not in (REMOTE_PACKAGE, self.package):
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname,
            self,
            origin=self.get_filename(fullname),
            is_package=self.is_package(fullname),
        )
        spec.has_location = bool(file)
        return spec

    def _file_of(self, fullname: str) -> str:
        """The file of a module; empty for packages around the files, and for others."""
        if not fullname.startswith(f"{self.package}."):
            return ""
        stem = fullname.removeprefix(f"{self.package}.").replace(".", "/")
        files = (f"{stem}.py", f"{stem}/__init__.py")
        return next(filter(self.directory.sources.__contains__, files), "")

    def get_filename(self, fullname: str) -> str:
        file = self._file_of(fullname) or f"{self.package}/__init__.py"  # which nothing holds
        return str(self.directory.path / file)

    def get_data(self, path: str) -> bytes:
        file = Path(path).relative_to(self.directory.path).as_posix()
        return self.directory.sources.get(file, b"")


# --- the values of parameters: a checkpoint's, or random ones that affect no count --------------

_Checkpoint: TypeAlias = dict[str, tuple[torch.Tensor, str]]
"""Tensors, and the names of their files, by name."""

_WAY_OUT: Final = (
    "; save the model with save_pretrained() of the installed transformers, or give its"
    " config.json without a checkpoint: random weights change no count"
)


def _load_weights(module: torch.nn.Module, directory: ModelDirectory) -> None:
    """Loads safetensors by the module's names or any that transformers 5 renames."""
    checkpoint = _read(directory)
    targets = dict(module.state_dict(keep_vars=True))
    is_renamed = not checkpoint.keys() <= targets.keys()
    with torch.no_grad():
        if is_renamed and hasattr(module, "_adjust_missing_and_unexpected_keys"):  # transformers 5
            missing = _converted(module, checkpoint)
        else:
            missing = _copied(module, targets, checkpoint)
        # Parameters that no checkpoint holds, such as sinusoids.
        made = "|".join(getattr(module, "_keys_to_ignore_on_load_missing", None) or ["$^"])
        for name in [name for name in missing if re.search(made, name)]:
            owner: Any = module
            owner._init_weights(module.get_submodule(name.rpartition(".")[0]))
            missing.remove(name)
    if missing:
        raise ModelDirectoryError(
            f"the weights in {str(directory.path)!r} lack {len(missing)} parameters,"
            f" {min(missing)!r} among them{_WAY_OUT}"
        )


def _read(directory: ModelDirectory) -> _Checkpoint:
    """The checkpoint, mapped into memory: values are read where they are copied."""
    found = {}
    try:
        for file in directory.weight_files():
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a dict: it is not iterable
                    safe_point()
                    found[name] = tensors.get_tensor(name), file.name
    except (OSError, SafetensorError) as error:
        raise ModelDirectoryError(
            f"cannot read weights in {str(directory.path)!r}: {error}"
        ) from error
    return found


def _copied(
    module: torch.nn.Module, targets: Mapping[str, torch.Tensor], checkpoint: _Checkpoint
) -> set[str]:
    """Copies tensors by the model's own names; returns the parameters that are missing."""
    # Shared ones once: the file may hold them under any of their names.
    missing = {id(parameter): name for name, parameter in module.named_parameters()}
    # As for `from_pretrained`, buffers that are not saved any more.
    ignored = getattr(module, "_keys_to_ignore_on_load_unexpected", None) or []
    left_out = re.compile("|".join([*ignored, r"rotary_emb\.inv_freq$"]))
    buffers = dict(module.named_buffers())
    loaded: dict[int, str] = {}
    for name, (tensor, file) in checkpoint.items():
        safe_point()
        target = targets.get(name)
        if target is None:
            if name in buffers or left_out.search(name):
                continue
            raise ModelDirectoryError(
                f"{file} holds {name!r}, which the model does not have{_WAY_OUT}"
            )
        if tensor.shape != target.shape:
            raise ModelDirectoryError(
                f"{name!r} in {file} has shape {tuple(tensor.shape)};"
                f" the model's has {tuple(target.shape)}"
            )
        other = loaded.setdefault(id(target), name)
        if other != name and not torch.equal(checkpoint[other][0].to(tensor), tensor):
            raise ModelDirectoryError(
                f"{file} holds {name!r} with other values than {other!r}, but config.json ties"
                " them; give tie_word_embeddings false there"
            )
        target.copy_(tensor)
        missing.pop(id(target), None)
    return set(missing.values())


def _converted(module: Any, checkpoint: _Checkpoint) -> set[str]:
    """Lets transformers 5 load the checkpoint; returns the same as `_copied`."""
    from transformers import core_model_loading, modeling_utils
    from transformers.conversion_mapping import get_model_conversion_mapping

    how = modeling_utils.LoadStateDictConfig(
        device_map={"": module.device},
        dtype=module.dtype,
        weight_mapping=get_model_conversion_mapping(module),
    )
    tensors = {name: tensor for name, (tensor, _) in checkpoint.items()}
    ties = set(module.all_tied_weights_keys)
    silent = answered(core_model_loading, "tqdm", lambda each, **_: each)
    with exclusive(), quiet_transformers(), silent:
        found, _ = core_model_loading.convert_and_load_state_dict_in_model(module, tensors, how)
        module.tie_weights(missing_keys=found.missing_keys, recompute_mapping=False)
    named = module.named_parameters(remove_duplicate=False)
    present = {id(each) for name, each in named if name not in found.missing_keys}
    missing = {name for name, each in module.named_parameters() if id(each) not in present}
    module._adjust_missing_and_unexpected_keys(found)
    refused = {name for name, *_ in found.mismatched_keys} | set(found.conversion_errors)
    refused |= found.unexpected_keys - dict(module.named_buffers()).keys()
    refused |= ties - set(module.all_tied_weights_keys)
    if refused:
        raise ModelDirectoryError(
            f"{min(refused)!r} of the checkpoint does not fit the model that config.json describes"
            f"{_WAY_OUT}"
        )
    return missing


def _draw_weights(module: torch.nn.Module) -> None:
    """Draws every parameter: uninitialised memory may contain NaN, which breaks routing."""
    devices = {parameter.device for parameter in module.parameters()}
    generators = {device: torch.Generator(device).manual_seed(0) for device in devices}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            safe_point()
            if "norm" in name and name.endswith("weight"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02, generator=generators[parameter.device])
