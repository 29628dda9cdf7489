"""The most memory that a call holds at once, by the allocator of its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["allocated_at_most"]


def allocated_at_most(device: torch.device, function: Callable[[], Any]) -> int:
    """Bytes that a call held at once, its result included; what was there before does not count.

    On CUDA what tensors asked for, not what the allocator keeps in its pool; on the CPU by the
    profiler's record of every allocation.

    Args:
        device: Where it allocates.
        function: Is called once.
    """
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        kept = function()
        most: int = torch.cuda.max_memory_allocated(device) - before
        del kept
        return most
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as ran:
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
