"""The model architectures that this program knows, one room each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.deepseek_ocr import DEEPSEEK_OCR
from dsocr_analyze.architectures.deepseek_ocr_2 import DEEPSEEK_OCR_2
from dsocr_analyze.architectures.planning import ImagePath, PageSize, planned
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


def plan_workload(
    *,
    architecture: str = DEFAULT.name,
    page: PageSize | None = None,
    image: ImagePath | None = None,
    mode: str | None = None,
    base_size: int | None = None,
    image_size: int | None = None,
    crop_mode: bool | None = None,
    text_tokens: int | None = None,
    seq_len: int | None = None,
    batch_size: int | None = None,
    max_new_tokens: int | None = None,
    prompt_pages: int | None = None,
) -> Workload:
    """Works out what a model's own `infer()` makes of one page.

    Args:
        architecture: Name of the model's architecture.
        page: A paper like `"a4"` or `"a4@200"`, `"1240x1754"`, or (width, height) in pixels.
            Default: A4 at 150 dpi.
        image: An image file with the page, in place of `page`; of several pages the first.
        mode: Name of a mode like `"gundam"`, in place of the three sizes that follow.
        base_size: Pixels a side of the global view in crop mode. Default: the architecture's.
        image_size: Pixels a side of a local view in crop mode, of the only view otherwise.
            Default: the architecture's.
        crop_mode: Whether a page larger than one tile is cut. Default: yes, but not where
            several pages share a prompt.
        text_tokens: Tokens besides the visual ones, BOS included. Default: those of the
            architecture's usual prompt.
        seq_len: Tokens of the whole prompt, in place of `text_tokens`.
        batch_size: Prompts, all alike. Default: 1.
        max_new_tokens: Tokens generated; the prefill pass yields the first. Default: 1024.
        prompt_pages: Pages in one prompt, all alike, of a model that takes several. Default: 1.

    Raises:
        PageError: The page's size is not possible, or cannot be had.
        WorkloadError: A size, mode or count is not possible, or two arguments contradict.
    """
    workload = planned(
        architecture_named(architecture),
        page=page, image=image, mode=mode, base_size=base_size, image_size=image_size,
        crop_mode=crop_mode, text_tokens=text_tokens, seq_len=seq_len, batch_size=batch_size,
        max_new_tokens=max_new_tokens, prompt_pages=prompt_pages,
    )  # fmt: skip
    assert isinstance(workload, Workload), "every architecture with a name reads pages"
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
