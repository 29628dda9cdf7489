"""What every case has to keep to, whatever it is, and the processes that run cases."""

import contextlib
import io
import multiprocessing
import os
import queue
import re
import resource
import shutil
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from dsocr_analyze.cli import main
from hostile.cases import KINDS

EXIT_CODES: Final = frozenset({0, 1, 2, 3, 74})
LONGEST_SECONDS: Final = 10.0 + 3.0
"""Ten beyond the job itself, of which a traced one takes up to three."""
MOST_BYTES: Final = 1 << 30
LONGEST_MESSAGE: Final = 500

_ACTS: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
    "\\ufff9-\\ufffb\\ud800-\\udfff\\U000e0000-\\U000e007f]"
)
_CODE_SPAN: Final = re.compile("`[^`\n]*`")
_SCRIPT: Final = re.compile(r"(?s)(?<=\n)<script.*?</script>")
_WRITTEN: Final = frozenset({
    "static_compute.json", "static_compute.md", "page.html", "compared.html", "c.md", "rows.csv",
    "tree.mmd", "tree.dot", "out.csv", "out.html", "out.svg",
})  # fmt: skip
"""What commands of the cases write; other files are input."""
_ASIDE: Final = re.compile(r"\.dsocr-|\.trust-|tmp")


class Outcome(NamedTuple):
    """How a case ended.

    Attributes:
        kind: What it was about.
        seed: What it was drawn from.
        code: Its exit code.
        findings: Which promises it broke.
        arguments: The command line.
        seconds: How long it took, to draw and to run.
    """

    kind: str
    seed: int
    code: int | None
    findings: tuple[str, ...]
    arguments: tuple[str, ...]
    seconds: float


_SCHEDULED: Final = Path("/proc/thread-self/schedstat")


def _seconds() -> float:
    """A clock that stands while others have the processor, where the system says when."""
    waited = 0
    with contextlib.suppress(OSError):
        waited = int(_SCHEDULED.read_text().split()[1])
    return time.perf_counter() - waited / 1e9


def run_case(kind: str, seed: int, folder: Path) -> Outcome:
    """Draws a case in an empty folder, runs it, and says which promises it broke."""
    began = _seconds()
    case = folder / "here"
    shutil.rmtree(folder, ignore_errors=True)
    case.mkdir(parents=True)
    os.chdir(case)
    os.environ["XDG_CONFIG_HOME"] = str(folder / "config")  # what a case keeps, no other finds
    arguments = KINDS[kind](Random(seed))  # to be drawn again, not to be secret
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = _seconds()
    raw = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(each, encoding="utf-8", write_through=True) for each in raw)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(action="error", category=ResourceWarning),
    ):
        code = main(arguments)
    seconds = _seconds() - start
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak)
    texts = [each.getvalue().decode("utf-8", "replace") for each in raw]
    findings = (*_of_streams(code, *texts), *_of_files(folder))
    if seconds > LONGEST_SECONDS:
        findings += (f"took {seconds:.1f} s",)
    if grown > MOST_BYTES:
        findings += (f"took {grown / MOST_BYTES:.1f} GiB",)
    return Outcome(kind, seed, code, findings, tuple(arguments), _seconds() - began)


def _of_streams(code: int, out: str, err: str) -> Iterator[str]:
    if code not in EXIT_CODES:
        yield f"exit code {code}"
    lines = err.splitlines()
    if code == 2 and sum(" warning: " not in line and " note: " not in line for line in lines) < 1:
        yield "refused without a word"
    for line in lines:
        if not line.startswith("dsocr-analyze: "):
            yield f"stderr has {line[:200]!r}"
        if len(line) > LONGEST_MESSAGE:
            yield f"a message of {len(line)} characters: {line[:100]!r}"
        if "internal error" in line:
            yield line[:300]
    for name, text in (("stdout", out), ("stderr", err)):
        if found := _ACTS.search(text):
            yield f"{name} has a character that acts: {found!r}"
    if "Traceback" in out:
        yield "stdout has a traceback"


def _of_files(folder: Path) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        for name in names:
            if _ASIDE.match(name):
                yield f"left {Path(place, name).relative_to(folder)}"
            elif name in _WRITTEN and Path(place, name).is_file():
                text = Path(place, name).read_text(encoding="utf-8", errors="replace")
                text = _SCRIPT.sub("", text)  # the page's own, that of its libraries included
                if name.endswith(".md"):
                    text = _CODE_SPAN.sub("", text)  # where markup is text
                if "<script" in text and not name.endswith(".json"):
                    yield f"{name} has a name as markup"
                if found := _ACTS.search(text):
                    yield f"{name} has a character that acts: {found!r}"


_HANGS_SECONDS: Final = 120.0
"""With others on the processor; without, a case that takes ten seconds is a finding."""
_MOST_MEMORY: Final = 8 << 30
"""Addresses of a process: what asks for more fails, and takes nothing else down."""
_CASES_OF_A_PROCESS: Final = 2000
"""Then another one takes over, so that memory grows in none."""


def _begin() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    os.environ["COLUMNS"] = "100"


def _worker() -> ProcessPoolExecutor:
    """A process that runs one case after the other."""
    return ProcessPoolExecutor(
        1,
        multiprocessing.get_context("spawn"),
        initializer=_begin,
        max_tasks_per_child=_CASES_OF_A_PROCESS,
    )


def _run_in(worker: ProcessPoolExecutor, kind: str, seed: int, folder: Path) -> Outcome:
    """What came of a case; a process that it ended or stopped is killed, and has no code."""
    began = time.monotonic()
    case = worker.submit(run_case, kind, seed, folder)
    process = next(iter((worker._processes or {}).values()))
    try:
        return case.result(_HANGS_SECONDS)
    except TimeoutError:
        said = f"no end after {_HANGS_SECONDS:g} s"
        process.kill()
    except BrokenProcessPool:
        process.join()
        said = f"the process ended with {process.exitcode}"
    worker.shutdown()
    return Outcome(kind, seed, None, (said,), (), time.monotonic() - began)


def outcomes(cases: Iterator[tuple[str, int]], processes: int, folder: Path) -> Iterator[Outcome]:
    """Runs cases in several processes; yields what came of them, in their order."""
    free: queue.SimpleQueue[tuple[ProcessPoolExecutor, Path]] = queue.SimpleQueue()
    for number in range(processes):
        free.put((_worker(), folder / str(number)))

    def run(case: tuple[str, int]) -> Outcome:
        worker, place = free.get()
        outcome = _run_in(worker, *case, place)
        free.put((worker if outcome.code is not None else _worker(), place))
        return outcome

    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(run, cases)
    for _ in range(processes):
        free.get()[0].shutdown()
