"""What many workloads have in common: mode, data type and kind of attention."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.analytic import attention_name
from dsocr_analyze.dtypes import Dtype, dtype_named
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.names import did_you_mean, in_any_case
from dsocr_analyze.workload import Mode
from dsocr_analyze.workload.page import LARGEST_SIDE

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.workload import AnyWorkload

__all__ = [
    "Setting",
    "is_mode_or_sizes",
    "mode_or_sizes",
    "notes_of_modes",
    "setting_columns",
    "settings_of",
    "warnings_of_modes",
]

_MOST_WARNINGS: Final = 6

_SIZES: Final = re.compile(r"(?:(?P<base>[0-9]{1,40})/)?(?P<image>[0-9]{1,40})")


@dataclass(frozen=True)
class Setting:
    """One way to run a model on any page.

    Attributes:
        mode: Sizes of views, and whether pages are cut.
        dtype: Data type of weights and activations.
        flash_attention: Whether FlashAttention replaces the decoder's eager attention.
        sliding_window: Whether decode steps use the model's sliding window, if it has one.
    """

    mode: Mode
    dtype: Dtype
    flash_attention: bool = False
    sliding_window: bool = True

    @classmethod
    def named(
        cls,
        architecture: Architecture,
        mode: str | None = None,
        dtype: str = "bfloat16",
        *,
        flash_attention: bool = False,
    ) -> Setting:
        """The setting with these names.

        Args:
            architecture: The architecture whose modes these are.
            mode: A mode, or sizes like `1024/640` (crops) or `640` (no crops); by default the
                architecture's default mode.
            dtype: Data type of weights and activations.
            flash_attention: Whether FlashAttention replaces the decoder's eager attention.

        Raises:
            WorkloadError: The mode is unknown, or its sizes are invalid.
            DeviceError: The type is unknown.
        """
        chosen = mode_or_sizes(architecture, mode or architecture.default_mode)
        return cls(chosen, dtype_named(dtype), flash_attention)

    @property
    def attention(self) -> str:
        """The kind of attention, named as in a report's metadata."""
        return attention_name(flash_attention=self.flash_attention)

    @property
    def attention_label(self) -> str:
        """The kind of attention for readers, noting a disabled sliding window."""
        return self.attention if self.sliding_window else f"{self.attention}, no window"


def settings_of(
    dtypes: Iterable[Dtype],
    attentions: Iterable[bool],
    modes: Iterable[Mode],
    windows: Iterable[bool] = (True,),
) -> list[Setting]:
    """Every combination; the mode varies fastest.

    Args:
        dtypes: Data types of weights and activations.
        attentions: Whether attention is FlashAttention.
        modes: Modes.
        windows: Whether the sliding window is on.
    """
    combinations = itertools.product(dtypes, attentions, windows, modes)
    return [Setting(mode, dtype, flash, window) for dtype, flash, window, mode in combinations]


def setting_columns(setting: Setting, n: int, has_window: bool | None) -> dict[str, Any]:
    """The setting as Arrow columns by name, `[n]` each.

    Args:
        setting: The setting.
        n: Number of rows.
        has_window: Whether decode steps use a sliding window; None, which omits the column, if the
            model has none.
    """
    import pyarrow as pa

    mode = setting.mode
    window = {} if has_window is None else {"sliding_window": pa.repeat(has_window, n)}
    return {
        "mode": pa.repeat(mode.name, n),
        "base_size": pa.repeat(pa.scalar(mode.base_size, pa.int64()), n),
        "image_size": pa.repeat(pa.scalar(mode.image_size, pa.int64()), n),
        "crop_mode": pa.repeat(mode.crop_mode, n),
        "dtype": pa.repeat(setting.dtype.name, n),
        "attention": pa.repeat(setting.attention, n),
        **window,
    }


def notes_of_modes(architecture: Architecture, modes: Iterable[Mode]) -> list[str]:
    """Caveats about figures in these modes, one line each."""
    notes: dict[str, None] = {}
    for mode in modes:
        notes |= dict.fromkeys(architecture.notes_of(_largest_page(architecture, mode)))
    return list(notes)


def warnings_of_modes(architecture: Architecture, modes: Iterable[Mode]) -> list[str]:
    """What is odd about the sizes of these modes, one line each; only the first few are listed."""
    warnings = [
        f"mode {mode.name}: {warning}"
        for mode in dict.fromkeys(modes)
        for warning in architecture.warnings_of(_largest_page(architecture, mode))
    ]
    shown, more = warnings[:_MOST_WARNINGS], len(warnings) - _MOST_WARNINGS
    return [*shown, f"{more:,} more warnings about the sizes of modes"] if more > 0 else shown


def _largest_page(architecture: Architecture, mode: Mode) -> AnyWorkload:
    """A page that is cut if the mode cuts pages at all."""
    planned: AnyWorkload = architecture.plan(
        page=(LARGEST_SIDE, LARGEST_SIDE),
        base_size=mode.base_size,
        image_size=mode.image_size,
        crop_mode=mode.crop_mode,
    )
    return planned


def is_mode_or_sizes(architecture: Architecture, text: str) -> bool:
    """Whether the text is a mode's name or looks like sizes, valid or not."""
    is_named = in_any_case(text, architecture.modes) is not None
    return is_named or _SIZES.fullmatch(text) is not None


def mode_or_sizes(architecture: Architecture, text: str) -> Mode:
    """The mode with that name, ignoring case, or an unnamed mode with those sizes.

    Args:
        architecture: The architecture whose modes these are.
        text: A mode's name, `BASE/IMAGE` (sides in pixels; crops) or `IMAGE` (no crops).

    Raises:
        WorkloadError: The text is neither, or the sizes are invalid.
    """
    modes = architecture.modes
    named = in_any_case(text, modes)
    if named is not None:
        return modes[named]
    sizes = _SIZES.fullmatch(text)
    if sizes is None:
        raise WorkloadError(
            f"no mode {text!r}; {did_you_mean(text, modes)}give one of {', '.join(modes)}, or sizes"
            " like 1024/640 (crops) or 640 (no crops)"
        )
    image = int(sizes["image"])
    base = int(sizes["base"] or image)
    mode = Mode(text, base, image, crop_mode=sizes["base"] is not None)
    try:
        architecture.plan(page=(1, 1), base_size=base, image_size=image)
    except WorkloadError as error:
        raise WorkloadError(f"mode {text!r} is invalid: {error}") from error
    return mode
