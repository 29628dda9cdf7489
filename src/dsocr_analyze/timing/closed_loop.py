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

How many sequences run decides everything: the rate at which others come by that makes so many run
is known from how long they then take. So this number is halved in on, for many loops at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["LoopPoint", "LoopTimes", "closed_loop"]

_HALVINGS: Final = 60
_LOOPS: Final = 8192
"""Loops that are solved at a time, so that their arrays stay in the cache."""
_CELLS: Final = 1 << 18
"""Likewise loops times sequences."""


@dataclass(frozen=True)
class LoopTimes:
    """What a page takes, in seconds; of many loops at once, arrays `[n]`.

    Attributes:
        prepare: CPU work before it is sent to the GPU.
        workers: Pages that the CPU prepares at a time.
        prefill: Its prefill pass.
        chunks: Passes through the decoder that its prefill is made of and that carry the running
            sequences; 0 where none does.
        steps: Decode steps of a page, on average.
        step: A decode step of 1, 2, ... sequences, `[C]`; several tables of it, `[tables, C]`.
        carried: By how much that many running sequences lengthen a prefill chunk, likewise.
        table: Which of several tables is the loop's.
    """

    prepare: Any
    workers: int
    prefill: Any
    chunks: Any
    steps: Any
    step: Floats
    carried: Floats
    table: Any = 0


@dataclass(frozen=True)
class LoopPoint:
    """A closed loop in balance; seconds are of one page. Floats, or arrays `[n]` of many loops.

    Attributes:
        pages_per_second: Throughput.
        prepare: Until its pixels are there, waiting included.
        wait: For its prefill pass.
        prefill: In it, with what the sequences that it carries take.
        decode: From the first token to the last.
        running: Sequences that are decoded at a time, on average.
    """

    pages_per_second: Any
    prepare: Any
    wait: Any
    prefill: Any
    decode: Any
    running: Any

    @property
    def first_token(self) -> Any:
        """Until the first token."""
        return self.prepare + self.wait + self.prefill

    @property
    def page(self) -> Any:
        """From sending the page to its last token."""
        return self.first_token + self.decode

    def parts(self) -> tuple[Any, ...]:
        """Every figure, in order."""
        return (self.pages_per_second, self.prepare, self.wait, self.prefill, self.decode,
                self.running)  # fmt: skip


def closed_loop(clients: Any, times: LoopTimes) -> LoopPoint:
    """The loop of some clients in balance.

    Args:
        clients: Pages under way at a time, C; an array `[n]` for many loops.
        times: What a page takes; `step` and `carried` reach to C sequences at least.
    """
    import numpy as np

    if np.ndim(clients) == 0:
        loops = _Loops.of(np.array([clients]), times)
        return LoopPoint(*(float(part[0]) for part in loops.balanced().parts()))
    n, width = len(clients), np.shape(times.step)[-1]
    size = max(1, min(_LOOPS, _CELLS // width))
    points = [
        _Loops.of(clients, times, slice(first, first + size)).balanced().parts()
        for first in range(0, n, size)
    ]
    return LoopPoint(*(np.concatenate(part) for part in zip(*points, strict=True)))


class _Loops(NamedTuple):
    """Loops to be solved, `[n]` each; see `LoopTimes`."""

    clients: Floats
    prepare: Floats
    workers: int
    prefill: Floats
    chunks: Floats
    steps: Floats
    step: Floats
    """All tables, one after the other."""
    carried: Floats
    first: NDArray[np.int64]
    """Where the loop's table begins."""
    width: int

    @classmethod
    def of(cls, clients: Any, times: LoopTimes, part: slice = slice(None)) -> _Loops:
        """Those of a part of the clients."""
        import numpy as np

        chosen: Any = np.asarray(clients)[part].astype(float)
        width = np.shape(times.step)[-1]

        def taken(values: Any, dtype: type = float) -> Any:
            spread: Any = np.broadcast_to(np.asarray(values, dtype), np.shape(clients) or (1,))
            return spread[part]

        return cls(
            chosen, taken(times.prepare), times.workers, taken(times.prefill), taken(times.chunks),
            taken(times.steps), np.ravel(times.step), np.ravel(times.carried),
            width * taken(times.table, int), width,
        )  # fmt: skip

    def balanced(self) -> LoopPoint:
        """The loops in balance, `[n]`."""
        import numpy as np

        with np.errstate(all="ignore"):  # what is not possible is told by infinities
            cpu, gpu = self.workers / self.prepare, 1 / self._least_gpu_seconds()
            alone = self.prepare + self.prefill + self.steps * self.step[self.first]
            most = np.minimum(self.clients / alone, np.minimum(cpu, gpu))
            low, high = np.zeros_like(most), np.ones_like(most)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                is_possible = self._is_possible(self._at(middle, most), most)
                low = np.where(is_possible, middle, low)
                high = np.where(is_possible, high, middle)
            found = self._at(low, most)
        # Where the CPU or the GPU can do no more, pages wait there.
        waited = self.clients / found.pages_per_second - found.page
        at_cpu = cpu < gpu
        return LoopPoint(
            found.pages_per_second,
            found.prepare + np.where(at_cpu, waited, 0.0),
            found.wait + np.where(at_cpu, 0.0, waited),
            found.prefill,
            found.decode,
            found.running,
        )

    def _is_possible(self, point: LoopPoint, most: Floats) -> NDArray[np.bool_]:
        """Whether pages take no longer than the clients have for them."""
        rate = point.pages_per_second
        possible: NDArray[np.bool_] = (rate <= most) & (point.page <= self.clients / rate)
        return possible

    def _least_gpu_seconds(self) -> Floats:
        """What a page takes of the GPU at least, however many run together."""
        import numpy as np

        sequences = np.arange(1, self.width + 1)
        each = (self.step.reshape(-1, self.width) / sequences).ravel()
        cells = self.first[:, None] + np.arange(self.width)
        is_run = sequences <= self.clients[:, None]
        least_step = np.where(is_run, each[cells], np.inf).min(axis=1)
        carried = np.where(sequences > 1, self.carried[np.maximum(cells - 1, 0)], 0.0)
        chunks = self.chunks[:, None]
        left = np.maximum(0.0, self.steps[:, None] - chunks * (sequences - 1))
        page = chunks * carried + left * least_step[:, None]
        least: Floats = self.prefill + np.where(is_run, page, np.inf).min(axis=1)
        return least

    def _at(self, part: Floats, most: Floats) -> LoopPoint:
        """What a page takes where `part` of the other clients' sequences run beside its own.

        Where there are none (a single client, pages of one token), where `part` of the most
        pages come by. Seconds are infinite where that is not possible.
        """
        import numpy as np

        beside = part * (self.clients - 1) * (self.steps > 0)
        step, carried, carries = self._read(beside)
        # Every prefill pass of another page costs its time and saves a step for each chunk.
        lost = self.prefill + self.chunks * (carried - step)
        others = beside / (self.steps * step + beside * lost)
        is_alone = (self.clients == 1) | (self.steps == 0)
        rate = np.where(is_alone, part * most, others * self.clients / (self.clients - 1))
        others = rate * (self.clients - 1) / self.clients
        slowed = 1 - others * lost
        decode = np.where((slowed > 0) & (rate >= 0), self.steps * step / slowed, np.inf)
        # Its own pass carries the others that run.
        prefill = self.prefill + self.chunks * carries
        busy = others * prefill
        decoding = np.minimum(1.0, others * decode)
        wait = (busy * prefill / 2 + decoding * (1 - busy) * step / 2) / (1 - busy)
        wait = np.where(busy < 1, wait, np.inf)
        return LoopPoint(rate, self._prepared(rate), wait, prefill, decode, 1 + beside)

    def _prepared(self, rate: Floats) -> Floats:
        """Seconds on the CPU; infinite where the workers fall behind."""
        import numpy as np

        workers = self.workers
        # A page finds all workers busy with others at most for the clients beyond one per worker.
        beyond = np.maximum(0, self.clients - workers) / self.clients
        busy = rate * beyond * self.prepare / workers
        exponent = np.sqrt(2 * (workers + 1)) - 1
        queued = busy**exponent / (workers * (1 - busy))
        seconds: Floats = np.where(busy < 1, self.prepare * (1 + queued / 2), np.inf)
        return seconds

    def _read(self, beside: Floats) -> tuple[Floats, Floats, Floats]:
        """A step and what is carried with so many more than one sequence; carried by one fewer.

        Between whole numbers of sequences as well; no sequence is carried in no time.
        """
        import numpy as np

        whole = np.minimum(beside.astype(np.int64), self.width - 1)
        part = beside - whole
        at = self.first + whole
        after = self.first + np.minimum(whole + 1, self.width - 1)
        step = self.step[at] + part * (self.step[after] - self.step[at])
        here = self.carried[at]
        before = np.where(whole > 0, self.carried[np.maximum(at - 1, 0)], 0.0)
        return step, here + part * (self.carried[after] - here), before + part * (here - before)
