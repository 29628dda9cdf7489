"""Processes that run cases, replaced where one ends or hangs."""

from __future__ import annotations

import multiprocessing
import os
import queue
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Final

from hostile.oracle import Outcome, run_case

__all__ = ["outcomes"]

_HANGS_SECONDS: Final = 120.0
"""With others on the processor; without, a case that takes ten seconds is a finding."""
_MOST_MEMORY: Final = 8 << 30
"""Addresses of a process: what asks for more fails, and takes nothing else down."""
_CASES_OF_A_PROCESS: Final = 2000
"""Then another one takes over, so that memory grows in none."""


def _begin() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    os.environ["COLUMNS"] = "100"


class _Worker:
    """A process that runs one case after the other, or the next such process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._start()

    def _start(self) -> None:
        self.pool = ProcessPoolExecutor(
            1,
            multiprocessing.get_context("spawn"),
            initializer=_begin,
            max_tasks_per_child=_CASES_OF_A_PROCESS,
        )

    def run(self, kind: str, seed: int) -> Outcome:
        """What came of a case; of one that ended or stopped the process, that."""
        began = time.monotonic()
        case = self.pool.submit(run_case, kind, seed, self.folder / "case")
        processes = [*(self.pool._processes or {}).values()]
        try:
            return case.result(_HANGS_SECONDS)
        except (BrokenProcessPool, TimeoutError) as error:
            hangs = isinstance(error, TimeoutError)
        for process in processes:
            process.kill()
        self.pool.shutdown()
        ended = f"the process ended with {processes[0].exitcode}"
        said = f"no end after {_HANGS_SECONDS:g} s" if hangs else ended
        self._start()
        return Outcome(kind, seed, None, (said,), (), time.monotonic() - began)


def outcomes(cases: Iterator[tuple[str, int]], processes: int, folder: Path) -> Iterator[Outcome]:
    """Runs cases in several processes; yields what came of them, in their order."""
    free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for number in range(processes):
        free.put(_Worker(folder / str(number)))

    def run(case: tuple[str, int]) -> Outcome:
        worker = free.get()
        try:
            return worker.run(*case)
        finally:
            free.put(worker)

    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(run, cases)
    for _ in range(processes):
        free.get().pool.shutdown()
