"""Time on one stream: its length, what fills it, and how accurate it is."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.tape import Size
from dsocr_analyze.timing import Bound, Interval
from dsocr_analyze.timing.kernel_seconds import KernelSeconds, KindError

__all__ = [
    "HOST_ERROR",
    "Duration",
    "Figure",
    "Floats",
    "duration_of_kernels",
    "finish_times",
    "mean_step",
    "stretch_times",
    "total_duration",
]

Floats = NDArray[np.float64]

Figure: TypeAlias = "float | Floats"
"""A float, or an array of workloads."""


HOST_ERROR = KindError("host", 0.25, 0.5, False, True)
"""Accuracy of the host's time, assumed."""


class Duration(NamedTuple):
    """Time on the stream.

    Attributes:
        kinds: Seconds of kernels, by kind.
        memory: The part of these in memory-bound kernels.
        launches: Seconds that the GPU waits for launches.
        host: Seconds that it waits for other work of the host.
        nbytes: Bytes read and written, including those that caches serve.
        least_compute: Seconds of the necessary matrix FLOPs at peak.
        least_memory: Seconds of the bytes that L2 does not serve, at memory's bandwidth.
        measured_error: Relative half-width of the band if a server's benchmarks give it; None if it
            follows from the kinds.
    """

    kinds: Mapping[KindError, Figure] = MappingProxyType({})
    memory: Figure = 0.0
    launches: Figure = 0.0
    host: Figure = 0.0
    nbytes: Figure = 0.0
    least_compute: Figure = 0.0
    least_memory: Figure = 0.0
    measured_error: float | None = None

    @property
    def seconds(self) -> Figure:
        """Total seconds."""
        return sum(self.kinds.values(), 0.0) + self.launches + self.host

    @property
    def bound(self) -> Bound:
        """What takes most of the time (floats only)."""
        parts: dict[Bound, Figure] = {
            "compute": sum(self.kinds.values(), 0.0) - self.memory,
            "memory": self.memory,
            "launches": self.launches,
            "host": self.host,
        }
        return max(parts, key=parts.__getitem__)

    @property
    def error(self) -> float:
        """Relative half-width of the band: kinds are independent, kernels of a kind are not."""
        if self.measured_error is not None:
            return self.measured_error
        parts = (*self.kinds.items(), (HOST_ERROR, self.launches + self.host))
        squares = sum([(kind.p90 * float(part)) ** 2 for kind, part in parts])
        seconds = float(self.seconds)
        return math.sqrt(squares) / seconds if seconds else 0.0

    def band(self, seconds: float | None = None) -> Interval:
        """The band of seconds of which this is a part, by default the whole, and the rest is exact.

        Errors are ratios, so it never reaches 0. A measured error is one of all the seconds.
        """
        own, error = float(self.seconds), self.error
        if seconds is None or self.measured_error is not None:
            return Interval.within(own if seconds is None else seconds, error)
        known = seconds - own
        return Interval(low=own / (1 + error) + known, high=own * (1 + error) + known)

    def mapped(self, change: Callable[[Figure], Figure]) -> Duration:
        """A duration with every figure changed."""
        kinds, *figures, error = self
        changed = dict(zip(kinds, map(change, kinds.values()), strict=True))
        return Duration._make([changed, *map(change, figures), error])

    def times(self, factor: Figure) -> Duration:
        """So many times the duration and its work."""
        return self.mapped(functools.partial(operator.mul, factor))

    def corrected(self, factor: float, error: float | None) -> Duration:
        """The duration with its seconds times a factor, measured over predicted.

        `error` is how far benchmarks disagree, as a ratio; None for a single one.
        """
        duration = self.times(factor)
        # The same work is done, unless it takes longer: then the server was spared some of it.
        return duration._replace(
            nbytes=self.nbytes,
            least_compute=np.minimum(self.least_compute, duration.seconds),
            least_memory=np.minimum(self.least_memory, duration.seconds),
            measured_error=error,
        )

    def plus(self, other: Duration) -> Duration:
        """This duration followed by another."""
        kinds = dict(self.kinds)
        for kind, seconds in other.kinds.items():
            kinds[kind] = kinds.get(kind, 0.0) + seconds
        figures = map(operator.add, self[1:-1], other[1:-1])
        return Duration._make([kinds, *figures, _error_of_both(self, other)])


def _error_of_both(duration: Duration, other: Duration) -> float | None:
    """The measured error of both: absolute errors add up (floats only, if they differ)."""
    if duration.measured_error == other.measured_error:
        return duration.measured_error
    seconds = float(duration.seconds), float(other.seconds)
    errors = duration.error * seconds[0] + other.error * seconds[1]
    return errors / sum(seconds) if any(seconds) else None


def total_duration(durations: Iterable[Duration]) -> Duration:
    """All durations, one after the other."""
    return functools.reduce(Duration.plus, durations, Duration())


def mean_step(step: Callable[[Size], Duration], first: Size, last: Size) -> Duration:
    """Mean of decode steps from one number of cached tokens to another, by Simpson's rule.

    A step's seconds are nearly linear in them.
    """
    ends = step(first).plus(step(last))
    return ends.plus(step((first + last) // 2).times(4)).times(1 / 6)


def duration_of_kernels(
    priced: KernelSeconds, *, launches: Figure = 0.0, host: Figure = 0.0
) -> Duration:
    """Kernels one after the other, and seconds in which the GPU waits."""
    numbers: dict[KindError, list[int]] = {}
    for number, error in enumerate(priced.errors):
        numbers.setdefault(error, []).append(number)
    of_kind = functools.partial(priced.summed, priced.seconds)
    return Duration(
        dict(zip(numbers, map(of_kind, numbers.values()), strict=True)),
        priced.summed(priced.seconds * priced.is_memory), launches, host,
        priced.summed(priced.moved), priced.summed(priced.least_compute),
        priced.summed(priced.least_memory),
    )  # fmt: skip


# --- kernels and the host that issues them ------------------------------------------------------


def finish_times(issued: Floats, device: Floats) -> Floats:
    """When each kernel ends, `[n]`: `end_i = max(end_(i-1), issued_i) + device_i`.

    Times of issue ascend; `device` are the kernels' seconds.
    """
    done: Floats = np.cumsum(device)
    ends: Floats = done + np.maximum.accumulate(issued - (done - device))
    return ends


def stretch_times(stretches: Iterable[tuple[Figure, Figure]]) -> Iterator[Figure]:
    """Seconds from each stretch's end to the next one's, with the host issuing ahead of the GPU.

    A stretch is many kernels, issued evenly: their seconds on the GPU, and those of issuing them.
    It ends when they have run, after the previous stretch, and no earlier than the last is issued.
    """
    issued: Figure = 0.0
    end: Figure = 0.0
    for device, host in stretches:
        started = np.maximum(end, issued)
        issued = issued + host
        ended = np.maximum(started + device, issued)
        yield ended - end
        end = ended
