"""Seconds of stages: a pass's timeline, cut where the modules of stages start and end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch

from dsocr_analyze.architectures.stages import StageScope
from dsocr_analyze.model.torch_calls import Arguments, Function, Keywords, Value
from dsocr_analyze.trace.modules import RunningModules

__all__ = ["Laps", "StageClock", "Timer", "timer_of"]


class Timer:
    """A device's clock, with opaque marks; here the CPU's, where nothing is ever pending."""

    def mark(self) -> Any:
        """Mark when everything issued so far is done."""
        return time.perf_counter()

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds from a mark to a later one; waits for both."""
        return float(end - start)

    def time(self, run: Callable[[], Value]) -> float:
        """Seconds of what a function issues."""
        start = self.mark()
        run()
        return self.seconds(start, self.mark())

    def open_range(self, name: str) -> None:
        """Name the work that follows, for profilers of a GPU."""

    def close_range(self) -> None:
        """End the last named range."""

    def wait(self) -> None:
        """Wait until everything issued is done."""


class _CudaTimer(Timer):
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
    return _CudaTimer(device) if device.type == "cuda" else Timer()


# --- stages ----------------------------------------------------------------------------------


class Laps:
    """The timeline of one pass, which begins in a stage."""

    def __init__(self, timer: Timer, stage: str) -> None:
        self._timer = timer
        self._marks: list[tuple[str, Any]] = []
        self.enter(stage)

    def enter(self, stage: str) -> None:
        """Start a stage within the current one."""
        self._timer.open_range(stage)
        self._marks.append((stage, self._timer.mark()))

    def leave(self, back_to: str) -> None:
        """End the current stage and resume the one around it."""
        self._marks.append((back_to, self._timer.mark()))
        self._timer.close_range()

    def finish(self) -> Self:
        """Close the timeline once the pass has been issued, and return it."""
        self.leave("")
        return self

    def seconds(self) -> dict[str, float]:
        """Seconds of each stage, which add up to the pass."""
        found: dict[str, float] = {}
        for (stage, start), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            found[stage] = found.get(stage, 0.0) + self._timer.seconds(start, end)
        return found


class StageClock:
    """Times the passes of a model by stage, at the modules to which a trace books operators.

    Vision stages get the time of their own modules, the prefill stage the rest of its pass, the
    decode stage all of a step, if the clock `is_decoding`.
    """

    def __init__(self, model: torch.nn.Module, stages: Sequence[StageScope], timer: Timer) -> None:
        self._timer = timer
        self._stages = stages
        self._laps: Laps | None = None
        self._within: list[str] = []
        self._owners = {
            path: stage.name
            for stage in stages
            if stage.role == "vision"
            for path, _ in model.named_modules()
            if path in stage.prefixes
        }
        self._modules = RunningModules(model, only=frozenset(self._owners))
        self.is_decoding = False

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Context in which passes are timed; the modules are restored on exit."""
        with self._modules.attached(self._run):
            yield

    def begin(self) -> Laps:
        """Start the timeline of a new pass."""
        role = "decode" if self.is_decoding else "prefill"
        stage = next(each.name for each in self._stages if each.role == role)
        self._modules.begin([])
        self._within = [stage]
        self._laps = Laps(self._timer, stage)
        return self._laps

    def _run(
        self,
        _: torch.nn.Module,
        path: str,
        forward: Function,
        args: Arguments,
        kwargs: Keywords,
    ) -> Value:
        stage, laps = self._owners[path], self._laps
        if laps is None or stage == self._within[-1] or self.is_decoding:
            return forward(*args, **kwargs)
        laps.enter(stage)
        self._within.append(stage)
        try:
            return forward(*args, **kwargs)
        finally:
            self._within.pop()
            laps.leave(self._within[-1])
