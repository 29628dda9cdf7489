"""Time on one stream: its length, what fills it, and how accurate it is.

A kernel starts once it has been issued and the previous one has ended.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.tape import Size
from dsocr_analyze.timing.kernel_seconds import KernelSeconds, KindError
from dsocr_analyze.timing.prediction import Bound, Interval

__all__ = [
    "HOST_ERROR",
    "Duration",
    "Figure",
    "duration_of_kernels",
    "finish_times",
    "mean_step",
    "stretch_times",
    "total_duration",
]

Floats = NDArray[np.float64]

Figure: TypeAlias = "float | NDArray[np.float64]"
"""A float, or an array with one element per workload."""


HOST_ERROR = KindError("host", 0.25, 0.5, False, True)
"""Accuracy of the host's time; assumed, since hosts differ."""


@dataclass(frozen=True)
class Duration:
    """Time on the stream; figures are floats, or arrays with one element per workload.

    Attributes:
        kinds: Seconds of kernels, by kind.
        memory: The part of these in memory-bound kernels.
        launches: Seconds that the GPU waits for launches.
        host: Seconds that it waits for other work of the host.
        nbytes: Bytes read and written, including those that caches serve.
        least_compute: Seconds that the necessary matrix FLOPs take at peak.
        least_memory: Seconds that the bytes which L2 does not serve take at the bandwidth of device
            memory.
        measured_error: Relative half-width of the band, if benchmarks of a server give it for the
            whole duration; None if it follows from the kinds.
    """

    kinds: Mapping[KindError, Figure] = field(default_factory=dict)
    memory: Figure = 0.0
    launches: Figure = 0.0
    host: Figure = 0.0
    nbytes: Figure = 0.0
    least_compute: Figure = 0.0
    least_memory: Figure = 0.0
    measured_error: float | None = None

    @property
    def device(self) -> Figure:
        """Seconds of kernels."""
        return sum(self.kinds.values(), 0.0)

    @property
    def seconds(self) -> Figure:
        """Total seconds."""
        return self.device + self.launches + self.host

    @property
    def bound(self) -> Bound:
        """What takes most of the time (floats only)."""
        parts: dict[Bound, float] = {
            "compute": float(self.device - self.memory),
            "memory": float(self.memory),
            "launches": float(self.launches),
            "host": float(self.host),
        }
        return max(parts, key=parts.__getitem__)

    @property
    def error(self) -> float:
        """Relative half-width of the band: errors add up within a kind, kinds are independent."""
        if self.measured_error is not None:
            return self.measured_error
        squares = [(kind.p90 * float(seconds)) ** 2 for kind, seconds in self.kinds.items()]
        squares.append((HOST_ERROR.p90 * float(self.launches + self.host)) ** 2)
        seconds = float(self.seconds)
        return math.sqrt(sum(squares)) / seconds if seconds else 0.0

    @property
    def low(self) -> float:
        """Lower end of the band, seconds; errors are ratios, so it never reaches 0."""
        return float(self.seconds) / (1 + self.error)

    @property
    def high(self) -> float:
        """Upper end of the band, seconds."""
        return float(self.seconds) * (1 + self.error)

    def band(self, seconds: float) -> Interval:
        """The band of seconds of which this duration is a part, the rest exact.

        A measured error of the duration applies to all of them, because that is what was measured.
        """
        if self.measured_error is not None:
            return Interval.within(seconds, self.measured_error)
        known = seconds - float(self.seconds)
        return Interval(low=self.low + known, high=self.high + known)

    def times(self, factor: Figure) -> Duration:
        """A duration `factor` times as long, with `factor` times the work."""
        return Duration(
            {kind: factor * seconds for kind, seconds in self.kinds.items()},
            factor * self.memory, factor * self.launches, factor * self.host,
            factor * self.nbytes, factor * self.least_compute, factor * self.least_memory,
            self.measured_error,
        )  # fmt: skip

    def corrected(self, factor: float, error: float | None) -> Duration:
        """The duration with its seconds corrected by benchmarks of a server.

        Args:
            factor: Measured over predicted seconds.
            error: How far the benchmarks disagree, as a ratio; None for a single benchmark.
        """
        duration = self.times(factor)
        # The work does not change with the seconds, unless it cannot be done in them: then the
        # server was spared some of it, such as prompts that it had cached.
        return replace(
            duration,
            nbytes=self.nbytes,
            least_compute=np.minimum(self.least_compute, duration.seconds),
            least_memory=np.minimum(self.least_memory, duration.seconds),
            measured_error=error,
        )

    def plus(self, other: Duration) -> Duration:
        """This duration followed by another."""
        kinds = dict(self.kinds)
        for kind, seconds in other.kinds.items():
            kinds[kind] = kinds[kind] + seconds if kind in kinds else seconds
        return Duration(
            kinds, self.memory + other.memory, self.launches + other.launches,
            self.host + other.host, self.nbytes + other.nbytes,
            self.least_compute + other.least_compute, self.least_memory + other.least_memory,
            _error_of_both(self, other),
        )  # fmt: skip

    def at(self, index: int | NDArray[np.int64]) -> Duration:
        """The duration of the workloads at `index`."""

        def taken(values: Figure) -> Figure:
            return values if isinstance(values, float | int) or not values.ndim else values[index]

        return replace(
            self,
            kinds={kind: taken(seconds) for kind, seconds in self.kinds.items()},
            memory=taken(self.memory), launches=taken(self.launches), host=taken(self.host),
            nbytes=taken(self.nbytes), least_compute=taken(self.least_compute),
            least_memory=taken(self.least_memory),
        )  # fmt: skip


def _error_of_both(duration: Duration, other: Duration) -> float | None:
    """The measured error of two durations: absolute errors add up (floats only, if they differ)."""
    if duration.measured_error == other.measured_error:
        return duration.measured_error
    seconds = float(duration.seconds), float(other.seconds)
    errors = duration.error * seconds[0] + other.error * seconds[1]
    return errors / sum(seconds) if any(seconds) else None


def total_duration(durations: Iterable[Duration]) -> Duration:
    """All durations, one after the other."""
    return functools.reduce(Duration.plus, durations, Duration())


def mean_step(step: Callable[[Size], Duration], first: Size, last: Size) -> Duration:
    """Mean of all decode steps from one cache length to another, by Simpson's rule.

    A step's seconds are nearly linear in its cache length, so the first, middle and last steps
    suffice.

    Args:
        step: From cached tokens to the duration of a decode step.
        first: Cached tokens of the first step.
        last: Cached tokens of the last step.
    """
    ends = step(first).plus(step(last))
    return ends.plus(step((first + last) // 2).times(4)).times(1 / 6)


def duration_of_kernels(
    priced: KernelSeconds, *, launches: Figure = 0.0, host: Figure = 0.0
) -> Duration:
    """Kernels one after the other, plus the time that the GPU waits.

    Args:
        priced: The kernels and their times.
        launches: Seconds of waiting for launches.
        host: Seconds of waiting for other work of the host.
    """
    rows: dict[KindError, list[int]] = {}
    for number, error in enumerate(priced.errors):
        rows.setdefault(error, []).append(number)
    seconds = priced.seconds
    return Duration(
        {error: priced.summed(seconds, numbers) for error, numbers in rows.items()},
        priced.summed(seconds * priced.is_memory), launches, host, priced.summed(priced.moved),
        priced.summed(priced.least_compute), priced.summed(priced.least_memory),
    )  # fmt: skip


# --- kernels and the host that issues them ------------------------------------------------------


def finish_times(issued: Floats, device: Floats) -> Floats:
    """Time at which each kernel ends, `[n]`: `end_i = max(end_(i-1), issued_i) + device_i`.

    Args:
        issued: Time at which each was issued, `[n]`, ascending.
        device: Seconds of each, `[n]`.
    """
    done: Floats = np.cumsum(device)
    ends: Floats = done + np.maximum.accumulate(issued - (done - device))
    return ends


def stretch_times(stretches: Iterable[tuple[Figure, Figure]]) -> Iterator[Figure]:
    """Seconds from each stretch's end to the next one's, with the host issuing ahead of the GPU.

    A stretch is many kernels, issued evenly: their seconds on the GPU, and those of issuing them;
    floats, or arrays with one element per workload. It ends once its kernels have run after the
    previous stretch, and no earlier than its last kernel is issued.
    """
    issued: Figure = 0.0
    end: Figure = 0.0
    for device, host in stretches:
        started = np.maximum(end, issued)
        issued = issued + host
        ended = np.maximum(started + device, issued)
        yield ended - end
        end = ended
