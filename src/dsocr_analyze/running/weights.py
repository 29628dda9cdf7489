"""The values of a model's parameters: a checkpoint's, or random ones that affect no count."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import torch

from dsocr_analyze.errors import ModelDirectoryError
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.running.process_settings import answered, exclusive, quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["draw_weights", "load_weights"]

_Checkpoint: TypeAlias = dict[str, tuple[torch.Tensor, str]]
"""Tensors, and the names of their files, by name."""

_WAY_OUT: Final = (
    "; save the model with save_pretrained() of the installed transformers, or give its"
    " config.json without a checkpoint: random weights change no count"
)


def load_weights(module: torch.nn.Module, directory: ModelDirectory) -> None:
    """Loads the directory's safetensors into `module`; every parameter must be among them.

    Their names are those of the module or, with transformers 5, any that its own loading renames,
    merges or splits.

    Raises:
        ModelDirectoryError: A file cannot be read, or its tensors differ from the model's.
    """
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
            owner: PreTrainedModel = module
            owner._init_weights(module.get_submodule(name.rpartition(".")[0]))
            missing.remove(name)
    if missing:
        raise ModelDirectoryError(
            f"the weights in {str(directory.path)!r} lack {len(missing)} parameters,"
            f" {min(missing)!r} among them{_WAY_OUT}"
        )


def _read(directory: ModelDirectory) -> _Checkpoint:
    """The checkpoint, mapped into memory: values are read only where they are copied."""
    from safetensors import SafetensorError, safe_open

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
    """Copies tensors by the model's own names, and returns the parameters that are missing."""
    # Each parameter once: the file may hold a shared one under either name.
    missing = {id(parameter): name for name, parameter in module.named_parameters()}
    # As for `from_pretrained`, buffers that are not saved any more.
    left_out = getattr(module, "_keys_to_ignore_on_load_unexpected", None) or []
    left_out = re.compile("|".join([*left_out, r"rotary_emb\.inv_freq$"]))
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


def _converted(module: PreTrainedModel, checkpoint: _Checkpoint) -> set[str]:
    """Lets transformers 5 load the checkpoint as its `from_pretrained` does; returns the same."""
    from transformers import core_model_loading
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.modeling_utils import LoadStateDictConfig

    how = LoadStateDictConfig(
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


def draw_weights(module: torch.nn.Module) -> None:
    """Draws every parameter: uninitialised memory may contain NaN, which breaks routing."""
    generators = {
        device: torch.Generator(device).manual_seed(0)
        for device in {parameter.device for parameter in module.parameters()}
    }
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            safe_point()
            if "norm" in name and name.endswith("weight"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02, generator=generators[parameter.device])
