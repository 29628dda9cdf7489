"""From counts to seconds: how long a page takes, and how many pages per second a GPU does."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from msgspec import Meta, Struct

SECONDS_PER_HOUR: Final = 3600.0
MOST_CONCURRENCY: Final = 65_536

Share = Annotated[float, Meta(ge=0)]
Seconds = Share
Bound = Literal["launches", "memory", "compute", "host"]
LoadBound = Literal["launches", "memory", "compute", "host", "workers"]


def bound_text(bound: str) -> str:
    """What limits a throughput, in a sentence."""
    return "CPU workers" if bound == "workers" else bound


def runtime_text(runtime: str, host: str) -> str:
    """What runs the model, with the serving engine: 'eager', 'serving, vllm'."""
    return ", ".join(dict.fromkeys((runtime, host)))


def cost_per_thousand_pages(price_per_hour: float, pages_per_second: Any) -> Any:
    """Cost of a thousand pages on one GPU, in the price's currency; accepts arrays."""
    return 1000 * price_per_hour / (SECONDS_PER_HOUR * pages_per_second)


class Interval(Struct, frozen=True, kw_only=True):
    """The band of a predicted figure.

    Attributes:
        low: Lower end.
        high: Upper end.
    """

    low: Share
    high: Share

    @classmethod
    def within(cls, value: float, error: float) -> Self:
        """The band of a figure with a relative error in both directions."""
        return cls(low=value / (1 + error), high=value * (1 + error))


class TimeProfile(Struct, frozen=True, kw_only=True):
    """Where the kernels' times come from.

    Attributes:
        source: Measurements that the coefficients were fitted to.
        extrapolated: Kinds of kernels with another GPU's coefficients.
        assumed: Kinds of kernels whose error is assumed.
    """

    source: str
    extrapolated: tuple[str, ...]
    assumed: tuple[str, ...]


class TimeStage(Struct, frozen=True, kw_only=True):
    """Seconds of a stage; for the last one, of a decode step with the prompt cached.

    Attributes:
        seconds: Predicted seconds.
        low: Lower end of the band.
        high: Upper end of the band.
        bound: What takes most of that time.
        peak_share: Matrix FLOPs, less those that a causal kernel skips, as a share of the peaks of
            their types; at most 1.
        bandwidth_share: Bytes to and from device memory, without those that L2 serves, as a share
            of its bandwidth; at most 1.
    """

    seconds: Seconds
    low: Seconds
    high: Seconds
    bound: Bound
    peak_share: Share
    bandwidth_share: Share


class LoadedGpu(Struct, frozen=True, kw_only=True):
    """A GPU with several pages in flight, or prompts of several pages; seconds are of each.

    Attributes:
        concurrency: Pages in flight.
        pages_per_second: Throughput of the GPU.
        pages_per_second_band: Its band.
        tokens_per_second: Tokens generated per second.
        ttft_seconds: Until the first token, preprocessing and waiting included.
        tpot_seconds: Per token after the first; null for pages of one token.
        page_seconds: From sending the page to its last token.
        memory_bytes: Memory that so many pages need.
        bound: What limits the throughput; `workers` are those of the CPU, which prepare pages.
        fits: Whether they fit in memory; if not, some wait.
        cost_per_thousand_pages: In the price's currency; null without a price.
        cost_band: Its band; null without a price.
    """

    concurrency: int
    pages_per_second: Share
    pages_per_second_band: Interval
    tokens_per_second: Share
    ttft_seconds: Seconds
    tpot_seconds: Seconds | None
    page_seconds: Seconds
    memory_bytes: int
    bound: LoadBound
    fits: bool
    cost_per_thousand_pages: Share | None
    cost_band: Interval | None


class TimeCorrection(Struct, frozen=True, kw_only=True):
    """The correction from a server's benchmarks, included in predicted figures.

    Attributes:
        server_version: The server's version; `unknown` if not given.
        first_token: Factor on the time to the first token, preprocessing included.
        per_token: Factor on the time of each later token.
        first_token_error: Largest deviation of a benchmark from the others, as a ratio minus 1;
            null for a single benchmark, which does not narrow the band.
        per_token_error: The same for later tokens.
        benchmarks: Names of their files, oldest first.
        requests: Requests answered in all of them.
        kept: When the last one was kept, in UTC.
    """

    server_version: str
    first_token: Share
    per_token: Share
    first_token_error: Share | None
    per_token_error: Share | None
    benchmarks: tuple[str, ...]
    requests: int
    kept: str


class TimeAssumptions(Struct, frozen=True, kw_only=True):
    """What a prediction assumes.

    Attributes:
        host: `eager`, or the serving engine.
        new_tokens_mean: Mean tokens generated per page.
        new_tokens_longest: Most tokens generated for a page.
        preprocess_seconds: CPU seconds to prepare a prompt's pages.
        preprocess_estimated: Whether they are estimated from its pixels.
        workers: Pages that the CPU prepares at a time.
        offline: Whether all pages are prepared before the first one runs.
        weights_dtype: Type of the decoder's quantized weights; null for the model's own.
        kv_dtype: Type of cached keys and values; null for the model's own.
        reserved: Fraction of the memory that is kept free.
        limits: The serving engine's limits and its cache in its own words; null if no limit is
            given.
        price_per_hour: Price of one GPU per hour; null if not given.
        correction: Correction from the server's benchmarks; null without any.
        sentences: All assumptions in words.
        notes: Those of them that make the prediction doubtful, or that correct it.
    """

    host: str
    new_tokens_mean: Share
    new_tokens_longest: int
    preprocess_seconds: Seconds
    preprocess_estimated: bool
    workers: int
    offline: bool
    weights_dtype: str | None
    kv_dtype: str | None
    reserved: Share
    price_per_hour: Share | None
    limits: str | None = None
    correction: TimeCorrection | None = None
    sentences: tuple[str, ...]
    notes: tuple[str, ...] = ()


class TimeEntry(Struct, frozen=True, kw_only=True):
    """Seconds of a page, or of a prompt of several, on a GPU under a runtime: predicted.

    Attributes:
        gpu: Name of the GPU.
        runtime: `eager` or `serving`.
        profile: Where the kernels' times come from.
        stages: By stage, in the architecture's order.
        ttft_seconds: Until the first token of a page alone, preprocessing included.
        tpot_seconds: Mean per token after the first; null for pages of one token.
        page_seconds: From start to last token of a page alone.
        bands: Bands of these figures, by key.
        largest_concurrency: Most pages at a time that fit in memory, and that the engine runs.
        kv_tokens: Tokens that fit in the serving engine's cache; null under `eager`.
        ridge_flops_per_byte: FLOPs per byte above which the matrix peak, not memory, is the bound;
            null in earlier reports.
        throughput: One entry per concurrency.
        assumptions: What the prediction assumes.
        busy_share: Share of a page alone in which the GPU's kernels run; null in earlier reports.
        served_page_seconds: Of an eager page under vLLM instead; null under `serving`, and where
            that engine is not predicted.
    """

    gpu: str
    runtime: Literal["eager", "serving"]
    profile: TimeProfile
    stages: Mapping[str, TimeStage]
    ttft_seconds: Seconds
    tpot_seconds: Seconds | None
    page_seconds: Seconds
    bands: Mapping[str, Interval]
    largest_concurrency: int
    ridge_flops_per_byte: Share | None = None
    throughput: tuple[LoadedGpu, ...]
    assumptions: TimeAssumptions
    busy_share: Share | None = None
    kv_tokens: int | None = None
    served_page_seconds: Seconds | None = None

    @property
    def runtime_text(self) -> str:
        """What runs the model, with the serving engine."""
        return runtime_text(self.runtime, self.assumptions.host)

    @property
    def title(self) -> str:
        """What the seconds are of: `h100-sxm, serving, vllm`."""
        return f"{self.gpu}, {self.runtime_text}"
