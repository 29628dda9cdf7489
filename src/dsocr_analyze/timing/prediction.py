"""Predicted times of a page on a GPU: seconds by stage, and throughput by concurrency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.timing.span import Bound, Span, total_span

if TYPE_CHECKING:
    from dsocr_analyze.hardware.profile import Profile
    from dsocr_analyze.timing.assumptions import Assumptions

__all__ = ["Band", "PagePrediction", "Throughput", "cost_per_thousand_pages"]

_SECONDS_PER_HOUR: Final = 3600.0


def cost_per_thousand_pages(price_per_hour: float, pages_per_second: Any) -> Any:
    """Cost of a thousand pages on one GPU, in the currency of the price; accepts arrays."""
    return 1000 * price_per_hour / (_SECONDS_PER_HOUR * pages_per_second)


@dataclass(frozen=True, slots=True)
class Band:
    """A predicted figure with its uncertainty band.

    Attributes:
        value: The figure.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    @classmethod
    def within(cls, value: float, error: float) -> Band:
        """The figure with the same relative error, as a ratio, in both directions."""
        return cls(value, value / (1 + error), value * (1 + error))

    @classmethod
    def of(cls, seconds: float, span: Span) -> Band:
        """Seconds of which a span is a part, the rest exact.

        A measured error of the span applies to all of them, because that is what was measured.
        """
        if span.measured_error is not None:
            return cls.within(seconds, span.measured_error)
        known = seconds - float(span.seconds)
        return cls(seconds, span.low + known, span.high + known)


@dataclass(frozen=True, slots=True)
class Throughput:
    """A GPU in steady state at some concurrency; seconds are per page.

    Attributes:
        concurrency: Pages in flight.
        pages_per_second: Pages that the GPU finishes per second.
        tokens_per_second: Tokens that it generates per second.
        ttft_seconds: Time to the first token.
        tpot_seconds: Time per token after the first; None if a page has one token.
        page_seconds: Time from sending the page to its last token.
        memory_bytes: Bytes needed for all pages in flight.
        bound: What limits the throughput.
        fits: Whether the memory suffices; if not, as many pages run as fit and the others queue.
        cost_per_thousand_pages: In the price's currency; None without a price.
        work: GPU time of one page.
    """

    concurrency: int
    pages_per_second: Band
    tokens_per_second: Band
    ttft_seconds: float
    tpot_seconds: float | None
    page_seconds: float
    memory_bytes: int
    bound: Bound
    fits: bool
    cost_per_thousand_pages: Band | None
    work: Span


@dataclass(frozen=True)
class PagePrediction:
    """Predicted times of a page on a GPU under a runtime.

    Attributes:
        profile: The GPU's profile.
        runtime: `eager` or `serving`.
        stages: Time of each stage, in the architecture's order; the last is one decode step over a
            cache of the prompt.
        ttft_seconds: Time to the first token of a page alone, preprocessing included.
        tpot_seconds: Mean time per token after the first; None if a page has one token.
        page_seconds: Time from start to last token of a page alone.
        largest_concurrency: Most concurrent pages that fit into memory.
        throughput: One figure per concurrency.
        assumptions: What was assumed.
    """

    profile: Profile
    runtime: str
    stages: Mapping[str, Span]
    ttft_seconds: Band
    tpot_seconds: Band | None
    page_seconds: Band
    largest_concurrency: int
    throughput: tuple[Throughput, ...]
    assumptions: Assumptions

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """Kinds of kernels priced with another GPU's coefficients."""
        kinds = total_span(self.stages.values()).kinds
        return tuple(sorted(kind.kind for kind in kinds if kind.extrapolated))

    @property
    def assumed(self) -> tuple[str, ...]:
        """Kinds of kernels whose error is assumed, not measured."""
        kinds = total_span(self.stages.values()).kinds
        return tuple(sorted(kind.kind for kind in kinds if kind.assumed))
