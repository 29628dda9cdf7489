"""GPUs: their specifications, what fits into their memory, and how long their kernels take.

from dsocr_analyze.hardware import device

device("h100-sxm").gemm_seconds(4096, 3072, 768)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsocr_analyze.hardware.profile import device
    from dsocr_analyze.hardware.timed_device import Device

__all__ = ["Device", "device"]


def __getattr__(name: str) -> type[Device] | Callable[..., Device]:
    """Kernel times are imported on first use: most runs only look up a GPU's peaks."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dsocr_analyze.hardware import profile, timed_device

    return timed_device.Device if name == "Device" else profile.device
