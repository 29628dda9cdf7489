"""Elementwise kernels, normalizations and copies: bytes over bandwidth, plus a fixed cost."""

from __future__ import annotations

import numpy as np

from dsocr_analyze.hardware.kernel_times.coefficients import MovementCoefficients
from dsocr_analyze.hardware.kernel_times.machine import Floats, Machine

__all__ = ["movement_seconds"]


def movement_seconds(moved: Floats, machine: Machine, c: MovementCoefficients) -> Floats:
    """Seconds of a kernel that reads and writes `moved` bytes in total and computes little."""
    in_l2 = machine.in_l2(moved)
    bandwidth = np.where(in_l2, c.l2_share, c.memory_share) * machine.bytes_per_second
    seconds: Floats = (moved + c.ramp_mb * 1e6) / bandwidth + c.launch_us * 1e-6
    return seconds
