"""Steady state of GPUs under a serving engine: closed loops of clients, many at once.

C clients each send their next page as soon as the previous one returns. A page is prepared on the
CPU, waits for its prefill pass, and is then decoded together with all the other running pages. A
prefill pass runs between two decode steps, and each of its chunks also decodes one token of every
running sequence.

The throughput X is that at which a page takes exactly C / X seconds (Little's law). Mean waits
follow from the arrival rate of the other pages, X (C - 1) / C: prefill passes queue for one server
with constant service time (residual service), pages on the CPU for several such servers (Sakasegawa
1977), and not at all if every client has a worker. Throughput is capped by what the CPU's workers
or the GPU can do; at the cap, pages queue there for the time left by Little's law.

The number of running sequences gives their durations, and those the arrival rate that keeps that
many running, so the solver bisects on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.tape import Size
from dsocr_analyze.timing.correction import NO_CORRECTION, Correction
from dsocr_analyze.timing.duration import Figure
from dsocr_analyze.timing.serving import ServedModel

__all__ = ["LoopPoint", "LoopTimes", "ServedLoads", "ServedPages", "closed_loop", "served_loads"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_HALVINGS: Final = 60
_LOOPS: Final = 8192
"""Loops solved at once, so that their arrays stay in the CPU cache."""
_CELLS: Final = 1 << 18
"""The same limit for loops times sequences."""
_STEPS: Final = 1 << 16
"""Decode steps evaluated at once: numbers of keys times numbers of sequences."""


class LoopTimes(NamedTuple):
    """How long the parts of a page take, in seconds: numbers, or arrays `[n]` for n loops."""

    prepare: Figure
    """CPU work before the page is sent to the GPU."""
    workers: int
    """Pages that the CPU prepares in parallel."""
    prefill: Figure
    chunks: Figure
    """Passes through the decoder in its prefill that also decode the running sequences, or 0."""
    steps: Figure
    """Mean decode steps per page."""
    step: Floats
    """A decode step of 1, 2, ... sequences, `[C]`; `[tables, C]` for several tables."""
    carried: Floats
    """By how much that many running sequences lengthen a prefill chunk, same shape."""
    table: Size = 0
    """Index of the loop's table."""


class LoopPoint(NamedTuple):
    """Closed loops in steady state; arrays `[n]`, seconds are per page."""

    pages_per_second: Floats
    prepare: Floats
    """Until its pixels are ready, waiting included."""
    wait: Floats
    """Of waiting for its prefill pass."""
    prefill: Floats
    """Of that pass, running sequences included."""
    decode: Floats
    """From the first token to the last."""
    running: Floats
    """Mean number of sequences decoded together."""
    gpu_seconds: Floats
    """Least of the GPU, with the best number of sequences up to C: one over its capacity."""

    @property
    def first_token(self) -> Floats:
        """Seconds until the first token."""
        return self.prepare + self.wait + self.prefill

    @property
    def page(self) -> Floats:
        """Seconds from sending the page to its last token."""
        return self.first_token + self.decode


def closed_loop(clients: Integers, times: LoopTimes) -> LoopPoint:
    """Steady states of `[n]` loops; `step` and `carried` cover the most clients at least."""
    width = np.shape(times.step)[-1]
    of_loops = (times.prepare, times.prefill, times.chunks, times.steps)
    columns = np.array(np.broadcast_arrays(clients, *of_loops), float)
    first = np.broadcast_to(width * np.asarray(times.table), clients.shape)
    step, carried = np.ravel(times.step), np.ravel(times.carried)
    size, points = max(1, min(_LOOPS, _CELLS // width)), []
    for begin in range(0, len(clients), size):
        part = slice(begin, begin + size)
        shared = first[part], times.workers, width, step, carried
        loops = _Loops._make((*columns[:, part], *shared))
        points.append(loops.balanced())
    return LoopPoint(*map(np.concatenate, zip(*points, strict=True)))


class _Loops(NamedTuple):
    """Some of the loops, solved together; arrays `[n]`, and all tables concatenated."""

    clients: Floats
    prepare: Floats
    prefill: Floats
    chunks: Floats
    steps: Floats
    first: Integers
    """Where the loop's table begins."""
    workers: int
    width: int
    """Sequences in a table."""
    step: Floats
    carried: Floats

    def balanced(self) -> LoopPoint:
        """The loops in steady state, `[n]`."""
        with np.errstate(all="ignore"):  # infinity marks what is impossible
            gpu_seconds = self._least_gpu_seconds()
            cpu, gpu = self.workers / self.prepare, 1 / gpu_seconds
            alone = self.prepare + self.prefill + self.steps * self.step[self.first]
            most = np.minimum(self.clients / alone, np.minimum(cpu, gpu))
            low, high = np.zeros_like(most), np.ones_like(most)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                point = self._at(middle, most, gpu_seconds)
                rate = point.pages_per_second
                # Within the limit, and pages are fast enough for it.
                is_possible = (rate <= most) & (point.page <= self.clients / rate)
                low = np.where(is_possible, middle, low)
                high = np.where(is_possible, high, middle)
            found = self._at(low, most, gpu_seconds)
        # Pages wait at whichever of the CPU and the GPU is saturated.
        waited = self.clients / found.pages_per_second - found.page
        at_cpu = cpu < gpu
        return found._replace(
            prepare=found.prepare + np.where(at_cpu, waited, 0.0),
            wait=found.wait + np.where(at_cpu, 0.0, waited),
        )

    def _least_gpu_seconds(self) -> Floats:
        """Least GPU seconds per page, over all numbers of sequences running together."""
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

    def _at(self, part: Floats, most: Floats, gpu_seconds: Floats) -> LoopPoint:
        """The loop's state when a fraction `part` of the other clients' sequences are running.

        If there are none (a single client, pages of one token), `part` is the fraction of the
        largest possible rate instead. Seconds are infinite if the state is impossible.
        """
        beside = part * (self.clients - 1) * (self.steps > 0)
        step, carried, carries = self._read(beside)
        # Every prefill pass of another page costs its own time and saves one step per chunk.
        lost = self.prefill + self.chunks * (carried - step)
        others = beside / (self.steps * step + beside * lost)
        is_alone = (self.clients == 1) | (self.steps == 0)
        rate = np.where(is_alone, part * most, others * self.clients / (self.clients - 1))
        others = rate * (self.clients - 1) / self.clients
        slowed = 1 - others * lost
        decode = np.where((slowed > 0) & (rate >= 0), self.steps * step / slowed, np.inf)
        # Its own prefill pass also decodes the other running sequences.
        prefill = self.prefill + self.chunks * carries
        busy = others * prefill
        decoding = np.minimum(1.0, others * decode)
        wait = (busy * prefill / 2 + decoding * (1 - busy) * step / 2) / (1 - busy)
        wait = np.where(busy < 1, wait, np.inf)
        prepared, running = self._prepared(rate), 1 + beside
        return LoopPoint(rate, prepared, wait, prefill, decode, running, gpu_seconds)

    def _prepared(self, rate: Floats) -> Floats:
        """Seconds on the CPU; infinite if the workers fall behind."""
        workers = self.workers
        # Only clients beyond one per worker can find all workers busy.
        beyond = np.maximum(0, self.clients - workers) / self.clients
        busy = rate * beyond * self.prepare / workers
        exponent = np.sqrt(2 * (workers + 1)) - 1
        queued = busy**exponent / (workers * (1 - busy))
        seconds: Floats = np.where(busy < 1, self.prepare * (1 + queued / 2), np.inf)
        return seconds

    def _read(self, beside: Floats) -> tuple[Floats, Floats, Floats]:
        """Seconds of a step and of carrying at 1 + `beside` sequences, and of carrying `beside`.

        Interpolates between whole numbers of sequences; carrying none takes no time.
        """
        whole = np.minimum(beside.astype(np.int64), self.width - 1)
        part = beside - whole
        at = self.first + whole
        after = self.first + np.minimum(whole + 1, self.width - 1)
        step = self.step[at] + part * (self.step[after] - self.step[at])
        here = self.carried[at]
        before = np.where(whole > 0, self.carried[np.maximum(at - 1, 0)], 0.0)
        return step, here + part * (self.carried[after] - here), before + part * (here - before)


# --- the pages of a serving engine --------------------------------------------------------------


class ServedPages(NamedTuple):
    """n pages, each with its own concurrency; arrays `[n]`."""

    prompt: Integers
    """Tokens."""
    prefill: Floats
    """Seconds of the prefill pass."""
    keys: Integers
    """Mean tokens in the cache of a running sequence."""
    steps: Floats
    """Mean decode steps per page."""
    prepare: Floats
    """CPU seconds before the model runs."""
    concurrency: Integers
    """Pages in flight."""
    fitting: Integers
    """Most concurrent pages that fit into memory; the others queue."""


class ServedLoads(NamedTuple):
    """n GPUs in steady state, `[n]`; seconds are per page, its preparation included."""

    pages_per_second: Floats
    first_token: Floats
    page: Floats
    together: Integers
    """Mean sequences per decode step, rounded to a whole number."""
    gpu_seconds: Floats
    """Least seconds of the GPU per page: one over its capacity at this concurrency."""


def served_loads(
    served: ServedModel,
    pages: ServedPages,
    *,
    workers: int,
    is_offline: bool,
    correction: Correction = NO_CORRECTION,
) -> ServedLoads:
    """Closed loop of each page's clients; those that do not fit into memory queue."""
    n = len(pages.keys)
    running = np.maximum(1, np.minimum(pages.concurrency, pages.fitting)).astype(np.int64)
    chunks = np.broadcast_to(served.chunks(pages.prompt) * served.server.mixes_prefill, n)
    point = LoopPoint(*np.zeros((7, n)))
    for rows, keys, table in _by_keys(pages.keys, running):
        step, carried = _steps(served, keys, int(running[rows].max()))
        times = LoopTimes(
            0.0 if is_offline else pages.prepare[rows], workers, pages.prefill[rows],
            chunks[rows], pages.steps[rows], step, carried, table,
        )  # fmt: skip
        for column, values in zip(point, closed_loop(running[rows], times), strict=True):
            column[rows] = values
    rate, gpu_seconds = point.pages_per_second, point.gpu_seconds
    page = pages.concurrency / rate
    first_token = point.first_token + (page - point.page)
    if correction.found is not None:
        first, per_token = correction.found.first_token, correction.found.per_token
        decode = per_token * (page - first_token)
        # Little's law gives the throughput, since each client sends its pages one after the other.
        # The CPU needs at least its seconds per page.
        prepare = np.zeros(n) if is_offline else pages.prepare / workers
        page = np.maximum(first * first_token + decode, pages.concurrency * prepare)
        first_token, rate = page - decode, pages.concurrency / page
        gpu_seconds = first * pages.prefill + per_token * (gpu_seconds - pages.prefill)
    if is_offline:
        first_token, page = first_token + pages.prepare, page + pages.prepare
        rate = 1 / (1 / rate + pages.prepare / workers)
    together = np.maximum(1, np.rint(point.running)).astype(np.int64)
    return ServedLoads(rate, first_token, page, together, gpu_seconds)


def _by_keys(keys: Integers, running: Integers) -> Iterator[tuple[Integers, Integers, Integers]]:
    """Rows in batches of one step table each, distinct keys, and each row's place among those."""
    distinct, place = np.unique(keys, return_inverse=True)
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place, minlength=len(distinct)))
    size = max(1, _STEPS // int(running.max(initial=1)))
    for first in range(0, len(distinct), size):
        begin = int(ends[first - 1]) if first else 0
        last = min(first + size, len(distinct))
        rows = order[begin : int(ends[last - 1])]
        yield rows, distinct[first:last], place[rows] - first


def _steps(served: ServedModel, keys: Integers, most: int) -> tuple[Floats, Floats]:
    """Seconds of a decode step of 1 to `most` sequences and of its attention, `[keys, most]`."""
    sequences = np.arange(1, most + 1)
    duration = served.step(sequences[None, :], keys[:, None])
    attention: Figure = 0.0
    for kind, seconds in duration.kinds.items():
        if kind.kind.startswith("generation_attention"):
            attention = attention + seconds
    shape = (len(keys), most)
    return np.broadcast_to(duration.seconds, shape), np.broadcast_to(attention, shape)
