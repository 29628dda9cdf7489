"""A device: its name, versions and profile, its clock and its memory."""

import contextlib
import ctypes
import gc
import itertools
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.devices import catalogue_name
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.measuring.calibration_needs import free_memory_bytes
from dsocr_analyze.model.process_settings import Result, Value

CPU_NAME: Final = "cpu"
"""Of the profile of this machine's CPU."""


def device_title(device: torch.device) -> str:
    """Its name for readers."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_cpu_title()}, {torch.get_num_threads()} threads"


def _cpu_title() -> str:
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    found = re.search(r"^model name\s*:(.*\S)", text, re.MULTILINE)
    return " ".join(found[1].split()) if found else platform.processor() or platform.machine()


def versions(device: torch.device) -> dict[str, str]:
    """Of the libraries that affect its speed."""
    cuda = {"cuda": str(torch.version.cuda)} if device.type == "cuda" else {}
    return {"torch": str(torch.__version__), **cuda}


def free_bytes(device: torch.device) -> int:
    """Bytes that can be allocated now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return free_memory_bytes()


def matching_device(device: torch.device, known: Mapping[str, Device]) -> Device | None:
    """The device's profile among those `known`; a CPU's has to be of as many threads."""
    if device.type == "cpu":
        found = known.get(CPU_NAME)
        return found if found and found.gpu.title == device_title(device) else None
    try:
        name = catalogue_name(torch.cuda.get_device_name(device), known)
    except DeviceError:
        return None
    return known[name]


# --- its clock -------------------------------------------------------------------------------


class Timer:
    """A device's clock; here the CPU's, where nothing is ever pending."""

    def mark(self) -> Any:
        """When everything issued so far is done, in a form of its own."""
        return time.perf_counter()

    def seconds(self, start: Any, end: Any) -> float:
        """From a mark to a later one, waiting for both."""
        return float(end - start)

    def time(self, run: Callable[[], Value]) -> float:
        """Of what a function issues."""
        start = self.mark()
        run()
        return self.seconds(start, self.mark())

    def wait(self) -> None:
        """Wait until everything issued is done."""


class _CudaTimer(Timer):
    """Events on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)


def timer_of(device: torch.device) -> Timer:
    """A device's clock."""
    return _CudaTimer(device) if device.type == "cuda" else Timer()


# --- its memory ------------------------------------------------------------------------------


def allocated_at_most(device: torch.device, function: Callable[[], Result]) -> tuple[int, Result]:
    """Peak bytes of a call, with its result and the scratch of kernels; and the result.

    On CUDA, what was requested, not what the allocator's pool keeps.
    """
    gc.collect()  # garbage of earlier calls, freed during this one, would count against its peak
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        result = function()
        return torch.cuda.max_memory_allocated(device) - before, result
    # torch.profiler, built on it, would import the compiler.
    with _quiet_profiler(), torch.autograd.profiler.profile(profile_memory=True) as ran:
        result = function()
    changes = sorted(
        (event.start_ns(), place, event.nbytes())
        for place, event in enumerate(ran.kineto_results.events())
        if event.name() == "[memory]"
    )
    return max(itertools.accumulate((nbytes for *_, nbytes in changes), initial=0)), result


@contextlib.contextmanager
def _quiet_profiler() -> Iterator[None]:
    name = "KINETO_LOG_LEVEL"  # read when a process profiles for the first time
    with contextlib.ExitStack() as stack:
        if name not in os.environ:
            os.environ[name] = "99"
            stack.callback(os.environ.pop, name)
        yield


_TRIM_THRESHOLD: Final = -1
_MOST_MAPPINGS: Final = -4
"""Parameters of mallopt(3)."""
_DEFAULT_TRIM_BYTES: Final = 128 * 1024
_DEFAULT_MAPPINGS: Final = 65536


def can_keep_memory(device: torch.device) -> bool:
    """Whether freed memory can be kept: on a CPU, with glibc only."""
    return device.type != "cpu" or platform.libc_ver()[0] == "glibc"


@contextlib.contextmanager
def kept_memory(device: torch.device) -> Iterator[None]:
    """Meanwhile, freed memory stays in the process.

    By default, glibc returns every large tensor to the system and gets it back page by page,
    zeroed, which takes up to half of a pass.
    """
    if device.type != "cpu" or not can_keep_memory(device):
        yield
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MOST_MAPPINGS, 0)
    library.mallopt(_TRIM_THRESHOLD, ctypes.c_int(2**31 - 1))
    try:
        yield
    finally:
        library.mallopt(_MOST_MAPPINGS, _DEFAULT_MAPPINGS)
        library.mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM_BYTES)
        library.malloc_trim(0)


def give_back_memory() -> None:
    """Return the CPU's kept memory that is free."""
    if can_keep_memory(torch.device("cpu")):
        ctypes.CDLL(None).malloc_trim(0)
