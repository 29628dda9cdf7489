"""Device clocks: marks on a timeline, and the seconds between them."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

__all__ = ["Timer", "timer_of"]


class Timer(Protocol):
    """A device's clock; marks are opaque to callers."""

    def mark(self) -> Any:
        """Mark the moment at which everything issued so far is done."""

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds from one mark to a later one; waits until both have passed."""

    def open_range(self, name: str) -> None:
        """Name the work that follows, for profilers."""

    def close_range(self) -> None:
        """End the last named range."""

    def wait(self) -> None:
        """Wait until everything issued is done."""


class _HostTimer:
    """Clock of a device that works synchronously: the CPU."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def open_range(self, name: str) -> None:
        """Do nothing: the CPU has no ranges."""

    def close_range(self) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Return at once: nothing is ever pending."""


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
    """The clock of a device."""
    return _CudaTimer(device) if device.type == "cuda" else _HostTimer()
