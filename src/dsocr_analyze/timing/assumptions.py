"""Everything a prediction assumes, in one place; every output prints it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import mul
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np

from dsocr_analyze.architectures.views import PixelWork
from dsocr_analyze.errors import WorkloadError, refuse
from dsocr_analyze.timing.correction import NO_CORRECTIONS, Corrections
from dsocr_analyze.timing.runtimes import CHANNELS, NATIVE, Host, Precision
from dsocr_analyze.workload import LARGEST_COUNT, Mode, PageWorkload

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.hardware.timed_device import Device

# --- output lengths ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """A distribution of the tokens that a page generates, the prefill pass's included.

    Attributes:
        lengths: Strictly ascending.
        shares: Shares of pages of these lengths, above 0; they add up to 1.
    """

    lengths: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def fixed(cls, tokens: int) -> OutputLengths:
        """The same length for every page."""
        return cls((tokens,), (1.0,))

    @classmethod
    def mean_and_limit(cls, mean: float, limit: int, share_at_limit: float) -> OutputLengths:
        """Some pages repeat themselves up to the limit; the others stop at `mean` on average.

        These have the two whole numbers around it in proportion.

        Raises:
            WorkloadError: The limit is not from 2 to `LARGEST_COUNT`, the mean is not between 1 and
                the limit less 1, or the share is not at least 0 and below 1.
        """
        refuse(
            WorkloadError,
            (not 2 <= limit <= LARGEST_COUNT,
             f"max_new_tokens {limit} is invalid beside mean_new_tokens; give a whole number from 2"
             f" to {LARGEST_COUNT}"),
            (not 1 <= mean <= limit - 1,
             f"mean_new_tokens {mean:g} is out of range: pages that end before max_new_tokens"
             f" {limit} generate from 1 to {limit - 1} tokens"),
            (not 0 <= share_at_limit < 1,
             f"share_at_limit {share_at_limit:g} is out of range; give a number of at least 0 and"
             " below 1"),
            arguments=["max_new_tokens", "mean_new_tokens", "share_at_limit"],
        )  # fmt: skip
        shorter, ending = math.floor(mean), 1 - share_at_limit
        part_longer = mean - shorter
        # If shorter + 1 is the limit, the mean is whole, so overwriting that entry loses nothing.
        parts = {
            shorter: ending * (1 - part_longer),
            shorter + 1: ending * part_longer,
            limit: share_at_limit,
        }
        some = {length: share for length, share in parts.items() if share > 0}
        return cls(tuple(some), tuple(some.values()))

    @classmethod
    def of_counts(cls, pages: Mapping[int, int]) -> OutputLengths:
        """The distribution of counted pages, at least one, by generated tokens."""
        total = sum(pages.values())
        some = sorted((length, count) for length, count in pages.items() if count)
        return cls(tuple(length for length, _ in some), tuple(count / total for _, count in some))

    @property
    def mean(self) -> float:
        """Mean generated tokens per page."""
        return math.fsum(map(mul, self.lengths, self.shares))

    @property
    def sentence(self) -> str:
        """How many tokens pages generate, in words."""
        if len(self.lengths) == 1:
            return f"every page generates {self.longest} tokens"
        return f"pages generate {self.mean:,.0f} tokens on average, {self.longest:,} at most"

    @property
    def running(self) -> int:
        """Mean tokens that a running page has generated so far, at least 1.

        A page of n tokens runs n times as long as one of a single token, at n / 2 on average.
        """
        squares = sum(share * n**2 for n, share in zip(self.lengths, self.shares, strict=True))
        return max(1, round(squares / self.mean / 2))

    @property
    def longest(self) -> int:
        """Tokens of the longest output."""
        return self.lengths[-1]

    def share_above(self, tokens: int) -> float:
        """The share of pages that generate more tokens."""
        return math.fsum(self.shares[bisect_right(self.lengths, tokens) :])

    def expected_longest(self, batch: int) -> float:
        """Expected tokens of the longest output in a batch of n pages, independent draws.

        With the distribution function F and the distinct lengths l_1 < l_2 < ...,

            l_1 + sum over i of (l_(i+1) - l_i) * (1 - F(l_i)^n)
        """
        longer = np.cumsum(self.shares[:0:-1])[::-1]  # shares of pages: 1 - F
        with np.errstate(divide="ignore"):
            # 1 - (1 - longer)^n, accurate even if `longer` is too small to change 1.
            exceeded = -np.expm1(batch * np.log1p(-np.minimum(1.0, longer)))
        return self.lengths[0] + math.fsum(np.diff(self.lengths) * exceeded)


# --- a job ------------------------------------------------------------------------------------


_DECODED_S = 10e-9
_RESIZED_S = 4.45e-9
_VIEWED_S = 8.05e-9
"""Seconds per pixel of `PixelWork`, Pillow 13 and torch 2.13, CPU time on an AMD EPYC (Zen 5).

Decoding, with orientation and conversion to RGB: PNG pages of text take 8 to 11 ns a pixel, scans
15, JPEG 3 to 7. The others: least squares over 30 pages (A4 at 72 to 300 dpi in six modes), minimum
of 14 runs; median error 2.5 %, 90th percentile 8 %.

A server's CPU takes longer (`Host.cpu_factor`): 2.1 times for a page of 1920 x 1080 pixels, 87 ms
instead of 41 (sglang pull 35318), 1.2 and 1.6 times for two modes of another (sglang pull 29186),
if that is A4 at 150 dpi.
"""


def estimated_preprocessing(
    architecture: Architecture, workload: PageWorkload, host: Host | None = None
) -> float:
    """Seconds in which a CPU thread resizes a page and makes tensors of its views.

    With a host, all that it does before the engine has the page: it decodes it, too.
    """
    rule, pages = architecture.forms.model.page_rule, workload.prompt_pages
    work = rule.pixel_work(workload, *workload.page, *workload.grid)
    return float(_seconds_of(PixelWork(*np.multiply(pages, work)), host))


def _seconds_of(work: PixelWork, host: Host | None) -> Any:
    seconds = _RESIZED_S * work.resized + _VIEWED_S * work.viewed
    if host is None:
        return seconds
    seconds += _DECODED_S * work.decoded + 1e-9 * host.sent_ns * CHANNELS * work.viewed
    return 1e-6 * host.request_us + host.cpu_factor * seconds


_BUSY_SHARE: Final = 0.8


def workers_needed(cpu_seconds: float, gpu_seconds: float) -> int:
    """CPU workers that are busy `_BUSY_SHARE` of the time at most, however fast the GPU runs.

    Args:
        cpu_seconds: In which one of them prepares some pages.
        gpu_seconds: The least in which the GPU runs them, of all numbers of pages at once.
    """
    return max(1, math.ceil(cpu_seconds / gpu_seconds / _BUSY_SHARE))


_SAM: Final = (
    "SAM's attention with its bias takes as long as PyTorch's memory-efficient kernel, also where"
    " cuDNN's runs"
)
"""The vendors' code and both engines pass queries of four dimensions."""


@dataclass(frozen=True)
class Assumptions:
    """What is assumed of all pages of a job.

    Attributes:
        host: The runtime's; a device's profile may have measured its figures.
        lengths: Of outputs, from a page's token limit; raises WorkloadError.
        preprocess_seconds: CPU seconds per page; None to estimate them.
        preprocess_origin: Where they come from, in words.
        workers: Pages that the CPU prepares in parallel.
        plans_workers: Whether it prepares as many as `workers_needed` says instead.
        reserved: Fraction of the memory kept for the driver, the allocator and kernels.
        price_per_hour: Of one GPU; None if it is not known, or each GPU has its own.
        prices_per_hour: These, by GPU.
        is_offline: Whether the CPU prepares all pages before the first one runs.
        limits: The serving engine's in its own words, if any is given.

    Raises:
        WorkloadError: A number is out of range.
    """

    host: Host
    lengths: Callable[[int], OutputLengths] = OutputLengths.fixed
    preprocess_seconds: float | None = None
    workers: int = 1
    precision: Precision = NATIVE
    reserved: float = 0.1
    price_per_hour: float | None = None
    is_offline: bool = False
    corrections: Corrections = NO_CORRECTIONS
    preprocess_origin: str = "given"
    limits: str | None = None
    plans_workers: bool = False
    prices_per_hour: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        prepared = self.preprocess_seconds or 0.0
        prices = *self.prices_per_hour.values(), self.price_per_hour
        refuse(
            WorkloadError,
            (not 0 <= prepared < 1e6,
             f"preprocess_ms {1e3 * prepared:g} is out of range; give 0 or more, and less than"
             " 1e9"),
            (not self.workers >= 1, f"workers {self.workers} is too small; give 1 or more"),
            (self.workers > LARGEST_COUNT,
             f"workers {self.workers} is too large; give at most {LARGEST_COUNT}"),
            *((not 0 < price < 1e9,
               f"price {price:g} is out of range; give an amount above 0, and less than 1e9")
              for price in prices if price is not None),
            (not 0 <= self.reserved < 1,
             f"reserved {self.reserved} is out of range; give a fraction, at least 0 and below 1"),
            arguments=["preprocess_ms", "workers", "price", "reserved"],
        )  # fmt: skip

    def on(self, gpu: str) -> Self:
        """The same on one GPU, with its own price."""
        price = self.prices_per_hour.get(gpu)
        return self if price is None else replace(self, price_per_hour=price)

    def prepare_seconds(self, architecture: Architecture, workload: PageWorkload) -> float:
        """CPU seconds before the engine has a prompt: given of each page, or estimated."""
        given = self.preprocess_seconds
        if given is not None:
            return given * workload.prompt_pages
        return estimated_preprocessing(architecture, workload, self.host)

    def prepare_seconds_of_pages(
        self, architecture: Architecture, mode: Mode, widths: Any, heights: Any
    ) -> Any:
        """The same of each page, in one mode; sizes in pixels, `[n]`."""
        if self.preprocess_seconds is not None:
            return np.full(len(widths), self.preprocess_seconds)
        rule = architecture.forms.model.page_rule
        grids = rule.columns_and_rows(rule.codes(widths, heights))
        return _seconds_of(rule.pixel_work(mode, widths, heights, *grids), self.host)

    @property
    def runtime(self) -> Literal["eager", "serving"]:
        """`eager` or `serving`."""
        return "eager" if self.host.is_eager else "serving"

    def sentences(
        self,
        lengths: str,
        profiles: Iterable[Device] = (),
        prepare: float | None = None,
        *,
        has_sam: bool = True,
        has_experts: bool = True,
    ) -> list[str]:
        """What is assumed on some devices, without corrections.

        `lengths` says how many tokens pages generate; `prepare` are CPU seconds of a page.
        """
        devices_of: dict[Host, list[str]] = {}
        for profile in profiles:
            devices_of.setdefault(self.host.on(profile), []).append(profile.gpu.name)
        hosts = [
            f"{', '.join(devices)}: {said}" if len(devices_of) > 1 else said
            for host, devices in (devices_of or {self.host: []}).items()
            for said in host.sentences()
        ]
        owners = {"machine" if each.computes else "GPU" for each in devices_of or [self.host]}
        owner = "each device's" if len(owners) > 1 else f"the {owners.pop()}'s"
        order = "before the first page runs" if self.is_offline else "while the GPU works"
        if self.host.is_eager:
            order = "before each batch runs"
        given = self.preprocess_seconds
        seconds = prepare if given is None else given
        beside = " of weights and cache, for activations" if self.host.engine == "sglang" else ""
        preprocessing = "is estimated from each page's pixels"
        if seconds is not None:
            origin = "estimated from its pixels" if given is None else self.preprocess_origin
            preprocessing = f"takes {1e3 * seconds:.1f} ms of CPU per page ({origin})"
        return [
            lengths,
            f"preprocessing {preprocessing}, {self.workers} at a time, {order}",
            *[f"CPU workers are as many as are busy {100 * _BUSY_SHARE:g} % of the time"]
            * self.plans_workers,
            *hosts,
            f"{100 * self.reserved:g} % of {owner} memory is kept free{beside}",
            *["experts are chosen independently and evenly"] * has_experts,
            *self._runtime_sentences(f"; {_SAM}" if has_sam else ""),
        ]

    def _runtime_sentences(self, of_sam: str) -> list[str]:
        if self.host.is_eager:
            return [f"a batch runs until its longest page ends; no autocast{of_sam}"]
        return [
            "vision runs uncompiled, the prompt as compiled kernels, decode steps as CUDA graphs;"
            " prefill passes run between decode steps"
            + (" and also decode the running sequences" if self.host.mixes_prefill else "")
            + of_sam,
            *([f"{self.host.name} has {self.limits}"] if self.limits else []),
            *self.precision.sentences(),
        ]
