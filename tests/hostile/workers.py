"""Processes that run cases, replaced where one ends or hangs."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from hostile.oracle import Outcome, run_case

__all__ = ["outcomes"]

_HANGS_SECONDS: Final = 120.0
"""With others on the processor; without, a case that takes ten seconds is a finding."""
_MOST_MEMORY: Final = 8 << 30
"""Addresses of a process: what asks for more fails, and takes nothing else down."""
_CASES_OF_A_WORKER: Final = 2000
"""Then another one takes over, so that memory grows in none."""


def _work(pipe: Connection, folder: str) -> None:
    import typer.main

    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    # The tree of commands, the same for every case, takes longer than most of them.
    typer.main.get_command = functools.cache(typer.main.get_command)
    os.environ["COLUMNS"] = "100"
    while (asked := pipe.recv()) is not None:
        pipe.send(run_case(*asked, Path(folder) / "case"))


class _Worker:
    """A process that runs one case after the other."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.process = context.Process(target=_work, args=(theirs, str(folder)), daemon=True)
        self.process.start()
        theirs.close()
        self.asked: tuple[str, int] | None = None
        self.since = 0.0
        self.done = 0

    def ask(self, kind: str, seed: int) -> None:
        self.asked, self.since = (kind, seed), time.monotonic()
        self.pipe.send(self.asked)

    def answer(self) -> Outcome:
        """What came of the case; of one that ended or stopped the process, that."""
        assert self.asked is not None
        try:
            outcome: Outcome = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(5)
            ended = f"the process ended with {self.process.exitcode}"
            outcome = Outcome(*self.asked, None, (ended,), (), time.monotonic() - self.since)
        self.done += 1
        return outcome

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def outcomes(cases: Iterator[tuple[str, int]], processes: int, folder: Path) -> Iterator[Outcome]:
    """Runs cases in several processes."""
    numbers = iter(range(sys.maxsize))
    busy: dict[Any, _Worker] = {}
    for case in itertools.islice(cases, processes):
        worker = _Worker(folder / str(next(numbers)))
        worker.ask(*case)
        busy[worker.pipe] = worker
    while busy:
        ready = wait(list(busy), timeout=1)
        for worker in [busy[each] for each in ready] or [
            each for each in busy.values() if time.monotonic() - each.since > _HANGS_SECONDS
        ]:
            del busy[worker.pipe]
            if worker.pipe in ready:
                outcome = worker.answer()
            else:
                assert worker.asked is not None
                said = f"no end after {_HANGS_SECONDS:g} s"
                outcome = Outcome(*worker.asked, None, (said,), (), _HANGS_SECONDS)
            yield outcome
            if outcome.code is None or worker.done >= _CASES_OF_A_WORKER:
                worker.stop()
                worker = _Worker(folder / str(next(numbers)))
            if (case := next(cases, None)) is not None:
                worker.ask(*case)
                busy[worker.pipe] = worker
            else:
                worker.stop()
