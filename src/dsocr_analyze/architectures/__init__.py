"""The model architectures that this program knows, one room each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.deepseek_ocr import DEEPSEEK_OCR
from dsocr_analyze.architectures.deepseek_ocr_2 import DEEPSEEK_OCR_2
from dsocr_analyze.architectures.unlimited_ocr import UNLIMITED_OCR
from dsocr_analyze.errors import ConfigError, WorkloadError
from dsocr_analyze.names import did_you_mean, in_any_case
from dsocr_analyze.workload import Workload

__all__ = [
    "ARCHITECTURES",
    "DEFAULT",
    "architecture_named",
    "architecture_of",
    "described_architecture",
    "foreign_model",
    "plan_workload",
    "recognized_architecture",
]

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    architecture.name: architecture
    for architecture in (DEEPSEEK_OCR, DEEPSEEK_OCR_2, UNLIMITED_OCR)
}

DEFAULT: Final = DEEPSEEK_OCR
"""What runs where nobody names a model."""


def architecture_named(name: str) -> Architecture:
    """The architecture of a name, in any case.

    Raises:
        WorkloadError: There is none.
    """
    found = in_any_case(name, ARCHITECTURES)
    if found is None:
        near = did_you_mean(name, ARCHITECTURES)
        raise WorkloadError(
            f"architecture {name!r} is unknown; {near}give {', '.join(ARCHITECTURES)}",
            arguments=["architecture"],
        )
    return ARCHITECTURES[found]


def plan_workload(*, architecture: str = DEFAULT.name, **arguments: Any) -> Workload:
    """Works out what a model's own `infer()` makes of one page.

    Args:
        architecture: Name of the model's architecture.
        **arguments: `page` in pixels (width, height); `base_size`, `image_size` and `crop_mode` of
            the model's `infer()`; `text_tokens` (BOS included) or `seq_len`; `batch_size`;
            `max_new_tokens`. Only the page must be given.

    Raises:
        PageError: The page's size is not possible.
        WorkloadError: A size or count is not possible, or the lengths contradict each other.
    """
    workload: Workload = architecture_named(architecture).plan(**arguments)
    return workload


def described_architecture(path: Path) -> Architecture:
    """The architecture that a stages file describes; errors as of `any_model`."""
    # Imported here: few runs need it, and it takes a part of the time of those that don't.
    from dsocr_analyze.architectures import any_model

    return any_model.described_architecture(path)


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
    known = ", ".join(ARCHITECTURES)
    auto_map = config.get("auto_map")
    if isinstance(auto_map, Mapping):
        which = f"its AutoModel is {auto_map.get('AutoModel')!r}, its model_type"
        which += f" {config.get('model_type')!r}"
    else:
        which = foreign_model(config) or f"its model_type is {config.get('model_type')!r}"
    raise ConfigError(
        f"config.json describes no known architecture: {which}; known are {known}; to trace"
        " another, describe it with stages=FILE (docs/any-model.md)",
        arguments=["stages"],
    )


def foreign_model(config: Mapping[str, Any]) -> str | None:
    """What a config says of a model of transformers' own code: `it is a llama model (CLASS)`.

    None where it says nothing of the kind, or is one of these architectures' own.
    """
    model_type, classes = config.get("model_type"), config.get("architectures")
    if not isinstance(model_type, str) or not isinstance(classes, list) or not classes:
        return None
    if recognized_architecture(config) is not None or "vision_config" in config:
        return None
    return f"it is a {model_type} model ({classes[0]})"
