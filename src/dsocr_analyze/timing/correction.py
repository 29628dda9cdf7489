"""Corrections of a server's predictions by benchmarks of that server.

A benchmark gives two factors, measured over predicted: for the first token and for each later one.
They apply to predictions with the kernel times and host figures against which it was measured.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct

from dsocr_analyze.timing import TimeCorrection

if TYPE_CHECKING:
    from dsocr_analyze.hardware.timed_device import Device
    from dsocr_analyze.timing.kernel_seconds import Duration
    from dsocr_analyze.timing.runtimes import Host

LARGEST_FACTOR: Final = 5.0
"""Beyond this factor or its reciprocal, something else was measured."""

UNKNOWN_VERSION: Final = "unknown"
"""The version if neither the file nor the user gives it."""

Factor = Annotated[float, Meta(ge=1 / LARGEST_FACTOR, le=LARGEST_FACTOR)]
Count = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(min_length=1, max_length=300)]


class KeptBenchmark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stored record of one benchmark.

    Attributes:
        format: Format version of this record.
        id: Digest of the result and of what was measured.
        gpu: Name of the GPU.
        server: Name of the serving engine.
        version: The engine's version; `UNKNOWN_VERSION` if nobody gave it.
        architecture: Name of the model's architecture.
        basis: Digest of the figures behind the prediction; see `basis_of`.
        first_token: Measured over predicted seconds until the first token.
        per_token: The same for each later token.
        requests: Number of answered requests.
        concurrency: Requests in flight.
        file: Name of the file.
        kept: When it was stored, in UTC: 2026-01-31T12:00:00Z.
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
    """The correction from benchmarks of one GPU, server, version and model.

    Attributes:
        benchmarks: Oldest first; without any, nothing is corrected.
        other_versions: Other versions with stored benchmarks.
        left_out: Benchmarks of this version with another basis.
    """

    benchmarks: tuple[KeptBenchmark, ...] = ()
    other_versions: tuple[str, ...] = ()
    left_out: tuple[KeptBenchmark, ...] = ()

    @cached_property
    def found(self) -> TimeCorrection | None:
        """The factors, their errors and sources; None without a benchmark."""
        if not self.benchmarks:
            return None
        (first_token, first_token_error), (per_token, per_token_error) = (
            _mean_and_error([getattr(each, figure) for each in self.benchmarks])
            for figure in ("first_token", "per_token")
        )
        return TimeCorrection(
            server_version=self.benchmarks[0].version,
            first_token=first_token,
            per_token=per_token,
            first_token_error=first_token_error,
            per_token_error=per_token_error,
            benchmarks=tuple(each.file for each in self.benchmarks),
            requests=sum(each.requests for each in self.benchmarks),
            kept=self.benchmarks[-1].kept,
        )

    def corrected(
        self, duration: Duration, figure: Literal["first_token", "per_token"]
    ) -> Duration:
        """The duration of a part of the time to the first token, or of decode steps, corrected."""
        if (found := self.found) is None:
            return duration
        return duration.corrected(getattr(found, figure), getattr(found, f"{figure}_error"))

    def sentences(self) -> list[str]:
        """What was corrected, by which benchmarks, and what was left out."""
        said, found = [], self.found
        if found is not None:
            first, rest = found.first_token_error, found.per_token_error
            spread = "" if first is None or rest is None else (
                f"; each is within {100 * first:.2g} % and {100 * rest:.2g} % of the others, which"
                " gives the band"
            )  # fmt: skip
            others = ", ".join(self.other_versions)
            said.append(
                f"corrected for {_subject(self.benchmarks[0])}: the first token takes"
                f" {found.first_token:.3g} times and each later token {found.per_token:.3g} times"
                f" as long as predicted without correction, from {_origin(self.benchmarks)}{spread}"
                + (f"; other versions with benchmarks: {others}" if others else "")
            )
        if self.left_out:
            said.append(
                f"not corrected for {_subject(self.left_out[0])} by {_origin(self.left_out)}:"
                " compared with other kernel times or host figures; compare again"
            )
        return said


def _subject(kept: KeptBenchmark) -> str:
    version = "unknown version" if kept.version == UNKNOWN_VERSION else kept.version
    return f"{kept.gpu} under {kept.server} ({version})"


def _origin(benchmarks: Sequence[KeptBenchmark]) -> str:
    requests = sum(each.requests for each in benchmarks)
    files = ", ".join(dict.fromkeys(each.file for each in benchmarks))
    days = sorted({each.kept[:10] for each in benchmarks})
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    how_many = f"{len(benchmarks)} benchmarks of {requests:,} requests"
    if len(benchmarks) == 1:
        how_many = f"a benchmark of {requests:,} requests, {benchmarks[0].concurrency:,} at a time"
    return f"{how_many} ({files}, kept {when})"


@dataclass(frozen=True)
class Corrections:
    """All stored benchmarks; those of a version are used, by default of the latest's."""

    benchmarks: tuple[KeptBenchmark, ...] = ()
    version: str | None = None

    def of(self, profile: Device, host: Host, architecture: str) -> Correction:
        """The correction for a GPU, a serving engine and a model's architecture."""
        names = (profile.gpu.name, host.name, architecture)
        fitting = sorted(
            (e for e in self.benchmarks if (e.gpu, e.server, e.architecture) == names),
            key=lambda each: (each.kept, each.id),
        )
        if not fitting:
            return Correction()
        version = fitting[-1].version if self.version is None else self.version
        of_version = [each for each in fitting if each.version == version]
        basis = basis_of(profile, host)
        return Correction(
            benchmarks=tuple(each for each in of_version if each.basis == basis),
            other_versions=tuple(sorted({each.version for each in fitting} - {version})),
            left_out=tuple(each for each in of_version if each.basis != basis),
        )


NO_CORRECTIONS: Final = Corrections()


def basis_of(profile: Device, host: Host) -> str:
    """Digest of a GPU's kernel times and an engine's host figures."""
    kinds = profile.under(host.engine).kinds
    fitted = [(key, each.coefficients) for key, each in sorted(kinds.items())]
    return hashlib.sha256(repr((profile.gpu, fitted, host)).encode()).hexdigest()[:16]


def _mean_and_error(factors: Sequence[float]) -> tuple[float, float | None]:
    """Geometric mean, and largest ratio, less 1, of a factor to the mean of any others."""
    logarithms = [*map(math.log, factors)]
    total, others = math.fsum(logarithms), len(factors) - 1
    mean = math.exp(total / len(factors))
    distances = [abs(each - (total - each) / others) for each in logarithms if others]
    return mean, math.expm1(max(distances)) if others else None
