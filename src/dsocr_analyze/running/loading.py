"""Builds a model from a directory, in the same way for a vendor checkout and for the reference.

The directory's Python files are executed on `trust_remote_code` terms; `auto_map` in config.json
names the config and model classes, as for `transformers.AutoModel`.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from typing import Any, Final

import torch

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.forking import importing
from dsocr_analyze.model.directory import ModelDirectory, read_config
from dsocr_analyze.model.trust import require_trust
from dsocr_analyze.model.versions import require_transformers
from dsocr_analyze.running.building import building
from dsocr_analyze.running.confinement import confined
from dsocr_analyze.running.described_model import (
    FLASH_ATTENTION,
    check_attention,
    check_stages,
    config_and_class,
    use_attention,
)
from dsocr_analyze.running.failures import blamed_on
from dsocr_analyze.running.known_values import KnownValues
from dsocr_analyze.running.source_package import import_file, importable
from dsocr_analyze.running.unused_imports import without_unused_imports
from dsocr_analyze.running.weights import draw_weights, load_weights

__all__ = ["LoadedModel", "load_model"]

_WINDOW: Final = "_ring_window"
"""Attribute of the config where Unlimited-OCR's code looks for its window; `infer()` sets it.

It is not a key of config.json: without `infer()` there is no window.
"""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and where it came from."""

    module: torch.nn.Module
    directory: ModelDirectory
    device: torch.device
    dtype: torch.dtype
    attention: str
    has_weights: bool
    """Whether the parameters hold the checkpoint's values (never on `meta`)."""

    @property
    def sliding_window(self) -> int | None:
        """Generated tokens that the decoder keeps in its cache; None if it keeps all."""
        window: int | None = getattr(getattr(self.module, "config", None), _WINDOW, None)
        return window


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
    """Builds the directory's model on `device`, with its weights if it has any.

    Only one model is built or run at a time; this waits for other threads.

    Args:
        directory: A directory with `config.json` (with `auto_map`) and the Python files it names.
        device: `meta` builds the network without values. Elsewhere safetensors in the directory
            are loaded; without any, weights are drawn from a seeded normal distribution.
        dtype: Type of the parameters.
        flash_attention: Build the decoder with FlashAttention-2 instead of eager attention.
        sliding_window: Generated tokens that the decoder keeps in its cache, at least 1, if its
            code supports such a window; None turns it off, as in a bare forward pass.
        random_weights: Draw the weights even if the directory has some.
        trust_remote_code: The user agreed to execute the directory's Python files.

    Raises:
        TrustError: The user has not agreed to execute the files.
        ModelCodeError: The files raised, or the installed transformers cannot run them.
        ConfigError: `auto_map` is missing or names something missing, or the window is below 1.
        ModelDirectoryError: A file named in `auto_map` is missing, or the weights do not fit.
        DeviceError: The device is out of memory.
    """
    if sliding_window is not None and sliding_window < 1:
        raise ConfigError(
            f"a sliding window of {sliding_window} generated tokens is too small; give 1 or"
            " more, or none to keep them all"
        )
    if directory.has_code and not trust_remote_code:
        require_trust(directory)
    if directory.described is None:
        require_transformers(directory)
    attention = FLASH_ATTENTION if flash_attention else "eager"
    if directory.described is not None and not flash_attention:
        attention = directory.described.attention
    with without_unused_imports():
        model = _loaded(directory, device, dtype, attention, random_weights)
    if sliding_window is not None:
        setattr(model.module.config, _WINDOW, sliding_window)
    return model


def _loaded(
    directory: ModelDirectory,
    device: torch.device,
    dtype: torch.dtype,
    attention: str,
    random_weights: bool,
) -> LoadedModel:
    with importing():  # transformers, and the model's files
        from transformers import GenerationConfig

        module = _built(directory, device, dtype, attention)
    if directory.described is not None:
        check_stages(module, directory.described)
        if not directory.has_code:
            check_attention(module, attention)
        how = directory.path / "generation_config.json"  # of which `generate` takes its cache
        if how.is_file():
            read_config(how)  # a JSON object, and not too large
            with blamed_on(directory, f"has a {how.name} that transformers refuses"):
                found = GenerationConfig.from_pretrained(directory.path, local_files_only=True)
            vars(module)["generation_config"] = found
    module.eval()
    is_real = device.type != "meta"
    has_weights = is_real and not random_weights and bool(directory.weight_files())
    if has_weights:
        load_weights(module, directory)
    elif is_real:
        draw_weights(module)
    return LoadedModel(module, directory, device, dtype, attention, has_weights)


def _built(
    directory: ModelDirectory, device: torch.device, dtype: torch.dtype, attention: str
) -> torch.nn.Module:
    """The model without values."""
    if directory.has_code:
        return _of_its_code(directory, device, dtype, attention)
    with (
        blamed_on(directory, "could not be built", str(device)),
        building(device, dtype),
        # Constructors read values, too, such as rates of dropping paths from a range.
        KnownValues() if device.type == "meta" else contextlib.nullcontext(),
        confined(directory),
    ):
        config, model_class = config_and_class(directory)
        use_attention(config, attention)
        module: torch.nn.Module = model_class(config)
        return module


def _of_its_code(
    directory: ModelDirectory, device: torch.device, dtype: torch.dtype, attention: str
) -> torch.nn.Module:
    """Builds the model from the classes named in `auto_map`."""
    with importable(directory) as package:
        config_class = _class_in(directory, package, "AutoConfig")
        model_class = _class_in(directory, package, directory.model_role)
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
    """The class that `auto_map` names for a role."""
    file, name = directory.class_in(role)
    found = getattr(import_file(directory, package, file), name, None)
    if not isinstance(found, type):
        raise ConfigError(f"{file} of {str(directory.path)!r} has no class {name!r}")
    return found
