"""The values of a model's parameters: a checkpoint's, or random ones that affect no count."""

from __future__ import annotations

import torch

from dsocr_analyze.errors import ModelDirectoryError
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.model.directory import ModelDirectory

__all__ = ["draw_weights", "load_weights"]


def load_weights(module: torch.nn.Module, directory: ModelDirectory) -> None:
    """Copies the directory's safetensors into `module`; every parameter must be among them.

    Raises:
        ModelDirectoryError: A file cannot be read, or its tensors differ from the model's.
    """
    from safetensors import SafetensorError, safe_open

    targets = dict(module.state_dict(keep_vars=True))
    # Each parameter once: the file may hold a shared one under either name.
    missing = {id(parameter): name for name, parameter in module.named_parameters()}
    try:
        for file in directory.weight_files():
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a dict: it is not iterable
                    safe_point()
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
