"""Drops what model code prints: stdout is for the result."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from dsocr_analyze.forking import undone
from dsocr_analyze.running.exclusive import is_running_thread

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["discarding_stdout"]


class _Nowhere(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        return memoryview(data).nbytes


class _Stdout:
    """Drops the running thread's output; other threads keep the original stream."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._nowhere = io.TextIOWrapper(io.BufferedWriter(_Nowhere()), encoding="utf-8")

    def __getattr__(self, name: str) -> Any:
        is_heard = self._stream is not None and not is_running_thread()
        return getattr(self._stream if is_heard else self._nowhere, name)


@contextlib.contextmanager
def discarding_stdout() -> Iterator[None]:
    """While the body runs, what the running thread writes to stdout is dropped."""
    streams = vars(sys)
    original = streams["stdout"]
    stand_in = _Stdout(original)

    def put_back() -> None:
        if streams["stdout"] is stand_in:  # otherwise another thread has replaced it by now
            streams["stdout"] = original

    with undone(put_back):
        streams["stdout"] = stand_in
        yield
