"""Serving engines: a page's prefill pass, a step of all running sequences, and steady states.

In a closed loop C clients each send their next page as soon as the previous one returns. A page is
prepared on the CPU, waits for its prefill pass, which runs between two decode steps, and is decoded
with all other running pages; each chunk of a pass also decodes a token of every running sequence.

At throughput X a page takes C / X seconds (Little's law). Others arrive at X (C - 1) / C: prefill
passes queue for one server (residual service), pages on the CPU for several (Sakasegawa 1977), but
never if every client has a worker. CPU and GPU cap X; at the cap, pages queue there for the time
left. Running sequences give durations and those the arrivals that keep so many running: the solver
bisects on their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.architectures.architecture import Architecture, ModelDimensions
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.hardware.timed_device import STORED_BITS, Device
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.tape import Size, ceil_div, maximum, minimum
from dsocr_analyze.timing.kernel_seconds import Duration, Figure, Floats, kernel_seconds
from dsocr_analyze.timing.runtimes import NATIVE, Host, Precision
from dsocr_analyze.workload import PageWorkload, ViewBatch

__all__ = ["Integers", "LoopPoint", "LoopTimes", "ServedModel", "closed_loop", "stretch_times"]

Integers = NDArray[np.int64]

_US: Final = 1e-6
_CALLS: Final = attrgetter("calls")


@dataclass
class ServedModel:
    """A model on a GPU under a serving engine, with that engine's kernels.

    Raises:
        ConfigError: The engine is not modelled for these dimensions.
        DeviceError: The GPU lacks a type.
    """

    architecture: Architecture
    dimensions: ModelDimensions
    dtype: Dtype
    device: Device
    server: Host
    precision: Precision = NATIVE

    def __post_init__(self) -> None:
        self.architecture.forms.served.check(self.dimensions)
        self.device = self.device.under(self.server.engine)
        self.cache_bits = STORED_BITS.get(self.precision.cache or "", 8 * self.dtype.nbytes)
        self._vision_of = cache(self._vision)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all parameters; quantized ones have a 16-bit scale per 128 weights."""
        params = self.architecture.forms.parameter_count(self.dimensions)
        if self.precision.weights is None:
            return params * self.dtype.nbytes
        quantized = self.architecture.forms.served.quantizable_params(self.dimensions)
        packed = quantized * STORED_BITS[self.precision.weights] // 8 + quantized // 64
        return (params - quantized) * self.dtype.nbytes + packed

    def prompt_kernels(self, T: Size, visual: Size) -> tuple[Kernel, ...]:
        """Kernels of one chunk of a prompt, with all chunks taken as equal; see `chunks`."""
        chunks = self.chunks(T)
        tokens = ceil_div(T, chunks)
        keys = ceil_div(tokens * (chunks + 1), 2)
        visual = ceil_div(visual, chunks)
        return self.architecture.forms.served.prompt(
            tokens, keys, visual, self.dimensions, self.dtype, self.cache_bits
        )

    def chunks(self, T: Size) -> Size:
        """Passes through the decoder for a prompt of T tokens."""
        return ceil_div(T, self.server.chunk_tokens)

    def step_kernels(self, B: Size, K: Size) -> tuple[Kernel, ...]:
        """Kernels of one decode step of B sequences over K keys each."""
        return self.architecture.forms.served.step(
            B, K, self.dimensions, self.dtype, self.cache_bits
        )

    def prefill(self, views: tuple[ViewBatch, ...], T: Size, visual: Size) -> dict[str, Duration]:
        """The stages of a page's prefill pass; T may be an array of prompts' tokens."""
        chunks, kernels = self.chunks(T), self.prompt_kernels(T, visual)
        priced = kernel_seconds(kernels, self.device, self.precision)
        stage = next(each.name for each in self.architecture.stages if each.role == "prefill")
        host = chunks * sum(map(_CALLS, kernels)) * self.server.compiled_launch_us * _US
        parts = [*self._vision_of(views), (stage, priced.duration().times(chunks), host)]
        durations: dict[str, Duration] = {}
        times = stretch_times([(each.seconds, issued) for _, each, issued in parts])
        for (name, duration, _), seconds in zip(parts, times, strict=True):
            waited = duration.plus(Duration(launches=np.maximum(seconds - duration.seconds, 0.0)))
            durations[name] = durations[name].plus(waited) if name in durations else waited
        return durations

    def _vision(self, views: tuple[ViewBatch, ...]) -> list[tuple[str, Duration, float]]:
        """Stage, GPU time and launch seconds of the parts of vision calls."""
        served, between = self.architecture.forms.served, self.weights_bytes
        first = self.architecture.stages[0].name
        parts = [(first, Duration(host=self.server.received_seconds(views)), 0.0)]
        for view in views:
            kernels_of = served.views(view.count, view.resolution, self.dimensions, self.dtype)
            for stage, kernels in kernels_of.items():
                priced = kernel_seconds(kernels, self.device, weights_between=between)
                host = sum(map(_CALLS, kernels)) * self.server.launch_us * _US
                parts.append((stage, priced.duration(), host))
        return parts

    def step(self, B: Size, K: Size) -> Duration:
        """A decode step of B sequences over K keys each; arrays broadcast.

        The host prepares the next step while the GPU computes; the slower one sets the pace.
        """
        server = self.server
        priced = kernel_seconds(self.step_kernels(B, K), self.device, self.precision)
        duration = priced.duration(launches=server.graph_us * _US)
        hidden = (server.hidden_step_us + server.hidden_sequence_us * B) * _US
        serial = (server.step_us + server.sequence_us * B) * _US
        return duration.plus(Duration(host=np.maximum(hidden - duration.seconds, 0.0) + serial))

    def keys(self, T: Size, generated: Size) -> Size:
        """Keys after T prompt tokens and `generated` more.

        The window bounds their average like one length: steps are up to 1 % too long.
        """
        window = self.dimensions.decoder.sliding_window
        return T + (generated if window is None else minimum(generated, window))

    def fixed_bytes(self, workload: PageWorkload) -> Size:
        """Bytes of the weights and a prefill pass, in chunks; `text_tokens` may be an array."""
        served = self.architecture.forms.served
        text_tokens = minimum(
            workload.text_tokens, self.server.chunk_tokens - workload.visual_tokens
        )
        chunk = replace(workload, text_tokens=maximum(1, text_tokens))
        activations = served.activation_bytes(self.dimensions, chunk, self.dtype)
        return self.weights_bytes + activations + served.inputs_bytes(workload, self.dtype)

    def page_bytes(self, T: Size, longest: Size) -> Size:
        """Bytes of the cache of a page with T prompt tokens and `longest` generated ones."""
        elements = self.architecture.forms.served.cache_elements(self.dimensions)
        return self.keys(T, longest - 1) * (elements * self.cache_bits // 8)

    def fitting(self, fixed: Size, page: Size, reserved: float) -> Integers:
        """Most pages of so many bytes beside fixed and reserved memory."""
        free = self.device.gpu.memory_bytes * (1 - reserved) - fixed
        pages: Integers = np.maximum(free // page, 0.0).astype(np.int64)
        return pages


def stretch_times(stretches: Iterable[tuple[Figure, Figure]]) -> Iterator[Figure]:
    """Seconds from each stretch's end to the next one's, with the host issuing ahead of the GPU.

    A stretch is many kernels: their seconds on the GPU, and those of issuing them evenly. It ends
    when they have run, no earlier than the last is issued.
    """
    issued: Figure = 0.0
    end: Figure = 0.0
    for device, host in stretches:
        started = np.maximum(end, issued)
        issued = issued + host
        ended = np.maximum(started + device, issued)
        yield ended - end
        end = ended


# --- closed loops -----------------------------------------------------------------------------


_HALVINGS: Final = 60
_LOOPS: Final = 8192
"""Loops solved at once, so that their arrays stay in the CPU cache."""
_CELLS: Final = 1 << 18
"""The same limit for loops times sequences."""


class LoopTimes(NamedTuple):
    """Seconds of a page's parts: numbers, or arrays `[n]` for n loops."""

    prepare: Figure
    """On the CPU before the page is sent to the GPU."""
    workers: int
    """Pages that the CPU prepares in parallel."""
    prefill: Figure
    chunks: Figure
    """Passes in its prefill that also decode the running sequences, or 0."""
    steps: Figure
    """Mean decode steps per page."""
    step: Floats
    """A decode step of 1, 2, ... sequences, `[C]` or `[tables, C]`."""
    carried: Floats
    """What that many running sequences add to a prefill chunk, same shape."""
    table: Size = 0
    """The loop's table."""


class LoopPoint(NamedTuple):
    """Closed loops in steady state; arrays `[n]`, seconds are per page."""

    pages_per_second: Floats
    first_token: Floats
    """From sending the page to its first token, waiting included."""
    decode: Floats
    """From the first token to the last."""
    running: Floats
    """Mean number of sequences decoded together."""
    gpu_seconds: Floats
    """One over the GPU's capacity, with the best number of sequences up to C."""

    @property
    def page(self) -> Floats:
        """Seconds from sending the page to its last token."""
        return self.first_token + self.decode


def closed_loop(clients: Integers, times: LoopTimes) -> LoopPoint:
    """Steady states of `[n]` loops; `step` and `carried` cover the most clients at least."""
    tables = map(np.ascontiguousarray, (times.step, times.carried))
    step, carried = map(np.atleast_2d, tables)
    of_loops = (times.prepare, times.prefill, times.chunks, times.steps, times.table)
    columns = np.broadcast_arrays(clients.astype(np.float64), *of_loops)
    size, points = max(1, min(_LOOPS, _CELLS // step.shape[1])), []
    for begin in range(0, len(clients), size):
        some, prepare, prefill, chunks, steps, table = (
            each[begin : begin + size] for each in columns
        )
        points.append(_balanced(some, LoopTimes(
            prepare, times.workers, prefill, chunks, steps, step, carried, table
        )))  # fmt: skip
    return LoopPoint(*map(np.concatenate, zip(*points, strict=True)))


def _balanced(clients: Floats, times: LoopTimes) -> LoopPoint:
    """Some loops, solved together; all of their times are arrays, `[n]` and `[tables, C]`."""
    with np.errstate(all="ignore"):  # infinity marks what is impossible
        gpu_seconds = _least_gpu_seconds(clients, times)
        capacity = np.minimum(times.workers / times.prepare, 1 / gpu_seconds)
        alone = times.prepare + times.prefill + times.steps * times.step[times.table, 0]
        most = np.minimum(clients / alone, capacity)
        low, high = np.zeros_like(most), np.ones_like(most)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            point = _point_at(middle, most, gpu_seconds, clients, times)
            rate = point.pages_per_second
            # Within the limit, and pages are fast enough for it.
            is_possible = (rate <= most) & (point.page <= clients / rate)
            low = np.where(is_possible, middle, low)
            high = np.where(is_possible, high, middle)
        found = _point_at(low, most, gpu_seconds, clients, times)
    # Before its first token, a page waits at whichever of the CPU and the GPU is saturated.
    return found._replace(first_token=clients / found.pages_per_second - found.decode)


def _least_gpu_seconds(clients: Floats, times: LoopTimes) -> Floats:
    """Least GPU seconds per page, over all numbers of sequences running together."""
    sequences = np.arange(1, times.step.shape[1] + 1)
    is_run = sequences <= clients[:, None]
    each = (times.step / sequences)[times.table]
    least_step = np.where(is_run, each, np.inf).min(axis=1)
    carried = np.insert(times.carried[:, :-1], 0, 0.0, axis=1)[times.table]
    chunks = np.asarray(times.chunks)[:, None]
    left = np.maximum(0.0, np.asarray(times.steps)[:, None] - chunks * (sequences - 1))
    page = chunks * carried + left * least_step[:, None]
    least: Floats = times.prefill + np.where(is_run, page, np.inf).min(axis=1)
    return least


def _point_at(
    part: Floats, most: Floats, gpu_seconds: Floats, clients: Floats, times: LoopTimes
) -> LoopPoint:
    """The loops' state when a fraction `part` of the other clients' sequences are running.

    If there are none, it is a fraction of the largest rate. Impossible seconds are infinite.
    """
    beside = part * (clients - 1) * (times.steps > 0)
    step, carried, carries = _read(beside, times)
    # Every prefill pass of another page costs its own time and saves one step per chunk.
    lost = times.prefill + times.chunks * (carried - step)
    others = beside / (times.steps * step + beside * lost)
    is_alone = (clients == 1) | (times.steps == 0)
    rate = np.where(is_alone, part * most, others * clients / (clients - 1))
    others = rate * (clients - 1) / clients
    slowed = 1 - others * lost
    decode = np.where((slowed > 0) & (rate >= 0), times.steps * step / slowed, np.inf)
    # Its own prefill pass also decodes the other running sequences.
    prefill = times.prefill + times.chunks * carries
    busy = others * prefill
    decoding = np.minimum(1.0, others * decode)
    wait = (busy * prefill / 2 + decoding * (1 - busy) * step / 2) / (1 - busy)
    wait = np.where(busy < 1, wait, np.inf)
    # Only clients beyond one per worker can find all workers busy.
    workers, prepare = times.workers, times.prepare
    beyond = np.maximum(0, clients - workers) / clients
    occupied = rate * beyond * prepare / workers
    queued = occupied ** (np.sqrt(2 * (workers + 1)) - 1) / (workers * (1 - occupied))
    prepared = np.where(occupied < 1, prepare * (1 + queued / 2), np.inf)
    return LoopPoint(rate, prepared + wait + prefill, decode, 1 + beside, gpu_seconds)


def _read(beside: Floats, times: LoopTimes) -> tuple[Floats, Floats, Floats]:
    """Seconds of a step and of carrying at 1 + `beside` sequences, and of carrying `beside`.

    Interpolates between whole numbers of sequences; carrying none takes no time.
    """
    width = times.step.shape[1]
    whole = np.minimum(beside.astype(np.int64), width - 1)
    part, first = beside - whole, times.table * width
    at, after = first + whole, first + np.minimum(whole + 1, width - 1)
    step, here = times.step.take(at), times.carried.take(at)
    before = np.where(whole > 0, times.carried.take(np.maximum(at - 1, 0)), 0.0)
    return (
        step + part * (times.step.take(after) - step),
        here + part * (times.carried.take(after) - here),
        before + part * (here - before),
    )
