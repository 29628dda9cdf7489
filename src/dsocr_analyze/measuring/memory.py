"""Peak memory of a call, from the allocator of its device."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from dsocr_analyze.running.torch_calls import Value

__all__ = ["allocated_at_most"]


def allocated_at_most(device: torch.device, function: Callable[[], Value]) -> int:
    """Peak bytes of a call, including its result but not earlier allocations.

    On CUDA, bytes that tensors and kernels requested, not what the allocator keeps in its pool; on
    the CPU, from the profiler's record of every allocation. Scratch inside kernels is included.

    Args:
        device: The device that it allocates on.
        function: The call to measure; called once.
    """
    gc.collect()  # garbage of earlier calls, freed during this one, would count against its peak
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        kept = function()
        most: int = torch.cuda.max_memory_allocated(device) - before
        del kept
        return most
    with _quiet_profiler(), profile(
        activities=[ProfilerActivity.CPU], profile_memory=True
    ) as ran:  # fmt: skip
        kept = function()
    del kept
    changes = sorted(
        (event.start_ns(), place, event.nbytes())
        for place, event in enumerate(ran.profiler.kineto_results.events())
        if event.name() == "[memory]"
    )
    alive = most = 0
    for _, _, nbytes in changes:
        alive += nbytes
        most = max(most, alive)
    return most


@contextlib.contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Suppress the profiler's log lines on stderr."""
    name = "KINETO_LOG_LEVEL"  # read when a process profiles for the first time
    if name in os.environ:
        yield
        return
    os.environ[name] = "99"
    try:
        yield
    finally:
        del os.environ[name]
