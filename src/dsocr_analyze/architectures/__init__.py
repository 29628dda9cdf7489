"""The model architectures that this program knows, one room each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.deepseek_ocr import DEEPSEEK_OCR
from dsocr_analyze.errors import ConfigError

__all__ = ["ARCHITECTURES", "DEFAULT", "architecture_of", "recognized_architecture"]

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    architecture.name: architecture for architecture in (DEEPSEEK_OCR,)
}

DEFAULT: Final = DEEPSEEK_OCR
"""What runs where nobody names a model."""


def recognized_architecture(config: Mapping[str, Any]) -> Architecture | None:
    """The architecture that a parsed `config.json` belongs to; None where none recognises it."""
    known = ARCHITECTURES.values()
    return next((each for each in known if each.recognizes(config)), None)


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a parsed `config.json` belongs to.

    Raises:
        ConfigError: None of them recognises it.
    """
    architecture = recognized_architecture(config)
    if architecture is not None:
        return architecture
    auto_map = config.get("auto_map")
    named = auto_map.get("AutoModel") if isinstance(auto_map, Mapping) else None
    raise ConfigError(
        f"config.json describes no known architecture: its AutoModel is {named!r}, its model_type"
        f" {config.get('model_type')!r}; known are {', '.join(ARCHITECTURES)}"
    )
