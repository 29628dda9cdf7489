"""A tape that keeps records but follows no memory, so that sizes may be arrays."""

from __future__ import annotations

from collections.abc import Iterator

from dsocr_analyze.tape.polynomial import Size
from dsocr_analyze.tape.tape import Tape

__all__ = ["RecordTape"]


class RecordTape(Tape):
    """A tape for sizes that cannot be compared: integers, or arrays of integers."""

    def turns(self, count: Size) -> Iterator[Size]:
        """Equal turns, noted once for all; none for 0."""
        times = self._times
        if count:
            self._times = times * count
            yield 0
        self._times = times

    def allocated(self, nbytes: Size) -> None:
        """Nothing."""

    def freed(self, nbytes: Size) -> None:
        """Nothing."""
