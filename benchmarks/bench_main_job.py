"""Whole cold processes against `python -c "import torch"`, and a warm session against the command.

    python benchmarks/bench_main_job.py

The main job, the analytic engine, predicted seconds, and the main job on a vendor directory
(DSOCR_VENDOR_DIR, or models/deepseek-ocr; left out where there is none). Each runs in turn with the
import, so that both see the same machine. Then `DeepSeekOCRSession.analyze()` in a process that has
analyzed before, against what the command spends on the same call. Prints one line per figure; exits
with 1 where a target is missed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

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

WARM_TARGET = 1.5


@dataclass(frozen=True)
class Job:
    name: str
    arguments: tuple[str, ...]
    target_ratio: float
    target_mib: int
    is_written: bool = True
    """Whether it writes its report to `--output`."""


def jobs() -> list[Job]:
    main_job = ("--base-size", "1024", "--image-size", "640")
    found = [
        Job("main job", (*main_job, "--model", "reference"), 2.0, 400),
        Job("analytic engine", ("--engine", "analytic", "--model", "reference"), 0.3, 100),
        Job("time h100-sxm", ("time", "h100-sxm", "--model", "reference"), 0.5, 100, False),
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


def measure(job: Job, folder: str) -> bool:
    """Whether a job meets its targets."""
    writes = ("--output", folder) if job.is_written else ()
    ours = ("-m", "dsocr_analyze", *job.arguments, *writes)
    for warm_up in (IMPORT_TORCH, ours):  # from here on the files are in the page cache
        run(warm_up, folder)
    pairs = [(run(IMPORT_TORCH, folder), run(ours, folder)) for _ in range(ROUNDS)]
    ratio = statistics.median(mine / torch for torch, mine in pairs)
    torch_s, job_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    peak = peak_mib(ours, folder)
    print(
        f'{job.name} / python -c "import torch": {ratio:.2f} (target <= {job.target_ratio});'
        f" {job_s:.2f} s / {torch_s:.2f} s, median of {ROUNDS} pairs;"
        f" peak of the process tree {peak:.0f} MiB (target <= {job.target_mib})"
    )
    return ratio <= job.target_ratio and peak <= job.target_mib


def measure_warm_session() -> bool:
    """Whether a warm session is no slower than what the command does."""
    output = subprocess.run(
        [sys.executable, "-c", WARM_SESSION], stdout=subprocess.PIPE, check=True
    ).stdout
    first, *warm = json.loads(output)
    ratio = statistics.median(warm) / first
    print(
        f"session.analyze() warm / first call: {ratio:.2f} (target <= {WARM_TARGET});"
        f" {statistics.median(warm):.2f} s / {first:.2f} s"
    )
    return ratio <= WARM_TARGET


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        met = [measure(job, folder) for job in jobs()]
    met.append(measure_warm_session())
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
