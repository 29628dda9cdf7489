"""Runs a campaign: `python -m hostile --cases 100000`, from the folder `tests`."""

import argparse
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from hostile.cases import KINDS, scheduled
from hostile.oracle import outcomes

REPORT: Final = ("static_compute.json", "static_compute.md")
_JOB: Final = ("--engine", "analytic", "--mode", "tiny", "-q", "--output", "out")
_LONGEST_SECONDS: Final = 300
"""On a machine with much else to do; a job takes one."""
_ENDS: Final = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Job:
    """A command that writes two files over older ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "out"
        self.output.mkdir(parents=True)
        self.finish()  # the first one compiles
        self.right = self.content()
        start = time.perf_counter()
        self.finish()
        self.seconds = time.perf_counter() - start
        self.ended: Counter[int] = Counter()
        """Exit codes of the processes that met a fault."""

    def start(self, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "dsocr_analyze", *_JOB],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
        )  # fmt: skip

    def finish(self) -> None:
        """Runs the command to its end, undisturbed."""
        assert self.start().wait(_LONGEST_SECONDS) == 0

    def end(self, process: subprocess.Popen[str]) -> str:
        """Waits for the end of a process, counts its exit code, and returns what it said."""
        _, said = process.communicate(timeout=_LONGEST_SECONDS)
        self.ended[process.returncode] += 1
        return said

    def at_some_moment(self, draw: Random) -> subprocess.Popen[str]:
        """A process that has run for a while, or to its end."""
        process = self.start()
        time.sleep(draw.uniform(0.02, 1.05) * self.seconds)
        return process

    def content(self) -> list[str]:
        """What the files hold, but for the time; `old` where nobody has written them."""
        texts = [(self.output / name).read_text() for name in REPORT]
        if texts[0] == "old":
            return texts
        created = json.loads(texts[0])["metadata"]["created"]
        return [text.replace(created, "") for text in texts]

    def make_old(self) -> None:
        for name in REPORT:
            (self.output / name).write_text("old")

    def left(self) -> list[str]:
        """What lies there besides the two files, and should not."""
        names = {each.name for each in self.output.iterdir()}
        return [f"{name} stays" for name in sorted(names - {*REPORT})]


def killed(job: Job, draw: Random) -> Iterator[str]:
    """Each file is old or whole, and the next run removes what lay about."""
    job.make_old()
    process = job.at_some_moment(draw)
    process.kill()
    job.end(process)
    for found, right in zip(job.content(), job.right, strict=True):
        if found not in ("old", right):
            yield f"a file of {len(found)} characters is neither old nor whole"
    if job.left():
        job.finish()


def interrupted(job: Job, draw: Random) -> Iterator[str]:
    """Both files are old or both new, nothing else lies there, the exit code is the signal's."""
    job.make_old()
    number = draw.choice(list(_ENDS))
    process = job.at_some_moment(draw)
    process.send_signal(number)
    said = job.end(process)
    code = process.returncode
    # Python may be interrupted while it starts; by the signal itself it ends as often.
    is_before_the_program = "Traceback" in said and "dsocr_analyze" not in said
    if code not in (_ENDS[number], -number, 0) and not is_before_the_program:
        yield f"exit code {code}: {said[:200]!r}"
    if job.content() not in (["old", "old"], job.right):
        yield "the files do not belong together"
    if code == _ENDS[number] and ("Traceback" in said or said.count("\n") > 1):
        yield repr(said[:200])


def full_disk(job: Job, draw: Random) -> Iterator[str]:
    """Exit code 74 in one line, both files as they were, and nothing else there."""
    job.make_old()
    room = draw.choice((0, 1, 4096, draw.randrange(1, 400_000), draw.randrange(1, 10_000)))
    process = job.start(
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    said = job.end(process)
    if job.content() == job.right:
        return
    if process.returncode != 74 or said.count("\n") != 1:
        yield f"exit code {process.returncode}: {said[:200]!r}"
    if job.content() != ["old", "old"]:
        yield "the files do not belong together"


def two_writers(job: Job, draw: Random) -> Iterator[str]:
    """Whole files, and nothing else there."""
    job.make_old()
    first = job.start()
    time.sleep(draw.uniform(0, 0.1))
    second = job.start()
    for process in (first, second):
        said = job.end(process)
        if process.returncode != 0:
            yield f"exit code {process.returncode}: {said[:200]!r}"
    if job.content() != job.right:
        yield "the files are not whole"


FAULTS: Final[dict[str, tuple[Callable[[Job, Random], Iterator[str]], int]]] = {
    "killed": (killed, 200),
    "interrupted": (interrupted, 1000),
    "full-disk": (full_disk, 200),
    "two-writers": (two_writers, 50),
}
"""What brings each about, and how often a campaign does."""


_CASES_A_SIGN = 10_000
"""After so many, a campaign says how far it is."""


def campaign(kinds: list[str], count: int, seed: int, processes: int) -> int:
    """Runs so many cases, prints how they ended, and returns how many broke a promise."""
    cases = itertools.islice(scheduled(kinds, seed), count)
    codes: Counter[tuple[str, int | None]] = Counter()
    seconds: Counter[str] = Counter()
    broken = 0
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        for outcome in outcomes(cases, processes, Path(folder)):
            codes[outcome.kind, outcome.code] += 1
            seconds[outcome.kind] += outcome.seconds
            if sum(codes.values()) % _CASES_A_SIGN == 0:
                print(f"{sum(codes.values()):,} cases so far", flush=True)
            if outcome.findings:
                broken += 1
                print(f"FOUND {outcome.kind} --seed {outcome.seed}: {'; '.join(outcome.findings)}"
                      f"\n      {' '.join(outcome.arguments)[:300]}", flush=True)  # fmt: skip
    for kind in kinds if count else ():
        ended = {code: codes[kind, code] for name, code in sorted(codes, key=str) if name == kind}
        each = seconds[kind] / max(1, sum(ended.values()))
        counts = ", ".join(f"{count:,} with {code}" for code, count in ended.items())
        print(f"{kind:>16}: {sum(ended.values()):,} cases of {each:.3f} s; exit codes: {counts}")
    print(f"{sum(codes.values()):,} cases, {broken:,} findings")
    return broken


def fault_campaign(counts: dict[str, int], seed: int) -> int:
    """Runs so many faults of each kind, prints them, and returns how many broke a promise."""
    broken = 0
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        job = Job(Path(folder, "job"))
        for name, count in counts.items():
            job.ended.clear()
            findings = [
                f"FOUND {name}: {finding} (--seed {number})"
                for number in range(seed, seed + count)
                for finding in (*FAULTS[name][0](job, Random(number)), *job.left())
            ]
            codes = ", ".join(f"{count:,} with {code}" for code, count in sorted(job.ended.items()))
            print(f"{name:>16}: {count:,} times; exit codes: {codes or 'none'}", *findings,
                  sep="\n", flush=True)  # fmt: skip
            broken += len(findings)
    print(f"{sum(counts.values()):,} faults, {broken:,} findings")
    return broken


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="hostile inputs")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; each has the next")
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="default: all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    for name, (_, count) in FAULTS.items():
        parser.add_argument(f"--{name}", type=int, default=count, help="default: %(default)s times")
    asked = parser.parse_args()
    counts = {name: vars(asked)[name.replace("-", "_")] for name in FAULTS}
    broken = campaign(asked.kind or list(KINDS), asked.cases, asked.seed, asked.processes)
    if any(counts.values()):
        broken += fault_campaign(counts, asked.seed)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
