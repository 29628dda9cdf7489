"""Time single kernels of a GPU, each captured several times in a CUDA graph.

A graph starts its kernels without the host, so that kernels shorter than a launch can be timed.
Cold kernels use different weights for each call, none of which is in L2 when the graph starts.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from typing import Final

import torch

from dsocr_analyze.kernels import Experts
from dsocr_analyze.measuring.gpu_calls import MOST_CALLS, Call, KernelCalls
from dsocr_analyze.measuring.gpu_cases import Case
from dsocr_analyze.measuring.timers import timer_of
from dsocr_analyze.running.torch_calls import Value

__all__ = ["GpuKernels"]

_GRAPH_SECONDS: Final = 5e-4
"""Approximate time of all calls in one graph."""
_REPEATS: Final = 5
_WORKING: Final = 3
"""Free memory that a kernel needs, as a multiple of the bytes that it reads and writes."""
_FLUSH_L2S: Final = 4
_FLUSH_BYTES: Final = 1 << 29


class GpuKernels:
    """Launches kernels on a GPU and times them.

    Args:
        device: The GPU.
        dtype: Its 16-bit type.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._calls = KernelCalls(device, dtype)
        self._timer = timer_of(device)
        self._stream = torch.cuda.Stream(device)
        properties = torch.cuda.get_device_properties(device)
        wanted = max(_FLUSH_BYTES, _FLUSH_L2S * properties.L2_cache_size)
        flushed = min(wanted, properties.total_memory // 16)
        self._flushed = torch.empty(flushed, dtype=torch.uint8, device=device)

    def framework(self, kind: str) -> str:
        """What launches the kernels of a kind, with its version."""
        return self._calls.framework(kind)

    def can_launch(self, kind: str) -> bool:
        """Whether kernels of a kind are available."""
        if kind != "experts":
            return True
        if not hasattr(torch, "_grouped_mm"):
            return False
        try:
            self.seconds(Case("experts", Experts(16, 256, 256, 8, 2)))
        except (RuntimeError, NotImplementedError):  # not supported on this GPU
            return False
        return True

    def warm_up(self, seconds: float = 1.0) -> None:
        """Keep the GPU busy until its clocks have settled."""
        factor = torch.randn(4096, 4096, device=self._device, dtype=self._dtype)
        spent = 0.0
        while spent < seconds:
            start = self._timer.mark()
            for _ in range(20):
                factor @ factor
            spent += self._timer.seconds(start, self._timer.mark())

    @torch.no_grad()
    def seconds(self, case: Case) -> float:
        """Seconds of one call of a kernel.

        Raises:
            OutOfMemoryError: The kernel does not fit into memory.
            RuntimeError: The library has no such kernel for this GPU.
        """
        free, _ = torch.cuda.mem_get_info(self._device)
        if _WORKING * case.nbytes > free:
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info(self._device)
        if _WORKING * case.nbytes > free:
            raise torch.cuda.OutOfMemoryError(f"{case.nbytes} bytes do not fit into {free}")
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            call, copies = self._calls.call_of(case)
            for number in range(2):  # libraries load and select kernels on their first calls
                call(number % copies)
            once = self._timed(lambda: call(0))
            calls = max(1, min(MOST_CALLS, round(_GRAPH_SECONDS / max(once, 1e-9))))
            graph = self._captured(call, calls, copies)
            found = [self._timed(graph.replay, call, case.cold) / calls for _ in range(_REPEATS)]
        return statistics.median(found)

    def _captured(self, call: Call, calls: int, copies: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        self._stream.synchronize()
        graph.capture_begin()
        try:
            for number in range(calls):
                call(number % copies)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # repeats that the capture failed
                graph.capture_end()
            raise
        graph.capture_end()
        graph.replay()
        return graph

    def _timed(
        self, run: Callable[[], Value], before: Call | None = None, cold: bool = True
    ) -> float:
        """Seconds of the work that `run` issues, behind a flush that keeps the GPU busy."""
        self._flushed.zero_()
        if before is not None and not cold:
            before(0)
        start = self._timer.mark()
        run()
        return self._timer.seconds(start, self._timer.mark())
