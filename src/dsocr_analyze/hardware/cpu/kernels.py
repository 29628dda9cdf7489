"""How long a CPU's kernels take: fitted coefficients by family and element type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.cpu.contributions import contributions, known_family
from dsocr_analyze.kernels import Kernel

__all__ = ["CpuKernels", "Family"]


@dataclass(frozen=True)
class Family:
    """Kernels that are measured and fitted together, in one element type.

    Attributes:
        coefficients: Microseconds per unit of each contribution, by its name.
        median: Median relative error on the sizes held out.
        p90: 90th percentile of it.
        held_out_rows: Kernels that the two were taken over.
        training_rows: Kernels of the fit.
    """

    coefficients: Mapping[str, float]
    median: float
    p90: float
    held_out_rows: int
    training_rows: int


@dataclass(frozen=True)
class CpuKernels:
    """What was measured on a CPU.

    Attributes:
        threads: Threads that worked on each kernel.
        operator_us: What Python and torch add to an operator of a model, microseconds.
        families: By family and element type.
    """

    threads: int
    operator_us: float
    families: Mapping[tuple[str, str], Family]

    def family(self, kernel: Kernel) -> tuple[str, str]:
        """Family and type whose coefficients a kernel takes.

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
        """Seconds of one call, what Python adds to it aside; raises DeviceError."""
        coefficients = self.families[self.family(kernel)].coefficients
        sizes = contributions(kernel)
        return 1e-6 * sum(coefficients.get(name, 0.0) * size for name, size in sizes.items())
