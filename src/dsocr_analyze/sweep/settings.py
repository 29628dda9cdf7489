"""What many pages have in common: the mode, the element type and the kind of attention."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dsocr_analyze.closed_form import dtype_named, element_bytes_of
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import MODES, Mode, notes_of, plan_workload
from dsocr_analyze.workload.grid import TILE

__all__ = ["Setting", "mode_or_sizes", "notes_of_modes"]

_SIZES: Final = re.compile(r"(?:(?P<base>[0-9]{1,40})/)?(?P<image>[0-9]{1,40})")

_CUT_PAGE: Final = (2 * TILE, 3 * TILE)


@dataclass(frozen=True)
class Setting:
    """One way to run the model on any page.

    Attributes:
        mode: Sizes of views, and whether pages are cut.
        dtype: Type of weights and activations, by its full name.
        flash_attention: FlashAttention in place of the decoder's eager attention.
    """

    mode: Mode
    dtype: str = "bfloat16"
    flash_attention: bool = False

    @classmethod
    def named(
        cls, mode: str = "gundam", dtype: str = "bfloat16", *, flash_attention: bool = False
    ) -> Setting:
        """The setting of these names.

        Args:
            mode: A mode, or sizes like `1024/640` (crops) or `640` (does not).
            dtype: Type of weights and activations.
            flash_attention: FlashAttention in place of the decoder's eager attention.

        Raises:
            WorkloadError: The mode is unknown, or its sizes are not possible.
            DeviceError: The type is unknown.
        """
        return cls(mode_or_sizes(mode), dtype_named(dtype), flash_attention)

    @property
    def attention(self) -> str:
        """The kind of attention as a report's metadata names it."""
        return "flash_attention_2" if self.flash_attention else "eager"

    @property
    def element_bytes(self) -> int:
        """Bytes of a weight and a feature."""
        return element_bytes_of(self.dtype)


def notes_of_modes(modes: Iterable[Mode]) -> list[str]:
    """What a reader of figures in these modes should know, one line each."""
    notes: dict[str, None] = {}
    for mode in modes:
        workload = plan_workload(
            page=_CUT_PAGE,
            base_size=mode.base_size,
            image_size=mode.image_size,
            crop_mode=mode.crop_mode,
        )
        notes |= dict.fromkeys(notes_of(workload))
    return list(notes)


def mode_or_sizes(text: str) -> Mode:
    """The mode of that name, or an unnamed one of those sizes.

    Args:
        text: A name of `MODES`, `BASE/IMAGE` (pixels a side; crops) or `IMAGE` (does not).

    Raises:
        WorkloadError: The text is neither, or the sizes are not possible.
    """
    if text in MODES:
        return MODES[text]
    sizes = _SIZES.fullmatch(text)
    if sizes is None:
        raise WorkloadError(
            f"no mode {text!r}; give one of {', '.join(MODES)}, or sizes like 1024/640 (crops) "
            "or 640 (does not)"
        )
    image = int(sizes["image"])
    base = int(sizes["base"] or image)
    mode = Mode(text, base, image, crop_mode=sizes["base"] is not None)
    try:
        plan_workload(page=(1, 1), base_size=base, image_size=image)
    except WorkloadError as error:
        raise WorkloadError(f"mode {text!r} is not possible: {error}") from error
    return mode
