"""What the tests of the trace share: a pass under the recorder, and the outside witness."""

import functools
import re

import torch
from taped_passes import Level
from torch.utils.flop_counter import FlopCounterMode

from dsocr_analyze.kernels import Kernel, Work, total_work
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder


class Calls(torch.nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


class Net(torch.nn.Module):
    """A module with children and settings by keyword, and a forward as a function of itself."""

    def __init__(self, forward, **children):
        super().__init__()
        self._of_self = forward
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args, **kwargs):
        return self._of_self(self, *args, **kwargs)


def chain(*names):
    """A forward that calls these children, one after the other."""
    return lambda self, x: functools.reduce(lambda x, name: getattr(self, name)(x), names, x)


def by_path(path: str) -> str:
    """Declares every module like itself alone."""
    return path


def by_place(path: str) -> str:
    """Declares the items of every list alike, with what has the same place in them."""
    return re.sub(r"\.\d+", ".N", path)


class LevelRecorder(Recorder):
    """Keeps the level of memory right after every tensor; every module and function runs."""

    def __init__(self, model: torch.nn.Module, _alike=None):
        super().__init__(model)
        self._levels: list[Level] = []

    def begin(self) -> Trace:
        trace = super().begin()
        self._levels = vars(trace)["levels"] = []
        return trace

    def _key_of(self, *_) -> None:
        """No call is an equal one."""

    def _note_alive(self, nbytes: int, path: str, operator: str) -> None:
        super()._note_alive(nbytes, path, operator)
        self._levels.append(Level(path, operator, nbytes))


def trace_of(module: torch.nn.Module, *args, alike=None, times: int = 1, **kwargs) -> Trace:
    with torch.no_grad(), Recorder(module, alike) as recorder:
        trace = recorder.begin()
        for _ in range(times):
            module(*args, **kwargs)
    return trace


def kernels_of(function, *args, **kwargs):
    """Kernel records of a function call, in order; every operator has a rule."""
    trace = trace_of(Calls(function), *args, **kwargs)
    assert not trace.unknown
    return trace.kernels


def operators_of(function, *args, **kwargs) -> list[tuple[str, Work]]:
    """Counted operators of a function call, in order."""
    return [(kernel.operator, kernel.work) for kernel in kernels_of(function, *args, **kwargs)]


def total(trace: Trace) -> Work:
    return total_work(kernel.total for kernel in trace.kernels)


def witnessed_flops(function, *args, **kwargs) -> int:
    """What `FlopCounterMode` counts over the same call."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        function(*args, **kwargs)
    return counter.get_total_flops()


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def but_copies(trace: Trace) -> list[Kernel]:
    """Kernels without copies: what is copied after attention depends on the device's layout."""
    return [kernel for kernel in trace.kernels if kernel.operator != "clone"]


def places_of(trace: Trace) -> list[tuple[str, str]]:
    """Path and name of every counted operator, in order."""
    return [(kernel.path, kernel.operator) for kernel in trace.kernels]


def paths_of(trace: Trace, operator: str) -> list[str]:
    return [kernel.path for kernel in trace.kernels if kernel.operator == operator]
