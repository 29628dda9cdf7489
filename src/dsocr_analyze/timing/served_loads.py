"""Steady state of GPUs under a serving engine: each page as if all pages were like it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from dsocr_analyze.timing.closed_loop import LoopTimes, closed_loop
from dsocr_analyze.timing.correction import NO_CORRECTION, Correction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.timing.serving import ServedModel

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

__all__ = ["ServedLoads", "ServedPages", "served_loads"]

_CELLS: Final = 1 << 16
"""Decode steps evaluated at once: numbers of keys times numbers of sequences."""


@dataclass(frozen=True)
class ServedPages:
    """n pages, each with its own concurrency; arrays `[n]`.

    Attributes:
        prompt: Tokens of the prompt.
        prefill: Seconds of the prefill pass.
        keys: Mean tokens in the cache of a running sequence.
        steps: Mean decode steps per page.
        prepare: CPU seconds before the model runs.
        concurrency: Pages in flight.
        fitting: Most concurrent pages that fit into memory; the others queue.
    """

    prompt: Integers
    prefill: Floats
    keys: Integers
    steps: Floats
    prepare: Floats
    concurrency: Integers
    fitting: Integers


class ServedLoads(NamedTuple):
    """n GPUs in steady state; arrays `[n]`, seconds are per page, its preparation included."""

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
    """Closed loop of each page's clients; those that do not fit into memory queue.

    Args:
        served: The model, its GPU and the engine.
        pages: The pages.
        workers: Pages that the CPU prepares in parallel.
        is_offline: Whether the CPU prepares all pages before the first one runs.
        correction: Correction from benchmarks of the server.
    """
    import numpy as np

    n = len(pages.keys)
    running = np.maximum(1, np.minimum(pages.concurrency, pages.fitting)).astype(np.int64)
    chunks = served.chunks(pages.prompt) * served.server.mixes_prefill
    columns = [np.zeros(n) for _ in range(5)]
    for rows, keys, table in _by_keys(pages.keys, running):
        step, carried = _steps(served, keys, int(running[rows].max()))
        times = LoopTimes(
            prepare=0.0 if is_offline else pages.prepare[rows],
            workers=workers,
            prefill=pages.prefill[rows],
            chunks=np.broadcast_to(chunks, n)[rows],
            steps=pages.steps[rows],
            step=step,
            carried=carried,
            table=table,
        )
        point = closed_loop(running[rows], times)
        page = pages.concurrency[rows] / point.pages_per_second
        outside = page - point.page
        together = np.maximum(1, np.rint(point.running))
        found = (point.pages_per_second, point.first_token + outside, page, together,
                 point.gpu_seconds)  # fmt: skip
        for column, values in zip(columns, found, strict=True):
            column[rows] = values
    rate, first_token, page, together, gpu_seconds = columns
    if not correction.is_nothing:
        prepare = np.zeros(n) if is_offline else pages.prepare / workers
        first_token, page = _corrected(correction, pages.concurrency, first_token, page, prepare)
        rate = pages.concurrency / page
        decode = gpu_seconds - pages.prefill
        gpu_seconds = correction.first_token * pages.prefill + correction.per_token * decode
    if is_offline:
        first_token, page = first_token + pages.prepare, page + pages.prepare
        rate = 1 / (1 / rate + pages.prepare / workers)
    return ServedLoads(rate, first_token, page, together.astype(np.int64), gpu_seconds)


def _corrected(
    correction: Correction, clients: Integers, first_token: Floats, page: Floats, prepare: Floats
) -> tuple[Floats, Floats]:
    """Seconds until the first token and per page, `[n]`, corrected by benchmarks of the server.

    Little's law then gives the throughput, since each client sends its pages one after the other.
    The CPU needs at least `prepare` seconds per page, which is a lower bound.
    """
    import numpy as np

    decode = correction.per_token * (page - first_token)
    page = np.maximum(correction.first_token * first_token + decode, clients * prepare)
    return page - decode, page


def _by_keys(keys: Integers, running: Integers) -> Iterator[tuple[Integers, Integers, Integers]]:
    """Rows in batches of one step table each: rows, distinct keys, each row's index into those."""
    import numpy as np

    distinct, place = np.unique(keys, return_inverse=True)
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place, minlength=len(distinct)))
    size = max(1, _CELLS // int(running.max(initial=1)))
    for first in range(0, len(distinct), size):
        begin = int(ends[first - 1]) if first else 0
        last = min(first + size, len(distinct))
        rows = order[begin : int(ends[last - 1])]
        yield rows, distinct[first:last], place[rows] - first


def _steps(served: ServedModel, keys: Integers, most: int) -> tuple[Floats, Floats]:
    """Seconds of a decode step of 1 to `most` sequences and of its attention, `[keys, most]`."""
    import numpy as np

    sequences = np.arange(1, most + 1)
    span = served.step(sequences[None, :], keys[:, None])
    attention = sum(
        seconds
        for kind, seconds in span.kinds.items()
        if kind.kind.startswith("generation_attention")
    )
    shape = (len(keys), most)
    return np.broadcast_to(span.seconds, shape), np.broadcast_to(attention, shape)
