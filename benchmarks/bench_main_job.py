"""Whole cold processes against `python -c "import torch"`, and a warm session against the command.

    python benchmarks/bench_main_job.py [--slack 1.2]

The main job, a start that only states the version, the analytic engine, predicted seconds, all
models compared, and the main job on a vendor directory (DSOCR_VENDOR_DIR, or models/deepseek-ocr;
left out where there is none). They run in turn with the import, so that all see the same machine.
Then `DeepSeekOCRSession.analyze()` in a process that has analyzed before, against what the command
spends on the same call. Prints one line per figure; exits with 1 where a target is missed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from conditions import is_within, print_environment, rounds, slack

ROUNDS = 5
IMPORT_TORCH = ("-c", "import torch")
VENDOR = Path(os.environ.get("DSOCR_VENDOR_DIR") or "models/deepseek-ocr")

SAMPLE_SECONDS = 0.02
"""Between two looks at the memory of a process and its children."""

WARM_SESSION = """
import json, time
from dsocr_analyze import DeepSeekOCRSession
seconds = []
session = DeepSeekOCRSession.from_local()
for _ in range(6):
    start = time.perf_counter()
    session.analyze(page=(1240, 1754))
    seconds.append(time.perf_counter() - start)
print(json.dumps(seconds))
"""
"""The first call is what the command spends on it; the others are warm."""

WARM_LIMIT = 1.5


@dataclass(frozen=True)
class Job:
    name: str
    arguments: tuple[str, ...]
    most_ratio: float
    most_mib: int
    is_written: bool = True
    """Whether it writes its report to `--output`."""


def jobs() -> list[Job]:
    main_job = ("--base-size", "1024", "--image-size", "640")
    found = [
        Job("main job", (*main_job, "--model", "reference"), 1.5, 360),
        Job("start", ("--version",), 0.25, 40, False),
        Job("analytic engine", ("--engine", "analytic", "--model", "reference"), 0.3, 100),
        Job("time h100-sxm", ("time", "h100-sxm", "--model", "reference"), 0.3, 100, False),
        Job("compare --all", ("compare", "--all", "--gpu", "h100-sxm"), 1.0, 120, False),
    ]
    if (VENDOR / "config.json").is_file():
        directory = ("--model", str(VENDOR.resolve()), "--trust-remote-code")
        found.append(Job("vendor directory", (*main_job, *directory), 3.0, 400))
    return found


def run(arguments: tuple[str, ...], folder: str) -> float:
    """Seconds of one Python process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def peak_mib(arguments: tuple[str, ...], folder: str) -> float:
    """Most resident memory of one Python process and all its children together."""
    process = subprocess.Popen([sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, sum(map(resident_mib, family(process.pid))))
        time.sleep(SAMPLE_SECONDS)
    return peak


def family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(below for child in children for below in family(int(child)))]


def resident_mib(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it has ended
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def is_met(job: Job, seconds: list[list[float]], column: int, folder: str, factor: float) -> bool:
    """Whether a job keeps its limits; its seconds are a column beside those of the import."""
    name = f'{job.name} / python -c "import torch"'
    within = is_within(name, [row[column] / row[0] for row in seconds], job.most_ratio, factor)
    peak = peak_mib(command(job, folder), folder)
    print(f"{job.name}: peak of the process tree {peak:.0f} MiB (at most {job.most_mib})")
    return within and peak <= factor * job.most_mib


def command(job: Job, folder: str) -> tuple[str, ...]:
    writes = ("--output", folder) if job.is_written else ()
    return ("-m", "dsocr_analyze", *job.arguments, *writes)


def is_warm_session_fast(factor: float) -> bool:
    """Whether a warm session is no slower than what the command does."""
    output = subprocess.run(
        [sys.executable, "-c", WARM_SESSION], stdout=subprocess.PIPE, check=True
    ).stdout
    first, *warm = json.loads(output)
    ratios = [seconds / first for seconds in warm]
    return is_within("session.analyze() warm / first call", ratios, WARM_LIMIT, factor)


def main() -> int:
    print_environment()
    factor, found = slack(), jobs()
    with tempfile.TemporaryDirectory() as folder:
        runs = [IMPORT_TORCH, *(command(job, folder) for job in found)]
        seconds = rounds([partial(run, each, folder) for each in runs], ROUNDS)
        met = [is_met(job, seconds, column, folder, factor) for column, job in enumerate(found, 1)]
    met.append(is_warm_session_fast(factor))
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
