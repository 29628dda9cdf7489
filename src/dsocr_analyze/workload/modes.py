"""The modes of the DeepSeek-OCR paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsocr_analyze.errors import WorkloadError

__all__ = ["MODES", "Mode", "mode_named"]


@dataclass(frozen=True, slots=True)
class Mode:
    """The three arguments of the vendor's `infer()` that one name stands for.

    Attributes:
        name: Its name.
        base_size: Pixels a side of the global view in crop mode.
        image_size: Pixels a side of a local view in crop mode, of the only view otherwise.
        crop_mode: Whether the page is cut into local views.
    """

    name: str
    base_size: int
    image_size: int
    crop_mode: bool


MODES: Final[dict[str, Mode]] = {
    mode.name: mode
    for mode in (
        Mode("tiny", 512, 512, crop_mode=False),
        Mode("small", 640, 640, crop_mode=False),
        Mode("base", 1024, 1024, crop_mode=False),
        Mode("large", 1280, 1280, crop_mode=False),
        Mode("gundam", 1024, 640, crop_mode=True),
        Mode("gundam-m", 1280, 1024, crop_mode=True),
    )
}


def mode_named(name: str) -> Mode:
    """Mode of that exact name.

    Raises:
        WorkloadError: There is none.
    """
    try:
        return MODES[name]
    except KeyError:
        raise WorkloadError(f"no mode {name!r}; give one of {', '.join(MODES)}") from None
