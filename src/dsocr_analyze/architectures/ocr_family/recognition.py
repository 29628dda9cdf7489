"""Recognises model directories of the family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["recognizes"]


def recognizes(model_class: str, model_types: tuple[str, ...], config: Mapping[str, Any]) -> bool:
    """Whether a parsed `config.json` belongs to a relative.

    Args:
        model_class: The relative's class of the whole model, as named in `auto_map`.
        model_types: Its model types, used if no class is named; relatives share some.
        config: The file's top-level object.
    """
    auto_map = config.get("auto_map")
    named = auto_map.get("AutoModel") if isinstance(auto_map, Mapping) else None
    if isinstance(named, str):
        return named.rpartition(".")[2] == model_class
    classes = config.get("architectures")
    if isinstance(classes, list) and classes:
        return model_class in classes
    return config.get("model_type") in model_types
