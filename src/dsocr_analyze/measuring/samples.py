"""Seconds of something that was done several times."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

__all__ = ["Samples"]


@dataclass(frozen=True)
class Samples:
    """Seconds of something that was repeated, in the order of the repeats."""

    seconds: tuple[float, ...]

    @property
    def fastest(self) -> float:
        """The least: what it takes where nobody disturbs it."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Greatest minus least, as a part of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median
