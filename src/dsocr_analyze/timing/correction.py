"""By how much benchmarks of a server correct what is predicted of it.

A benchmark says how many times as long as predicted the first token takes, and each token after it.
Several of one GPU, server, version and model are combined by the geometric mean of these factors;
how far each lies from what the others say is the error that is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct

if TYPE_CHECKING:
    from dsocr_analyze.timing.span import Span

__all__ = [
    "LARGEST_FACTOR",
    "NO_CORRECTIONS",
    "UNKNOWN_VERSION",
    "Correction",
    "Corrections",
    "KeptBenchmark",
    "corrected_decode",
    "corrected_prefill",
]

LARGEST_FACTOR: Final = 5.0
"""A factor beyond it, or below 1 over it, is no correction: something else was measured."""

UNKNOWN_VERSION: Final = "unknown"
"""The version of a server of which nobody said it."""

Factor = Annotated[float, Meta(ge=1 / LARGEST_FACTOR, le=LARGEST_FACTOR)]
Count = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(min_length=1, max_length=300)]


class KeptBenchmark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of one benchmark.

    Attributes:
        format: Of this record.
        id: A digest of the result and of what it is of; its name in lists.
        gpu: Name of the GPU.
        server: Name of the serving engine.
        version: The engine's; `UNKNOWN_VERSION` where nobody said it.
        architecture: Name of the model's architecture.
        first_token: Measured over predicted seconds until the first token.
        per_token: The same of each token after it.
        requests: How many were answered.
        concurrency: Requests under way at a time.
        file: Name of the file.
        kept: When, in UTC: 2026-01-31T12:00:00Z.
    """

    format: Literal[1] = 1
    id: Name
    gpu: Name
    server: Name
    version: Name
    architecture: Name
    first_token: Factor
    per_token: Factor
    requests: Count
    concurrency: Count
    file: Name
    kept: Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$")]


@dataclass(frozen=True)
class Correction:
    """What benchmarks of one GPU, server, version and model say together.

    Attributes:
        benchmarks: One or more.
        other_versions: Versions of which others are kept.
    """

    benchmarks: tuple[KeptBenchmark, ...]
    other_versions: tuple[str, ...] = ()

    @property
    def first_token(self) -> float:
        """Measured over predicted seconds until the first token."""
        return _geometric_mean(self._first_tokens)

    @property
    def per_token(self) -> float:
        """The same of each token after it."""
        return _geometric_mean(self._per_tokens)

    @property
    def first_token_error(self) -> float | None:
        """How far a benchmark's first token lies from what the others say; None for a single one.

        The largest of all, as a ratio less 1.
        """
        return _left_out_error(self._first_tokens)

    @property
    def per_token_error(self) -> float | None:
        """The same of each token after it."""
        return _left_out_error(self._per_tokens)

    @property
    def version(self) -> str:
        """The server's."""
        return self.benchmarks[0].version

    @property
    def requests(self) -> int:
        """How many were answered, in all of them."""
        return sum(each.requests for each in self.benchmarks)

    @property
    def _first_tokens(self) -> list[float]:
        return [each.first_token for each in self.benchmarks]

    @property
    def _per_tokens(self) -> list[float]:
        return [each.per_token for each in self.benchmarks]

    def sentence(self) -> str:
        """What was corrected by how much, and by what."""
        one = self.benchmarks[0]
        named = "unknown version" if one.version == UNKNOWN_VERSION else one.version
        said = (
            f"corrected on {one.gpu} under {one.server} ({named}): the first token takes"
            f" {self.first_token:.3g} times and each token after it {self.per_token:.3g} times as"
            f" long as predicted without, by {_origin(self.benchmarks)}"
        )
        first, rest = self.first_token_error, self.per_token_error
        if first is not None and rest is not None:
            said += (
                f"; each lies within {100 * first:.2g} % and {100 * rest:.2g} % of what the others"
                " say, which is the band"
            )
        if self.other_versions:
            said += f"; kept for other versions, too: {', '.join(self.other_versions)}"
        return said


def _origin(benchmarks: Sequence[KeptBenchmark]) -> str:
    """Which benchmarks, from when, how many requests."""
    requests = sum(each.requests for each in benchmarks)
    files = ", ".join(dict.fromkeys(each.file for each in benchmarks))
    days = sorted({each.kept[:10] for each in benchmarks})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    if len(benchmarks) == 1:
        at_once = f", {benchmarks[0].concurrency:,} at a time"
        return f"a benchmark of {requests:,} requests{at_once} ({files}, kept {when})"
    return f"{len(benchmarks)} benchmarks of {requests:,} requests ({files}, kept {when})"


@dataclass(frozen=True)
class Corrections:
    """All that is kept.

    Attributes:
        benchmarks: In any order.
        version: Which version's to take; None for that of which one was kept last.
    """

    benchmarks: tuple[KeptBenchmark, ...] = ()
    version: str | None = None

    def of(self, gpu: str, server: str, architecture: str) -> Correction | None:
        """What is kept for a GPU, a serving engine and a model; None where nothing is."""
        fitting = [
            each
            for each in self.benchmarks
            if (each.gpu, each.server, each.architecture) == (gpu, server, architecture)
        ]
        if not fitting:
            return None
        newest = max(fitting, key=lambda each: (each.kept, each.id))
        version = newest.version if self.version is None else self.version
        found = tuple(each for each in fitting if each.version == version)
        others = sorted({each.version for each in fitting} - {version})
        return Correction(_by_age(found), tuple(others)) if found else None

    def versions(self, gpu: str, server: str) -> list[str]:
        """Versions of a serving engine of which something is kept for a GPU."""
        return sorted(
            {each.version for each in self.benchmarks if (each.gpu, each.server) == (gpu, server)}
        )

    def with_these(self, benchmarks: Iterable[KeptBenchmark]) -> Corrections:
        """With more; one that is there already is replaced."""
        every = {each.id: each for each in (*self.benchmarks, *benchmarks)}
        return Corrections(tuple(every.values()), self.version)


NO_CORRECTIONS: Final = Corrections()
"""Nothing is corrected."""


def corrected_prefill(span: Span, correction: Correction | None) -> Span:
    """A part of the first token, corrected where something is known of it."""
    if correction is None:
        return span
    return span.corrected(correction.first_token, correction.first_token_error)


def corrected_decode(span: Span, correction: Correction | None) -> Span:
    """Decode steps, corrected where something is known of them."""
    if correction is None:
        return span
    return span.corrected(correction.per_token, correction.per_token_error)


def _by_age(benchmarks: Iterable[KeptBenchmark]) -> tuple[KeptBenchmark, ...]:
    return tuple(sorted(benchmarks, key=lambda each: (each.kept, each.id)))


def _geometric_mean(factors: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, factors)) / len(factors))


def _left_out_error(factors: Sequence[float]) -> float | None:
    """The largest ratio, less 1, of a factor to the mean of the others; None for a single one."""
    if len(factors) == 1:
        return None
    logarithms = [math.log(each) for each in factors]
    total, others = math.fsum(logarithms), len(factors) - 1
    worst = max(abs(each - (total - each) / others) for each in logarithms)
    return math.expm1(worst)
