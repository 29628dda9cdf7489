"""What the tests of the trace share: a pass under the recorder, and the outside witness."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from dsocr_analyze.trace.recorder import Recorder, Trace
from dsocr_analyze.work import NO_WORK, Work


class Calls(torch.nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def trace_of(
    module: torch.nn.Module, *args, repeat: bool = False, times: int = 1, **kwargs
) -> Trace:
    with torch.no_grad(), Recorder(module, repeat_equal_modules=repeat) as recorder:
        trace = recorder.begin()
        for _ in range(times):
            module(*args, **kwargs)
    return trace


def operators_of(function, *args, **kwargs) -> list[tuple[str, Work]]:
    """Counted operators of a function call, in order."""
    trace = trace_of(Calls(function), *args, **kwargs)
    assert not [entry for entry in trace.entries if entry.status == "unknown"]
    return [(entry.operator, entry.work) for entry in trace.entries if entry.status == "counted"]


def total(trace: Trace) -> Work:
    work = NO_WORK
    for entry in trace.entries:
        work = work.plus(entry.work)
    return work


def witnessed_flops(function, *args, **kwargs) -> int:
    """What `FlopCounterMode` counts over the same call."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        function(*args, **kwargs)
    return counter.get_total_flops()


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def paths_of(trace: Trace, operator: str) -> list[str]:
    return [entry.path for entry in trace.entries if entry.operator == operator]
