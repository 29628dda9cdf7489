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

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.hardware.machine import Floats
from dsocr_analyze.hardware.timed_device import STORED_BITS, Device
from dsocr_analyze.kernels import Dtype, Kernel
from dsocr_analyze.tape import Size, ceil_div, maximum, minimum
from dsocr_analyze.timing.kernel_seconds import Duration, Figure, kernel_seconds
from dsocr_analyze.timing.runtimes import NATIVE, Host, Precision
from dsocr_analyze.workload import PageWorkload, ViewBatch

Integers = NDArray[np.int64]

_US: Final = 1e-6
_CALLS: Final = attrgetter("calls")


@dataclass(frozen=True)
class TimedModel:
    """A model and its device; serving uses `flash_attention` in any case.

    Attributes:
        dimensions: Its `ModelDimensions`; None of a model that is only traced.
    """

    architecture: Architecture
    dimensions: Any
    dtype: Dtype
    flash_attention: bool
    device: Device


@dataclass
class ServedModel:
    """A model under a serving engine, with that engine's kernels.

    Attributes:
        token_bytes: Of a token's keys and values.

    Raises:
        ConfigError: The engine is not modelled for the model's dimensions.
    """

    model: TimedModel
    server: Host
    precision: Precision = NATIVE

    def __post_init__(self) -> None:
        model = self.model
        self._forms, self._sizes = model.architecture.forms.served, (model.dimensions, model.dtype)
        self._forms.check(model.dimensions)
        self.device = model.device.under(self.server.engine)
        self.cache_bits = STORED_BITS.get(self.precision.cache or "", 8 * model.dtype.nbytes)
        self._vision_of, self._fixed_of = cache(self._vision), cache(self.fixed_bytes)
        self._steps: tuple[bytes, Floats, Floats] = b"", np.empty((0, 0)), np.empty((0, 0))
        elements = self._forms.cache_elements(model.dimensions)
        self.token_bytes = elements * self.cache_bits // 8
        self._prompts: dict[tuple[PageWorkload, bytes], tuple[Mapping[str, Duration], Size]] = {}

    @cached_property
    def weights_bytes(self) -> int:
        """Bytes of all parameters; quantized ones have a 16-bit scale per 128 weights."""
        dimensions, dtype = self._sizes
        params = self.model.architecture.forms.parameter_count(dimensions)
        if self.precision.weights is None:
            return params * dtype.nbytes
        quantized = self._forms.quantizable_params(dimensions)
        packed = quantized * STORED_BITS[self.precision.weights] // 8 + quantized // 64
        return (params - quantized) * dtype.nbytes + packed

    def prompt_kernels(self, T: Size, visual: Size) -> tuple[Kernel, ...]:
        """Kernels of one chunk of a prompt, with all chunks taken as equal; see `chunks`."""
        chunks = self.chunks(T)
        tokens = ceil_div(T, chunks)
        keys = ceil_div(tokens * (chunks + 1), 2)
        visual = ceil_div(visual, chunks)
        return self._forms.prompt(tokens, keys, visual, *self._sizes, self.cache_bits)

    def chunks(self, T: Size) -> Size:
        """Passes through the decoder for a prompt of T tokens."""
        return ceil_div(T, self.server.chunk_tokens)

    def step_kernels(self, B: Size, K: Size) -> tuple[Kernel, ...]:
        """Kernels of one decode step of B sequences over K keys each."""
        return self._forms.step(B, K, *self._sizes, self.cache_bits)

    def prompts(
        self, page: PageWorkload, text_tokens: Integers, *, is_single: bool
    ) -> tuple[Mapping[str, Duration], Size]:
        """`prefill` and `fixed_bytes` of pages alike but for their text tokens, `[n]`; kept."""
        key = page, text_tokens.tobytes()
        if key not in self._prompts:
            views, visual = page.prompt_pages * page.views, page.visual_tokens
            # Memory by length is read from a table, which takes longer than a single length.
            text: Size = int(text_tokens[0]) if is_single else text_tokens
            self._prompts[key] = (
                self.prefill(views, visual + text_tokens, visual),
                self.fixed_bytes(replace(page, text_tokens=text, batch_size=1)),
            )
        return self._prompts[key]

    def prefill(self, views: tuple[ViewBatch, ...], T: Size, visual: Size) -> dict[str, Duration]:
        """The stages of a page's prefill pass; T may be an array of prompts' tokens.

        The GPU's wait for the views is part of the last one.
        """
        chunks, kernels = self.chunks(T), self.prompt_kernels(T, visual)
        priced = kernel_seconds(kernels, self.device, self.precision)
        stage = next(each.name for each in self.model.architecture.stages if each.role == "prefill")
        host = chunks * sum(map(_CALLS, kernels)) * self.server.compiled_launch_us * _US
        received = Duration(host=self.server.received_seconds(views))
        prompt = priced.duration().times(chunks).plus(received)
        parts = [*self._vision_of(views), (stage, prompt, host)]
        durations: dict[str, Duration] = {}
        times = stretch_times([(each.seconds, issued) for _, each, issued in parts])
        for (name, duration, _), seconds in zip(parts, times, strict=True):
            waited = duration.plus(Duration(launches=np.maximum(seconds - duration.seconds, 0.0)))
            durations[name] = durations[name].plus(waited) if name in durations else waited
        return durations

    def _vision(self, views: tuple[ViewBatch, ...]) -> list[tuple[str, Duration, float]]:
        """Stage, GPU time and launch seconds of the parts of vision calls."""
        launched = [
            each for view in views for each in self._forms.views(view, *self._sizes).items()
        ]
        every = [*chain.from_iterable(map(itemgetter(1), launched))]
        priced = kernel_seconds(every, self.device, weights_between=self.weights_bytes)
        parts, end = [], 0
        for stage, kernels in launched:
            start, end = end, end + len(kernels)
            host = sum(map(_CALLS, kernels)) * self.server.launch_us * _US
            parts.append((stage, priced.between(start, end).duration(), host))
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

    def steps(self, keys: Integers, sequences: Integers) -> tuple[Floats, Floats]:
        """Seconds of steps of some `running_counts` and of their attention, `[keys, sequences]`.

        They are kept for fewer sequences over the same keys.
        """
        kept, seconds, attention = self._steps
        if kept != keys.tobytes() or seconds.shape[1] < len(sequences):
            duration = self.step(np.maximum(1, sequences)[None, :], keys[:, None])
            of_attention = sum(
                each
                for kind, each in duration.kinds.items()
                if kind.kind.startswith("generation_attention")
            )
            seconds = np.asarray(duration.seconds)
            attention = np.asarray(of_attention * (sequences > 0), np.float64)
            self._steps = keys.tobytes(), seconds, attention
        return seconds[:, : len(sequences)], attention[:, : len(sequences)]

    def keys(self, T: Size, generated: Size) -> Size:
        """Keys after T prompt tokens and `generated` more.

        The window bounds their average like one length: steps are up to 1 % too long.
        """
        window = self.model.dimensions.decoder.sliding_window
        return T + (generated if window is None else minimum(generated, window))

    def fixed_bytes(self, workload: PageWorkload) -> Size:
        """Bytes of the weights and a prefill pass, in chunks; `text_tokens` may be an array."""
        dimensions, dtype = self._sizes
        text_tokens = minimum(
            workload.text_tokens, self.server.chunk_tokens - workload.visual_tokens
        )
        chunk = replace(workload, text_tokens=maximum(1, text_tokens))
        activations = self._forms.activation_bytes(dimensions, chunk, dtype)
        return self.weights_bytes + activations + self._forms.model.inputs_bytes(workload, dtype)

    def page_bytes(self, T: Size, longest: Size) -> Size:
        """Bytes of the cache of a page with T prompt tokens and `longest` generated ones."""
        return self.keys(T, longest - 1) * self.token_bytes

    def capacity(
        self, page: PageWorkload, fixed: Size, T: Size, longest: Size, reserved: float
    ) -> tuple[Size, Size]:
        """Tokens of the cache beside so many fixed bytes, and the pages at a time it allows.

        vLLM's share of the memory has room for a pass of a whole chunk; SGLang's has weights and
        cache alone. Both give out blocks (`_report_kv_cache_config`, `profile_max_num_token`).
        """
        server, memory = self.server, self.device.gpu.memory_bytes
        usable = int(memory * (1 - reserved))
        if server.engine == "sglang":
            free = minimum(usable - self.weights_bytes, memory - fixed)
        else:
            text = max(1, server.chunk_tokens - page.visual_tokens)
            chunk = self._fixed_of(replace(page, text_tokens=text, batch_size=1))
            free = usable - maximum(fixed, chunk)
        blocks = maximum(free, 0) // (server.block_tokens * self.token_bytes)
        pages = blocks // ceil_div(self.keys(T, longest - 1), server.block_tokens)
        most = server.most_sequences
        return blocks * server.block_tokens, pages if most is None else minimum(pages, most)


def stretch_times(stretches: Iterable[tuple[Figure, Figure]]) -> Iterator[Figure]:
    """Seconds from each stretch's end to the next one's, with the host issuing ahead of the GPU.

    A stretch is many kernels: their seconds on the GPU, and those of issuing them evenly. It ends
    when they have run, no earlier than the last is issued.
    """
    issued: Figure = 0.0
    end: Figure = 0.0
    for device, host in stretches:
        issued = issued + host
        ended = np.maximum(end + device, issued)
        yield ended - end
        end = ended


# --- closed loops -----------------------------------------------------------------------------


_HALVINGS: Final = 28
"""Of a ratio; finer than steps are known by far."""
_FEW_LOOPS: Final = 64
"""For so few, numpy tries 15 fractions in hardly more time than one."""
_FEWEST: Final = 1e-12
"""Fraction of the other clients' sequences that run if hardly any does."""


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
    sequences: Integers
    """Ascending from 0, to the most clients at least, `[S]`."""
    step: Floats
    """A decode step of so many sequences, `[S]` or `[tables, S]`; the first is not used."""
    carried: Floats
    """What so many running sequences add to a prefill chunk, same shape; the first is 0."""
    table: Size = 0
    """The loop's table."""

    def at(self, running: Floats, *values: Floats) -> list[Floats]:
        """`step` or `carried` of `as_columns`, between numbers of sequences: `[n, m]` each."""
        before = self.sequences.searchsorted(running, side="right") - 1
        before = np.minimum(before, len(self.sequences) - 2)
        low = self.sequences.take(before)
        share = (running - low) / (self.sequences.take(before + 1) - low)
        place = self.table * len(self.sequences) + before
        ends = [(each.take(place), each.take(place + 1)) for each in values]
        return [first + share * (last - first) for first, last in ends]

    def as_columns(self) -> Self:
        """The same, `[n, 1]`, beside which several states of a loop are tried at once."""
        of_loops = ("prepare", "prefill", "chunks", "steps", "table")
        changed: dict[str, Any] = {
            name: np.reshape(getattr(self, name), (-1, 1)) for name in of_loops
        }
        changed |= {name: np.ravel(getattr(self, name)) for name in ("step", "carried")}
        return self._replace(**changed)


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


def running_counts(most: int) -> Integers:
    """Numbers of sequences at which steps are priced: 0, all up to 8, then four an octave."""
    octaves = np.arange(3, 0.25 + math.log2(max(8, most)), 0.25)
    return np.concatenate([np.arange(8), np.rint(2**octaves).astype(np.int64)])


def closed_loop(clients: Integers, times: LoopTimes) -> LoopPoint:
    """Steady states of `[n]` loops."""
    clients, times = clients[:, None], times.as_columns()
    with np.errstate(all="ignore"):  # infinity marks what is impossible
        gpu_seconds = least_gpu_seconds(clients, times)
        prepared = times.workers / np.asarray(times.prepare)
        [first_step] = times.at(np.ones(clients.shape), times.step)
        alone = times.prepare + times.prefill + times.steps * first_step
        most = np.minimum(clients / alone, np.minimum(prepared, 1 / gpu_seconds))

        def is_possible(part: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
            """Whether the CPU prepares so many pages, and pages are fast enough for so many."""
            point = _point_at(part, most, gpu_seconds, clients, times)
            rate = point.pages_per_second
            return rate <= prepared, point.page <= clients / rate

        # Steps have kinks. No more sequences run than the CPU can feed; of numbers for which pages
        # are fast enough, it is the largest.
        knots = np.minimum(1.0, (times.sequences[2:] - 1) / np.maximum(1, clients - 1))
        feeds, is_fast = is_possible(knots)
        holds = np.logical_and.accumulate(feeds, axis=1) & is_fast
        last = (holds * np.arange(1, 1 + knots.shape[1])).max(axis=1, keepdims=True, initial=0)
        fewest, ones = np.full(clients.shape, _FEWEST), np.ones(clients.shape)
        low, high = _pair_at(last, np.concatenate([fewest, knots, ones], axis=1))
        at_once = 4 if len(clients) <= _FEW_LOOPS else 1
        shares = np.arange(2**at_once + 1) / 2**at_once
        for _ in range(_HALVINGS // at_once):
            tried = low * (high / low) ** shares
            holds = np.logical_and(*is_possible(tried[:, 1:-1]))
            last = np.logical_and.accumulate(holds, axis=1).sum(axis=1, keepdims=True)
            low, high = _pair_at(last, tried)
        part = np.where(clients == 1, 1.0, low)
        found = _point_at(part, most, gpu_seconds, clients, times)
    # Before its first token, a page waits at whichever of the CPU and the GPU is saturated.
    found = found._replace(first_token=clients / found.pages_per_second - found.decode)
    return LoopPoint(*(column[:, 0] for column in found))


def _pair_at(index: Integers, rows: Floats) -> tuple[Floats, Floats]:
    """Each row's value at an index and the next one, `[n, 1]`."""
    numbers = np.arange(len(rows))[:, None]
    return rows[numbers, index], rows[numbers, index + 1]


def least_gpu_seconds(clients: Integers, times: LoopTimes) -> Floats:
    """Least GPU seconds per page, over all numbers of sequences running together, `[n, 1]`.

    They are the `gpu_seconds` of `[n, 1]` loops `as_columns`, known before these are solved.
    """
    sequences = np.minimum(np.maximum(1, times.sequences), clients)
    [step], [carried] = times.at(sequences, times.step), times.at(sequences - 1, times.carried)
    least_step = (step / sequences).min(axis=1, keepdims=True)
    left = np.maximum(0.0, times.steps - times.chunks * (sequences - 1))
    mixed = (times.chunks * carried + left * least_step).min(axis=1, keepdims=True)
    return np.asarray(times.prefill + mixed)


def _point_at(
    part: Floats, most: Floats, gpu_seconds: Floats, clients: Integers, times: LoopTimes
) -> LoopPoint:
    """The loops' state when fractions of the other clients' sequences are running, `part` `[n, m]`.

    If there are none, it is a fraction of the largest rate. Where a GPU does better with fewer
    sequences, more of them run at its capacity, and longer. Impossible seconds are infinite.
    """
    beside = part * (clients - 1) * (times.steps > 0)
    step, carried = times.at(1 + beside, times.step, times.carried)
    # Every prefill pass of another page costs its own time and saves one step per chunk.
    lost = times.prefill + times.chunks * (carried - step)
    others = beside / (times.steps * step + beside * lost)
    is_alone = (clients == 1) | (times.steps == 0)
    shared = np.minimum(others * clients / (clients - 1), 1 / gpu_seconds)
    rate = np.where(is_alone, part * most, np.where(shared >= 0, shared, 1 / gpu_seconds))
    others = rate * (clients - 1) / clients
    decode = np.where(is_alone, times.steps * step, beside / others)
    # Its own prefill pass also decodes the other running sequences.
    [carried] = times.at(beside, times.carried)
    prefill = times.prefill + times.chunks * carried
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
