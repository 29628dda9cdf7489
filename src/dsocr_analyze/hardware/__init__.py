"""GPUs: their specifications, what fits into their memory, and how long their kernels take.

from dsocr_analyze.hardware import device

device("h100-sxm").gemm_seconds(4096, 3072, 768)
"""

from __future__ import annotations

from dsocr_analyze.hardware.timed_device import Device, device

__all__ = ["Device", "device"]
