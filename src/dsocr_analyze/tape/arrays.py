"""A tape of arrays: a forward is run once for many workloads."""

from __future__ import annotations

from collections.abc import Callable

from dsocr_analyze.figures import Peak
from dsocr_analyze.tape import Given, Operand, Size, Tape, maximum, minimum

__all__ = ["ArrayTape"]


class ArrayTape(Tape):
    """A tape of integers and arrays that broadcast; every workload has its own peak."""

    again = Tape.call

    def allocated(self, nbytes: Size) -> None:
        """Notes that a tensor of `nbytes` is alive."""
        self.alive = self.alive + nbytes
        self.peak = Peak(maximum(self.peak.nbytes, self.alive), "")

    def each(
        self,
        name: str,
        start: Size,
        stop: Size,
        forward: Callable[[Tape, *Given], Operand],
        *inputs: *Given,
        **limits: Size,
    ) -> list[Operand]:
        """The memory of equal children: the last meets the outputs of the others."""
        count, t = stop - start, ArrayTape(self.dtype)
        output = forward(t, *inputs)
        last = (count - 1) * output.nbytes + t.peak.nbytes
        reached = self.alive + minimum(count, 1) * last
        self.peak = Peak(maximum(self.peak.nbytes, reached), "")
        return [self.empty(count * output.n, output.dtype)]
