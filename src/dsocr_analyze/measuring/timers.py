"""Clocks of devices: marks on a time line, and the seconds between two of them."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

__all__ = ["Timer", "timer_of"]


class Timer(Protocol):
    """A device's clock. A mark is whatever it needs to tell later when that was."""

    def mark(self) -> Any:
        """The moment at which all that was issued so far is done."""

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds from one mark to a later one; waits until both have passed."""

    def open_range(self, name: str) -> None:
        """Names what follows, for whoever watches with a profiler."""

    def close_range(self) -> None:
        """Ends what was named last."""

    def wait(self) -> None:
        """Waits until all that was issued is done."""


class _HostTimer:
    """Of a device that works while the host waits: the CPU."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def open_range(self, name: str) -> None:
        """Nobody watches ranges of a CPU."""

    def close_range(self) -> None:
        """Likewise."""

    def wait(self) -> None:
        """Nothing is ever under way."""


class _CudaTimer:
    """CUDA events on the current stream, and NVTX ranges."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        milliseconds: float = start.elapsed_time(end)
        return milliseconds / 1e3

    def open_range(self, name: str) -> None:
        torch.cuda.nvtx.range_push(name)

    def close_range(self) -> None:
        torch.cuda.nvtx.range_pop()

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)


def timer_of(device: torch.device) -> Timer:
    """The clock of a device that computes."""
    return _CudaTimer(device) if device.type == "cuda" else _HostTimer()
