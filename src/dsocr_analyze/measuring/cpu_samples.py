"""Measured samples of kernels: the record that a trace has of each, and its seconds."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from dsocr_analyze.interruption import safe_point
from dsocr_analyze.kernels import Kernel, KernelsOf
from dsocr_analyze.measuring.cpu_kernels import Sample, sample_makers
from dsocr_analyze.trace.recorder import Recorder
from dsocr_analyze.trace.single_module import FunctionModule

__all__ = ["MeasuredKernel", "kernels_alone"]

_KEPT: Final = 3
"""Outputs kept alive, so that the next one is written elsewhere, as in a pass."""
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


def kernels_alone(dtype: torch.dtype, *, budget_seconds: float) -> list[MeasuredKernel]:
    """Measure every sample that is a single kernel on the CPU, in a fixed order.

    Args:
        dtype: Data type.
        budget_seconds: Approximate time for all of them.
    """
    chance = random.Random(0)
    makers = list(sample_makers(dtype, chance))
    chance.shuffle(makers)  # so that a disturbance is spread over all kinds
    each = budget_seconds / (2.5 * len(makers))
    found = []
    for make in makers:
        for sample in make():
            safe_point()
            kernel = _record_of(sample)
            if kernel is not None:
                seconds = _seconds_of(sample.run, each)
                found.append(MeasuredKernel(kernel, seconds, _is_held_out(sample.group)))
    return found


def _is_held_out(group: str) -> bool:
    return hashlib.sha256(group.encode()).digest()[0] < _HELD_OUT


def _record_of(sample: Sample) -> Kernel | None:
    """The trace's record of the call; None if it is not a single kernel."""
    module = FunctionModule(sample.run)
    recorder = Recorder(module, kernels_of=KernelsOf("cpu", torch.get_num_threads()))
    with torch.no_grad(), recorder:
        trace = recorder.begin()
        module()
    kernels = trace.kernels
    if len(kernels) != 1 or kernels[0].calls != 1:
        return None
    return kernels[0]._replace(path="", stage="")


def _seconds_of(run: Callable[[], Any], budget: float) -> float:
    """The lower quartile of some calls: the time with little disturbance."""
    kept: list[Any] = [None] * _KEPT
    found: list[float] = []
    with torch.no_grad():
        kept[0] = run()
        began = time.perf_counter()
        while len(found) < 2 or (time.perf_counter() - began < budget and len(found) < 200):
            start = time.perf_counter()
            output = run()
            found.append(time.perf_counter() - start)
            kept[len(found) % _KEPT] = output
            del output
    found.sort()
    return found[len(found) // 4]
