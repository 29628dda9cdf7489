"""What an operator costs: the five counts that every other figure is a sum of."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NO_WORK", "Work"]


class Work(NamedTuple):
    """Exact integer counts; see `matrix_flops` and `flops` for the derived figures."""

    macs: int = 0
    """Multiply-accumulates of matrix operators."""
    vector_flops: int = 0
    """FLOPs of everything else that computes."""
    activations: int = 0
    """Elements that matrix operators put out."""
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def matrix_flops(self) -> int:
        """FLOPs of matrix operators: two for a multiply-accumulate."""
        return 2 * self.macs

    @property
    def flops(self) -> int:
        """All FLOPs."""
        return 2 * self.macs + self.vector_flops

    def plus(self, other: Work) -> Work:
        """The sum, count by count."""
        return Work(
            self.macs + other.macs,
            self.vector_flops + other.vector_flops,
            self.activations + other.activations,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )

    def times(self, factor: int) -> Work:
        """`factor` times this work (an int; negative for differences)."""
        return Work(*(factor * count for count in self))

    def minus(self, other: Work) -> Work:
        """The difference, count by count."""
        return self.plus(other.times(-1))


NO_WORK = Work()
