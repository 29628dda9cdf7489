"""Confines a model without code of its own to the code of installed packages."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final, NoReturn

import torch

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.running.process_settings import Owner, answered

__all__ = ["confined"]

_EXECUTE: Final = "execute a file"

_HUB_KERNELS: Final = "transformers.integrations.hub_kernels"


@contextlib.contextmanager
def confined(directory: ModelDirectory) -> Iterator[None]:
    """While the body builds or runs a model described by a config alone, nothing else is loaded.

    The running thread executes no files, asks no questions on stdin, starts no programs, makes no
    connections, and reads no pickles, configs or weights. Code of the model's own directory is
    trusted and is not confined.

    Raises:
        ConfigError: The model tried to.
    """
    if directory.has_code:
        yield
        return
    with contextlib.ExitStack() as stack:
        for owner, name, deed in _ways_out():
            stack.enter_context(answered(owner, name, _refusal(directory, deed)))
        files = _only_of_packages(_refusal(directory, _EXECUTE))
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
    """Functions by their owner and name, and what a model would do with them.

    transformers loads things in dozens of places, which differ by version; they all end here, in
    functions that are looked up by name at each call.
    """
    from torch.utils import cpp_extension
    from transformers import PretrainedConfig, PreTrainedModel, dynamic_module_utils

    return [
        (builtins, "input", "ask a question"),
        (dynamic_module_utils, "get_cached_module_file", _EXECUTE),
        (cpp_extension, "_get_build_directory", "compile a kernel"),
        (subprocess.Popen, "__init__", "start a program"),
        (socket, "getaddrinfo", "connect to a server"),
        (socket.socket, "connect", "connect to a server"),
        (socket.socket, "connect_ex", "connect to a server"),
        (torch, "load", "load a checkpoint"),
        (PretrainedConfig, "get_config_dict", "load another config"),
        (PreTrainedModel, "from_pretrained", "load another model"),
    ]


def _refusal(directory: ModelDirectory, deed: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ConfigError(
            f"the model in {str(directory.path)!r} would {deed}, which a config cannot ask for;"
            " describe all of the model in the config itself, such as a backbone in"
            " 'backbone_config'"
        )

    return refuse


def _only_of_packages(refuse: Callable[..., NoReturn]) -> Callable[..., ModuleSpec | None]:
    """A replacement of `spec_from_file_location`, with which transformers imports itself again."""
    import transformers

    original = importlib.util.spec_from_file_location
    packages = {Path(str(module.__file__)).parents[1] for module in (torch, transformers)}

    def only_of_packages(
        name: str, location: str | bytes | os.PathLike[str] | None = None, **options: Any
    ) -> ModuleSpec | None:
        if location is not None:
            file = Path(os.fsdecode(location)).resolve()
            if not any(file.is_relative_to(folder.resolve()) for folder in packages):
                refuse()
        return original(name, location, **options)

    return only_of_packages


def _no_kernel(*_: Any, **__: Any) -> NoReturn:
    raise FileNotFoundError("kernels on the Hub are not used")


def _refused_before(error: BaseException | None) -> ConfigError | None:
    """The refusal that led to an error, if any; libraries turn it into errors of their own."""
    while error is not None and not isinstance(error, ConfigError):
        error = error.__cause__ or error.__context__
    return error
