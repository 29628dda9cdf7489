"""A config without code: it must describe the whole model, and may not name what to load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dsocr_analyze.architectures.config_keys import shown
from dsocr_analyze.errors import ConfigError

__all__ = ["check_loads_nothing"]

_BACKBONE: Final = "leave it out and describe the backbone in 'backbone_config'"

_LOADED: Final = {
    "auto_map": "leave it out: only code in the model's own directory runs, once it is trusted",
    "backbone": _BACKBONE,
    "backbone_kwargs": _BACKBONE,
    "checkpoint_path": "leave it out: a config describes a model without its weights",
    "use_pretrained_backbone": _BACKBONE,
    "use_timm_backbone": _BACKBONE,
}
"""Keys whose values classes of transformers (or timm) load by name, and what to do instead."""

_KERNEL: Final = "give the name of an implementation in transformers, such as 'eager'"

_LOADED_IF: Final = {
    "_attn_implementation": ("/", _KERNEL),
    "attn_implementation": ("/", _KERNEL),
    "experts_implementation": ("/", _KERNEL),
    "architecture": (":", "give the name of one of timm's own models"),
}
"""Keys whose values are loaded if they contain a character, and what to do instead.

Kernels on the Hub are named `owner/kernel`, and models outside timm `hf-hub:owner/model`.
"""


def check_loads_nothing(config: Mapping[str, Any]) -> None:
    """Checks that no key of a config, at any depth, would make transformers load something.

    Keys with empty values (null, false, "") ask for nothing.

    Raises:
        ConfigError: There is such a key.
    """
    for path, key, value in _entries(config):
        advice = _LOADED.get(key) if value else None
        mark, otherwise = _LOADED_IF.get(key, ("", ""))
        if mark and isinstance(value, str) and mark in value:
            advice = otherwise
        if advice:
            raise ConfigError(
                f"config.json has {path!r} {shown(value)}, which would be loaded by its name;"
                f" {advice}"
            )


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Path, key and value of every entry at any depth, however deeply a file nests them."""
    waiting: list[tuple[str, Any]] = [("", config)]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, Mapping):
            below = f"{path}." if path else ""
            for key, value in part.items():
                yield f"{below}{key}", key, value
                waiting.append((f"{below}{key}", value))
        elif isinstance(part, list | tuple):
            waiting.extend((f"{path}[{number}]", each) for number, each in enumerate(part))
