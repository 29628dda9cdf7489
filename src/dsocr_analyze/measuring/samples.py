"""Seconds of a repeated measurement."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

__all__ = ["Samples"]


@dataclass(frozen=True)
class Samples:
    """Seconds of each repeat of a measurement, in order."""

    seconds: tuple[float, ...]

    @property
    def fastest(self) -> float:
        """The minimum: the time without disturbance."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Maximum minus minimum, as a fraction of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median
