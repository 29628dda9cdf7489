"""What a page takes on a GPU: seconds by stage, and throughput over concurrency."""

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
    """What a thousand pages cost on one GPU, in the currency of the price; also of an array."""
    return 1000 * price_per_hour / (_SECONDS_PER_HOUR * pages_per_second)


@dataclass(frozen=True, slots=True)
class Band:
    """A predicted figure, and between what it lies.

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
        """The figure with a relative error either way, as a ratio."""
        return cls(value, value / (1 + error), value * (1 + error))

    @classmethod
    def of(cls, span: Span, *, known: float = 0.0) -> Band:
        """Seconds of a span, and `known` seconds besides that are exact.

        Where the span's error was measured, it was measured of the two together.
        """
        if span.measured_error is not None:
            return cls.within(float(span.seconds) + known, span.measured_error)
        return cls(float(span.seconds) + known, span.low + known, span.high + known)


@dataclass(frozen=True, slots=True)
class Throughput:
    """A GPU in balance under some concurrency; seconds are of one page.

    Attributes:
        concurrency: Pages under way at a time.
        pages_per_second: Of the GPU.
        tokens_per_second: Generated, likewise.
        ttft_seconds: Until the first token.
        tpot_seconds: Per token after the first; None where a page has one token.
        page_seconds: From sending the page to its last token.
        memory_bytes: Needed at the same time.
        bound: What limits it.
        fits: Whether the memory suffices; where not, as many run as fit and the others wait.
        cost_per_thousand_pages: In the price's currency; None without a price.
        work: What one page takes of the GPU.
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
    """What a page takes on a GPU under a runtime.

    Attributes:
        profile: The GPU's profile.
        runtime: `eager` or `serving`.
        stages: Time of each stage, in the architecture's order; of the last, one decode step over a
            cache of the prompt.
        ttft_seconds: Until the first token of a page alone, preprocessing included.
        tpot_seconds: Per token after the first, on average; None where a page has one token.
        page_seconds: From start to last token of a page alone.
        largest_concurrency: Most pages at a time that fit into memory.
        throughput: By concurrency.
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
        """Kinds of kernels that take another GPU's coefficients."""
        kinds = total_span(self.stages.values()).kinds
        return tuple(sorted(kind.kind for kind in kinds if kind.extrapolated))

    @property
    def assumed(self) -> tuple[str, ...]:
        """Kinds of kernels whose error is assumed, not measured."""
        kinds = total_span(self.stages.values()).kinds
        return tuple(sorted(kind.kind for kind in kinds if kind.assumed))
