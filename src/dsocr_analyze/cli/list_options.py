"""What options ask that take lists: modes, data types, kinds of attention, windows."""

from __future__ import annotations

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.archive.axes import parse_names
from dsocr_analyze.cli.page_options import refuse_window
from dsocr_analyze.dtypes import Dtype, dtype_named
from dsocr_analyze.errors import WorkloadError

__all__ = ["attentions_from", "dtypes_from", "windows_from"]


def dtypes_from(text: str) -> tuple[Dtype, ...]:
    """The distinct data types in `--dtype`."""
    return tuple(dict.fromkeys(map(dtype_named, parse_names("dtype", text))))


def attentions_from(text: str) -> tuple[bool, ...]:
    """Whether attention is FlashAttention, for each value in `--use-flash-attn`."""
    return _switches("flash_attention", text)


def windows_from(architecture: Architecture, text: str | None) -> tuple[bool, ...]:
    """Whether the sliding window is on, for each value; raises WorkloadError if there is none."""
    if text is None:
        return (True,)
    refuse_window(architecture, text)
    return _switches("sliding_window", text)


def _switches(argument: str, text: str) -> tuple[bool, ...]:
    names = parse_names(argument, text)
    if wrong := [name for name in names if name not in ("0", "1")]:
        raise WorkloadError(
            f"{argument} {wrong[0]!r} is invalid; give 0, 1 or 0,1", arguments=[argument]
        )
    return tuple(dict.fromkeys(name == "1" for name in names))
