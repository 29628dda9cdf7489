"""By how much benchmarks of a server correct what is predicted of it.

A benchmark says how many times as long as predicted the first token takes, and each token after it.
Several of one GPU, server, version and model are combined by the geometric mean of these factors;
how far each lies from what the others say is the error that is left. A factor corrects only what
was predicted with the kernel times and host figures that it was measured against.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct

if TYPE_CHECKING:
    from dsocr_analyze.hardware.profile import Profile
    from dsocr_analyze.timing.runtimes import Host
    from dsocr_analyze.timing.span import Span

__all__ = [
    "LARGEST_FACTOR",
    "NO_CORRECTION",
    "NO_CORRECTIONS",
    "UNKNOWN_VERSION",
    "Correction",
    "Corrections",
    "KeptBenchmark",
    "basis_of",
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
        basis: What was predicted with, as `basis_of` has it.
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
    basis: Name
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
        benchmarks: The oldest first; where there is none, nothing is corrected.
        other_versions: Versions of which others are kept.
        left_out: Others of the version, of predictions with other kernel times or host figures.
    """

    benchmarks: tuple[KeptBenchmark, ...] = ()
    other_versions: tuple[str, ...] = ()
    left_out: tuple[KeptBenchmark, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether there is no benchmark."""
        return not self.benchmarks

    @property
    def first_token(self) -> float:
        """Measured over predicted seconds until the first token; 1 where nothing was measured."""
        return _geometric_mean(self._first_tokens)

    @property
    def per_token(self) -> float:
        """The same of each token after it."""
        return _geometric_mean(self._per_tokens)

    @property
    def first_token_error(self) -> float | None:
        """How far a benchmark's first token lies from what the others say; None without others.

        The largest of all, as a ratio less 1.
        """
        return _left_out_error(self._first_tokens)

    @property
    def per_token_error(self) -> float | None:
        """The same of each token after it."""
        return _left_out_error(self._per_tokens)

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

    def prefill(self, span: Span) -> Span:
        """A part of the first token, corrected."""
        if self.is_nothing:
            return span
        return span.corrected(self.first_token, self.first_token_error)

    def decode(self, span: Span) -> Span:
        """Decode steps, corrected."""
        return span if self.is_nothing else span.corrected(self.per_token, self.per_token_error)

    def sentences(self) -> list[str]:
        """What was corrected by how much and by what, and what was not."""
        said = [] if self.is_nothing else [self._corrected()]
        if self.left_out:
            said.append(
                f"not corrected on {_subject(self.left_out[0])} by {_origin(self.left_out)}, which"
                " was compared with other kernel times or host figures; compare it again"
            )
        return said

    def _corrected(self) -> str:
        said = (
            f"corrected on {_subject(self.benchmarks[0])}: the first token takes"
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


def _subject(kept: KeptBenchmark) -> str:
    version = "unknown version" if kept.version == UNKNOWN_VERSION else kept.version
    return f"{kept.gpu} under {kept.server} ({version})"


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

    def of(self, profile: Profile, host: Host, architecture: str) -> Correction:
        """What is kept for a GPU, a serving engine and a model.

        Args:
            profile: The GPU's profile.
            host: The engine.
            architecture: Name of the model's architecture.
        """
        names = (profile.gpu.name, host.name, architecture)
        fitting = [
            each for each in self.benchmarks if (each.gpu, each.server, each.architecture) == names
        ]
        if not fitting:
            return NO_CORRECTION
        newest = max(fitting, key=lambda each: (each.kept, each.id))
        version = newest.version if self.version is None else self.version
        of_version = _by_age(each for each in fitting if each.version == version)
        basis = basis_of(profile, host)
        return Correction(
            benchmarks=tuple(each for each in of_version if each.basis == basis),
            other_versions=tuple(sorted({each.version for each in fitting} - {version})),
            left_out=tuple(each for each in of_version if each.basis != basis),
        )

    def versions(self, gpu: str, server: str) -> list[str]:
        """Versions of a serving engine of which something is kept for a GPU."""
        return sorted(
            {each.version for each in self.benchmarks if (each.gpu, each.server) == (gpu, server)}
        )

    def with_these(self, benchmarks: Iterable[KeptBenchmark]) -> Corrections:
        """With more; one that is there already is replaced."""
        every = {each.id: each for each in (*self.benchmarks, *benchmarks)}
        return Corrections(tuple(every.values()), self.version)


NO_CORRECTION: Final = Correction()
NO_CORRECTIONS: Final = Corrections()
"""Nothing is corrected."""


def basis_of(profile: Profile, host: Host) -> str:
    """A digest of what seconds are predicted with: a GPU's kernel times and an engine's figures."""
    fitted = [(key, each.coefficients) for key, each in sorted(profile.fitted.items())]
    return hashlib.sha256(repr((profile.gpu, fitted, host)).encode()).hexdigest()[:16]


def _by_age(benchmarks: Iterable[KeptBenchmark]) -> list[KeptBenchmark]:
    return sorted(benchmarks, key=lambda each: (each.kept, each.id))


def _geometric_mean(factors: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, factors)) / max(1, len(factors)))


def _left_out_error(factors: Sequence[float]) -> float | None:
    """The largest ratio, less 1, of a factor to the mean of the others; None without others."""
    if len(factors) < 2:
        return None
    logarithms = [math.log(each) for each in factors]
    total, others = math.fsum(logarithms), len(factors) - 1
    worst = max(abs(each - (total - each) / others) for each in logarithms)
    return math.expm1(worst)
