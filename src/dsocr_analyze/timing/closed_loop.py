"""A closed loop: C clients, each of which sends its next page when the last one has come back.

A page is prepared on the CPU, waits for its prefill pass, and is then decoded together with all the
others that are running. A prefill pass runs between two decode steps, and carries the running
sequences one token further for each of its chunks.

The loop is solved for the throughput X at which the clients' pages take exactly C / X seconds
(Little's law), with mean waits of the other pages' rate X (C - 1) / C: prefill passes wait like
customers of one server with constant service (residual service), pages on the CPU like those of
several such servers (Sakasegawa 1977), not at all where there is a worker for every client. No more
than what the CPU's workers or the GPU can do comes by; where that decides, pages wait there for as
long as Little's law says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["LoopPoint", "LoopTimes", "closed_loop"]

_HALVINGS = 60


@dataclass(frozen=True)
class LoopTimes:
    """What a page takes, in seconds.

    Attributes:
        prepare: CPU work before it is sent to the GPU.
        workers: Pages that the CPU prepares at a time.
        prefill: Its prefill pass.
        chunks: Passes through the decoder that its prefill is made of.
        steps: Decode steps of a page, on average.
        step: A decode step of 1, 2, ... sequences, `[C]`.
        carried: By how much that many running sequences lengthen a prefill chunk, `[C]`.
    """

    prepare: float
    workers: int
    prefill: float
    chunks: int
    steps: float
    step: NDArray[np.float64]
    carried: NDArray[np.float64]


@dataclass(frozen=True)
class LoopPoint:
    """A closed loop in balance; seconds are of one page.

    Attributes:
        pages_per_second: Throughput.
        prepare: Until its pixels are there, waiting included.
        wait: For its prefill pass.
        prefill: In it, with what the sequences that it carries take.
        decode: From the first token to the last.
        running: Sequences that are decoded at a time, on average.
    """

    pages_per_second: float
    prepare: float
    wait: float
    prefill: float
    decode: float
    running: float

    @property
    def first_token(self) -> float:
        """Until the first token."""
        return self.prepare + self.wait + self.prefill

    @property
    def page(self) -> float:
        """From sending the page to its last token."""
        return self.first_token + self.decode


def closed_loop(clients: int, times: LoopTimes) -> LoopPoint:
    """The loop of some clients in balance.

    Args:
        clients: Pages under way at a time, C.
        times: What a page takes; `step` and `carried` reach to C sequences at least.
    """
    alone = times.prepare + times.prefill + times.steps * float(times.step[0])
    cpu = times.workers / times.prepare if times.prepare else math.inf
    gpu = 1 / _least_gpu_seconds(clients, times)
    low, high = 0.0, min(clients / alone, cpu, gpu)
    found = _at(high, clients, times)
    if found is None or found.page > clients / high:
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            point = _at(middle, clients, times)
            if point is not None and point.page <= clients / middle:
                low = middle
            else:
                high = middle
        found = _at(low, clients, times)
    assert found is not None  # a loop slow enough is always possible
    waited = clients / found.pages_per_second - found.page
    if cpu < gpu:
        return replace(found, prepare=found.prepare + waited)
    return replace(found, wait=found.wait + waited)


def _least_gpu_seconds(clients: int, times: LoopTimes) -> float:
    """What a page takes of the GPU at least, however many run together."""
    import numpy as np

    sequences: Any = np.arange(1, clients + 1)
    least_step = float((times.step[:clients] / sequences).min())
    carried: Any = np.concatenate([[0.0], times.carried[: clients - 1]])
    steps_left = np.maximum(0.0, times.steps - times.chunks * np.arange(clients))
    return times.prefill + float((times.chunks * carried + steps_left * least_step).min())


def _at(rate: float, clients: int, times: LoopTimes) -> LoopPoint | None:
    """What a page takes if `rate` pages come by per second; None where that is too many."""
    others = rate * (clients - 1) / clients
    prepare = _prepared(rate, clients, times)
    decode, running = _decoded(others, times)
    if prepare is None or decode is None:
        return None
    # Its own pass carries the others that run.
    prefill = times.prefill + times.chunks * _carried(times, running - 1)
    busy = others * prefill
    if busy >= 1:
        return None
    step = _read(times.step, running)
    decoding = min(1.0, others * decode)
    wait = (busy * prefill / 2 + decoding * (1 - busy) * step / 2) / (1 - busy)
    return LoopPoint(rate, prepare, wait, prefill, decode, running)


def _prepared(rate: float, clients: int, times: LoopTimes) -> float | None:
    """Seconds on the CPU; None where the workers fall behind."""
    workers = times.workers
    # A page finds all workers busy with others at most for the clients beyond one per worker.
    busy = rate * max(0, clients - workers) / clients * times.prepare / workers
    if busy >= 1:
        return None
    queued = math.pow(busy, math.sqrt(2 * (workers + 1)) - 1) / (workers * (1 - busy))
    return times.prepare * (1 + queued / 2)


def _decoded(others: float, times: LoopTimes) -> tuple[float | None, float]:
    """Seconds from first to last token, and how many sequences run meanwhile."""
    running = 1.0
    decode: float | None = 0.0
    for _ in range(_HALVINGS):
        step, carried = _read(times.step, running), _read(times.carried, running)
        # Every prefill pass of another page costs its time and saves a step for each chunk.
        lost = times.prefill + times.chunks * (carried - step)
        slowed = 1 - others * lost
        if slowed <= 0:
            return None, running
        decode = times.steps * step / slowed
        seen = min(1.0 + others * decode, float(len(times.step)))
        if abs(seen - running) < 1e-9:
            break
        running = (running + seen) / 2
    return decode, running


def _carried(times: LoopTimes, sequences: float) -> float:
    """By how much a number of sequences, 0 among them, lengthens a prefill chunk."""
    return min(sequences, 1.0) * _read(times.carried, sequences)


def _read(values: NDArray[np.float64], sequences: float) -> float:
    """The value for a number of sequences, between whole ones as well."""
    import numpy as np

    at: Any = np.interp(sequences, np.arange(1, len(values) + 1), values)
    return float(at)
