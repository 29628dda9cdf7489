"""Measured samples of kernels: the record that a trace has of each, and its seconds."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from dsocr_analyze.interruption import safe_point
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.measuring.cpu_kernels import Run, sample_makers
from dsocr_analyze.measuring.memory import give_back_memory
from dsocr_analyze.running.torch_calls import Value
from dsocr_analyze.trace.passes import FunctionModule
from dsocr_analyze.trace.recorder import Recorder

__all__ = ["KernelsAlone", "MeasuredKernel"]

_KEPT: Final = 3
"""Outputs kept alive, so that the next one is written elsewhere, as in a pass."""
_CALLS: Final = 20
"""Fewest calls that the time for all samples has to suffice for, and fewest of their groups."""
_LEAST_MACS: Final = 3e8
"""Calls of so many are made however slow they are: every kind has some."""
_HELD_OUT: Final = 64
"""Groups out of 256 that a fit does not see."""


@dataclass(frozen=True)
class MeasuredKernel:
    """A kernel record and how long it took.

    Attributes:
        kernel: The record.
        seconds: Seconds per call.
        is_held_out: Whether it is held out to measure the error of a fit.
        calls_in_pass: Calls in a measured pass; 0 if it ran alone.
    """

    kernel: Kernel
    seconds: float
    is_held_out: bool
    calls_in_pass: int = 0


class KernelsAlone:
    """Measures every sample that is a single kernel on the CPU, each on its own.

    Args:
        dtype: Data type.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._makers = sample_makers(dtype)
        self._kernels: dict[tuple[int, int], Kernel | None] = {}
        self._fastest: dict[tuple[int, int], MeasuredKernel] = {}

    def kernels(self) -> list[MeasuredKernel]:
        """What was measured so far: the fastest turn of each sample."""
        return [*self._fastest.values()]

    def run(self, deadline: float, on_progress: Callable[[str], None]) -> None:
        """Measure the samples once, in a fixed order, until the deadline.

        Args:
            deadline: When to stop, of the monotonic clock.
            on_progress: Called with what is being measured.
        """
        seconds = deadline - time.monotonic()
        # Calls that would take too much of the time are left out.
        most_macs = max(_LEAST_MACS, _macs_per_second(self._dtype) * seconds / _CALLS)
        count = len(self._makers)
        for number in range(count):
            began = time.monotonic()
            if began >= deadline:
                return
            on_progress(f"kernels alone, {number + 1} of {count}")
            give_back_memory()  # of other sizes: kept, it would be more after every sample
            stop = min(deadline, began + seconds / _CALLS)
            self._measure(number, most_macs, seconds / (4 * count), stop)

    def _measure(self, number: int, most_macs: float, seconds: float, stop: float) -> None:
        """Measure the samples of a maker; its tensors are freed on return."""
        samples = self._makers[number]()
        places = [*range(len(samples))]
        random.Random(number).shuffle(places)  # since there may be no time for the last ones
        for key in ((number, place) for place in places):
            safe_point()
            sample = samples[key[1]]
            if sample.macs > most_macs:
                continue
            call = sample.call()
            if key not in self._kernels:
                self._kernels[key] = _record_of(call)
            kernel = self._kernels[key]
            if kernel is not None:
                found = _seconds_of(call, seconds, stop)
                before = self._fastest.get(key)
                if before is None or found < before.seconds:
                    held_out = _is_held_out(sample.group)
                    self._fastest[key] = MeasuredKernel(kernel, found, held_out)
            del call  # before the next one's tensors are made
            if time.monotonic() >= stop:
                return


def _macs_per_second(dtype: torch.dtype) -> float:
    """Rate of a product of medium size, roughly."""
    rows, weights = torch.ones(64, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
    seconds = _seconds_of(lambda: torch.nn.functional.linear(rows, weights), 0.05, math.inf)
    return rows.numel() * 1024 / seconds


def _is_held_out(group: str) -> bool:
    return hashlib.sha256(group.encode()).digest()[0] < _HELD_OUT


def _record_of(call: Run) -> Kernel | None:
    """The trace's record of a call; None if it is not a single kernel."""
    module = FunctionModule(call)
    recorder = Recorder(module)
    with torch.no_grad(), recorder:
        trace = recorder.begin()
        module()
    kernels = trace.kernels
    if len(kernels) != 1 or kernels[0].calls != 1:
        return None
    return kernels[0]._replace(path="", stage="")


def _seconds_of(run: Run, budget: float, stop: float) -> float:
    """The lower quartile of some calls, the time with little disturbance; of one after `stop`."""
    kept: list[Value] = [None] * _KEPT
    found: list[float] = []
    with torch.no_grad():
        kept[0] = run()
        began = time.perf_counter()
        while not found or (
            time.monotonic() < stop
            and (len(found) < 2 or (time.perf_counter() - began < budget and len(found) < 200))
        ):
            start = time.perf_counter()
            output = run()
            found.append(time.perf_counter() - start)
            kept[len(found) % _KEPT] = output
            del output
    found.sort()
    return found[len(found) // 4]
