"""What a calibration takes, stated before it begins: its seconds, and its memory.

Known without torch, so that a command can refuse before it takes any memory.
"""

from __future__ import annotations

from typing import Final

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.measuring.free_memory import free_memory_bytes

__all__ = [
    "GPU_BYTES",
    "LEAST_SECONDS",
    "MOST_SECONDS",
    "check_memory",
    "has_passes",
    "stated_memory",
]

LEAST_SECONDS: Final = 20.0
MOST_SECONDS: Final = 3600.0
_SECONDS_WITH_PASSES: Final = 90.0
"""A CPU's calibration that is shorter measures kernels alone: a pass may take many seconds."""
GPU_BYTES: Final = 6_000_000_000
"""Memory of a GPU that its calibration takes at most."""
_ALONE_BYTES: Final = 1_100_000_000
_WITH_PASSES_BYTES: Final = 3_200_000_000
_BESIDE_GPU_BYTES: Final = 4_000_000_000


def has_passes(seconds: float) -> bool:
    """Whether a calibration that takes so long measures kernels in passes too, on a CPU."""
    return seconds >= _SECONDS_WITH_PASSES


def stated_memory(seconds: float, *, on_cpu: bool) -> str:
    """The memory that a calibration takes at most, with everything that it imports.

    Args:
        seconds: Time for the whole calibration.
        on_cpu: Whether the CPU itself is measured, not a GPU.
    """
    text = f"{_bytes(seconds, on_cpu=on_cpu) / 1e9:.1f} GB of memory"
    return text if on_cpu else f"{text} and {GPU_BYTES / 1e9:.1f} GB of the GPU's"


def _bytes(seconds: float, *, on_cpu: bool) -> int:
    if not on_cpu:
        return _BESIDE_GPU_BYTES
    return _WITH_PASSES_BYTES if has_passes(seconds) else _ALONE_BYTES


def check_memory(seconds: float, *, on_cpu: bool) -> None:
    """Check that the memory is there, before any is taken.

    Args:
        seconds: Time for the whole calibration.
        on_cpu: Whether the CPU itself is measured, not a GPU.

    Raises:
        DeviceError: The machine, a control group or a limit of the process has less.
    """
    need, free = _bytes(seconds, on_cpu=on_cpu), free_memory_bytes()
    if need <= free:
        return
    shorter = _bytes(LEAST_SECONDS, on_cpu=on_cpu)
    advice = "free some, or raise the limit of this process"
    if shorter <= free:
        advice += f"; less than {_SECONDS_WITH_PASSES:g} s need {shorter / 1e9:.1f} GB only"
    raise DeviceError(
        f"calibration takes up to {need / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free;"
        f" {advice}"
    )
