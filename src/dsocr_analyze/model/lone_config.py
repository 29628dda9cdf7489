"""A config without code: it must describe the whole model, and may not name what to load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from dsocr_analyze.architectures.config_keys import Config, JsonValue
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.escaping import shown

__all__ = ["check_loads_nothing"]

_BACKBONE: Final = "describe the backbone in 'backbone_config', and set 'backbone' to null"
_FALSE: Final = "set it to false, and describe the backbone in 'backbone_config'"

_LOADED: Final = {
    "auto_map": "leave it out: only code in the model's own directory runs, once it is trusted",
    "backbone": _BACKBONE,
    "backbone_kwargs": "set it to null, and describe the backbone in 'backbone_config'",
    "checkpoint_path": "leave it out: a config describes a model without its weights",
    "use_pretrained_backbone": _FALSE,
    "use_timm_backbone": _FALSE,
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


def check_loads_nothing(config: Config) -> None:
    """Checks that no key of a config, at any depth, would make transformers load something.

    Keys with empty values (null, false, "") ask for nothing.

    Raises:
        ConfigError: There is such a key.
    """
    for path, key, value, owner in _entries(config):
        advice = _LOADED.get(key) if value else None
        mark, otherwise = _LOADED_IF.get(key, ("", ""))
        if mark and isinstance(value, str) and mark in value:
            advice = otherwise
        if advice and not (key == "backbone" and _names_no_file(value, owner, path, config)):
            raise ConfigError(
                f"config.json has {path!r} {shown(value)}, which would be loaded by its name;"
                f" {advice}"
            )


def _names_no_file(backbone: JsonValue, owner: Config, path: str, config: Config) -> bool:
    """Whether a backbone is just one of timm's own models, or its name is never looked at."""
    is_plain = isinstance(backbone, str) and not set(backbone) & set(":/\\")
    # MaskFormer builds a DETR decoder without the backbone that published configs name.
    is_ignored = (config.get("model_type"), path) == ("maskformer", "decoder_config.backbone")
    return is_plain and (owner.get("model_type") == "timm_backbone" or is_ignored)


def _entries(config: Config) -> Iterator[tuple[str, str, JsonValue, Config]]:
    """Path, key, value and object of every entry at any depth, however deeply a file nests them."""
    waiting: list[tuple[str, JsonValue]] = [("", config)]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, Mapping):
            below = f"{path}." if path else ""
            for key, value in part.items():
                yield f"{below}{key}", key, value, part
                waiting.append((f"{below}{key}", value))
        elif isinstance(part, list | tuple):
            waiting.extend((f"{path}[{number}]", each) for number, each in enumerate(part))
