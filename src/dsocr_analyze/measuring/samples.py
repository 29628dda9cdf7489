"""Seconds of a repeated measurement."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated, Self

from msgspec import Meta, Struct

__all__ = ["MeasuredSeconds"]

Seconds = Annotated[float, Meta(ge=0)]


class MeasuredSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of something that ran several times.

    Attributes:
        fastest: The minimum.
        median: The median.
        spread: (maximum - minimum) / median.
        samples: In the order in which they were taken.
        predicted: Predicted seconds; null without a prediction.
        error: predicted / fastest - 1; null without a prediction.
    """

    fastest: Seconds
    median: Seconds
    spread: Seconds
    samples: tuple[Seconds, ...]
    predicted: Seconds | None
    error: float | None

    @classmethod
    def of(cls, samples: Sequence[float], predicted: float | None = None) -> Self:
        """The figures of some samples and their prediction."""
        fastest, median = min(samples), statistics.median(samples)
        return cls(
            fastest=fastest,
            median=median,
            spread=(max(samples) - fastest) / median,
            samples=tuple(samples),
            predicted=predicted,
            error=None if predicted is None else predicted / fastest - 1,
        )

    def beside(self, predicted: float | None) -> Self:
        """The same samples with a prediction."""
        return self.of(self.samples, predicted)
