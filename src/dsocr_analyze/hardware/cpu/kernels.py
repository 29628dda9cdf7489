"""Times of a CPU's kernels: fitted coefficients by family and data type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.cpu.contributions import contributions, known_family
from dsocr_analyze.kernels import Kernel

__all__ = ["CACHED_BYTES", "CpuKernels", "Family"]

CACHED_BYTES: Final = 10**8
"""Bytes that a CPU's caches may serve; a kernel that moves more streams them from memory."""


@dataclass(frozen=True)
class Family:
    """Kernels measured and fitted together, in one data type.

    Attributes:
        coefficients: Microseconds per unit of each contribution, by name.
        median: Median relative error on the held-out sizes.
        p90: 90th percentile of that error.
        held_out_rows: Kernels behind these two errors.
        training_rows: Kernels used in the fit.
    """

    coefficients: Mapping[str, float]
    median: float
    p90: float
    held_out_rows: int
    training_rows: int


@dataclass(frozen=True)
class CpuKernels:
    """Measurements of a CPU.

    Attributes:
        threads: Threads per kernel.
        operator_us: Overhead of Python and torch per operator of a model, microseconds.
        families: Fitted families, by family and data type.
    """

    threads: int
    operator_us: float
    families: Mapping[tuple[str, str], Family]

    def family(self, kernel: Kernel) -> tuple[str, str]:
        """Family and type whose coefficients apply to a kernel.

        Raises:
            DeviceError: No such kernel was measured.
        """
        found = known_family(kernel, self.families)
        if found is None:
            types = sorted({dtype for name, dtype in self.families if name == "product"})
            raise DeviceError(
                f"the CPU's profile has no {kernel.operator} in {kernel.dtype}; use dtype"
                f" {' or '.join(types)}, or calibrate again",
                arguments=["dtype"],
            )
        return found

    def seconds(self, kernel: Kernel) -> float:
        """Seconds of one call, without Python's overhead; raises DeviceError like `family`."""
        coefficients = self.families[self.family(kernel)].coefficients
        sizes = contributions(kernel)
        return 1e-6 * sum(coefficients.get(name, 0.0) * size for name, size in sizes.items())
