"""Builds a model with transformers' own code and nothing else."""

import builtins
import contextlib
import copy
import difflib
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
import transformers

from dsocr_analyze.architectures import recognized_architecture
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.escaping import shown
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.process_settings import Owner, answered

_MOST_LAYERS: Final = 256
"""More than published models have (Llama 3.1 405B: 126)."""

FLASH_ATTENTION: Final = "flash_attention_2"
_SUPPORT: Final[Mapping[str, tuple[str, ...]]] = {
    "sdpa": ("_supports_sdpa",),
    FLASH_ATTENTION: ("_supports_flash_attn", "_supports_flash_attn_2"),
}
"""What model classes of transformers 5 and 4 say of it."""

_MOST_EXPERTS: Final = 1024
"""Per layer; more than published models have (Qwen3-Next: 512)."""


def config_and_class(
    directory: ModelDirectory,
) -> tuple[transformers.PretrainedConfig, type[torch.nn.Module]]:
    """The config object and the model class for a directory without code.

    Raises ConfigError if the installed transformers does not know one of them.
    """
    path, values = str(directory.path), copy.deepcopy(directory.config)
    here = f"transformers {transformers.__version__}"
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise ConfigError(
            f"config.json of {path!r} has model_type {model_type!r} and no 'auto_map' for its"
            f" own code; give a type that {here} knows, or install a version that knows this one"
        )
    # A known model's files may name a class that transformers spells otherwise.
    known = directory.of_transformers, recognized_architecture(directory.config)
    name = next((each.model_class for each in known if each and each.model_class), None)
    if name is None:
        names = directory.config.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise ConfigError(
                f"config.json of {path!r} names no class in 'architectures' (it is {names!r});"
                " give 'class' in the stages file"
            )
        name = names[0]
    model_class = getattr(transformers, name, None)
    if not isinstance(model_class, type) or not issubclass(
        model_class, transformers.PreTrainedModel
    ):
        raise ConfigError(
            f"{here} has no model class {name!r}, named in config.json of {path!r} or in the stages"
            " file; give one of its classes, such as 'LlamaForCausalLM'"
        )
    config = transformers.CONFIG_MAPPING[model_type].from_dict(values)
    _refuse_endless_stacks(config, path)
    return config, model_class


def _refuse_endless_stacks(config: transformers.PretrainedConfig, path: str) -> None:
    """Refuses more layers or experts than can be traced, in nested configs too."""
    layers = getattr(config, "num_hidden_layers", None)  # by whatever name the model has for it
    if isinstance(layers, int) and layers > _MOST_LAYERS:
        raise ConfigError(
            f"config.json of {path!r} has {shown(layers)} layers; give at most"
            f" {_MOST_LAYERS}, since each of them is traced"
        )
    for name, part in vars(config).items():
        counts = "experts" in name and "size" not in name  # not how wide they are
        if counts and isinstance(part, int) and part > _MOST_EXPERTS:
            raise ConfigError(
                f"config.json of {path!r} has {name} {shown(part)}; give at most {_MOST_EXPERTS},"
                " since each expert is traced"
            )
        if isinstance(part, transformers.PretrainedConfig):
            _refuse_endless_stacks(part, path)


def use_attention(config: transformers.PretrainedConfig, attention: str) -> None:
    """Sets the attention of a config and of its nested configs."""
    config._attn_implementation = attention
    for part in list(vars(config).values()):
        if isinstance(part, transformers.PretrainedConfig):
            use_attention(part, attention)


def check_attention(module: torch.nn.Module, attention: str) -> None:
    """Raises ConfigError if transformers has no such attention, or lacks its package."""
    is_flash = attention == FLASH_ATTENTION
    way_out = "give flash_attention=False" if is_flash else 'give attention = "eager"'
    supports = _SUPPORT.get(attention, ("config",))
    lacking = [
        type(each).__name__
        for each in module.modules()
        if isinstance(each, transformers.PreTrainedModel)
        and not any(getattr(each, flag, 0) for flag in supports)
    ]
    if lacking:
        said = f"{lacking[0]} of the installed transformers has no {attention}"
    elif is_flash and not transformers.utils.is_flash_attn_2_available():
        said = f"transformers' own code needs the package flash-attn for {attention}"
    else:
        return
    raise ConfigError(f"{said}; {way_out}", arguments=["flash_attention"])


def check_stages(module: torch.nn.Module, architecture: Architecture) -> None:
    """Raises ConfigError if a stage's prefix matches no path in the model."""
    paths = {name for name, _ in module.named_modules(remove_duplicate=False)}
    paths |= {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for stage in architecture.stages:
        for prefix in stage.prefixes:
            if prefix not in paths:
                alike = difflib.get_close_matches(prefix, paths, 3, 0.5)
                raise ConfigError(
                    f"stage {stage.name!r} of {architecture.name!r} has the prefix {prefix!r}, but"
                    f" {type(module).__name__} has nothing at that path; give a path such as"
                    f" {', '.join(alike or dict(module.named_children()))}"
                )


# --- nothing but the code of installed packages -------------------------------------------------

_EXECUTE: Final = "execute a file"

_HUB_KERNELS: Final = "transformers.integrations.hub_kernels"


@contextlib.contextmanager
def confined(directory: ModelDirectory) -> Iterator[None]:
    """The body builds or runs a model; one described by a config alone loads nothing else.

    The thread that executes files, asks on stdin, starts programs, makes connections, or reads
    pickles, configs or weights gets a ConfigError.
    """
    if directory.has_code:
        yield
        return
    with contextlib.ExitStack() as stack:
        for owner, name, deed in _ways_out():
            stack.enter_context(answered(owner, name, partial(_refuse, directory, deed)))
        files = partial(_spec_in_package, directory, importlib.util.spec_from_file_location)
        stack.enter_context(answered(importlib.util, "spec_from_file_location", files))
        if _HUB_KERNELS in sys.modules:  # transformers 5, which does without them
            stack.enter_context(answered(sys.modules[_HUB_KERNELS], "get_kernel_hub", _no_kernel))
        try:
            yield
        except Exception as error:
            refused = _refused_before(error)
            if refused is None:
                raise
            raise refused from None


def _ways_out() -> list[tuple[Owner, str, str]]:
    """Owner and name of functions in which all loading ends, and what a model would do there."""
    from torch.utils import cpp_extension

    return [
        (builtins, "input", "ask a question"),
        (transformers.dynamic_module_utils, "get_cached_module_file", _EXECUTE),
        (cpp_extension, "_get_build_directory", "compile a kernel"),
        (subprocess.Popen, "__init__", "start a program"),
        (socket, "getaddrinfo", "connect to a server"),
        (socket.socket, "connect", "connect to a server"),
        (socket.socket, "connect_ex", "connect to a server"),
        (torch, "load", "load a checkpoint"),
        (transformers.PretrainedConfig, "get_config_dict", "load another config"),
        (transformers.PreTrainedModel, "from_pretrained", "load another model"),
    ]


def _refuse(directory: ModelDirectory, deed: str, *_: Any, **__: Any) -> NoReturn:
    raise ConfigError(
        f"the model in {str(directory.path)!r} would {deed}, which a config cannot ask for;"
        " describe all of the model in the config itself, such as a backbone in 'backbone_config'"
    )


def _spec_in_package(
    directory: ModelDirectory,
    original: Callable[..., ModuleSpec | None],
    name: str,
    location: str | bytes | os.PathLike[str] | None = None,
    **options: Any,
) -> ModuleSpec | None:
    """`spec_from_file_location` of installed packages, with which transformers imports itself."""
    packages = {Path(str(module.__file__)).parents[1] for module in (torch, transformers)}
    if location is not None:
        file = Path(os.fsdecode(location)).resolve()
        if not any(file.is_relative_to(folder.resolve()) for folder in packages):
            _refuse(directory, _EXECUTE)
    return original(name, location, **options)


def _no_kernel(*_: Any, **__: Any) -> NoReturn:
    raise FileNotFoundError("kernels on the Hub are not used")


def _refused_before(error: BaseException | None) -> ConfigError | None:
    """The refusal that led to an error: libraries turn it into errors of their own."""
    while error is not None and not isinstance(error, ConfigError):
        error = error.__cause__ or error.__context__
    return error
