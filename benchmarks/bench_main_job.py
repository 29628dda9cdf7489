"""Whole cold processes against `python -c "import torch"`: the main job, and the closed forms.

    python benchmarks/bench_main_job.py

Runs each in turn with the import, so that both see the same machine. Prints a line each; exits 1
where a target is missed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

ROUNDS = 5
IMPORT_TORCH = ("-c", "import torch")


@dataclass(frozen=True)
class Job:
    name: str
    arguments: tuple[str, ...]
    target_ratio: float
    target_mib: int


JOBS = (
    Job("main job", ("--base-size", "1024", "--image-size", "640"), 2.5, 400),
    Job("closed forms", ("--engine", "analytic"), 0.35, 100),
)


def run(arguments: tuple[str, ...], folder: str) -> tuple[float, float]:
    """Seconds and peak MiB of one Python process."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL, env=os.environ
    )
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} exited with {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB elsewhere
    return elapsed, usage.ru_maxrss * unit / 2**20


def measure(job: Job, folder: str) -> bool:
    """Whether a job meets its targets."""
    ours = ("-m", "dsocr_analyze", *job.arguments, "--output", folder)
    for warm_up in (IMPORT_TORCH, ours):  # from here on the files are in the page cache
        run(warm_up, folder)
    pairs = [(run(IMPORT_TORCH, folder), run(ours, folder)) for _ in range(ROUNDS)]
    ratio = statistics.median(mine[0] / torch[0] for torch, mine in pairs)
    torch_s, job_s = (
        statistics.median(run[0] for run in runs) for runs in zip(*pairs, strict=True)
    )
    peak = max(mine[1] for _, mine in pairs)
    print(
        f'{job.name} / python -c "import torch": {ratio:.2f} (target <= {job.target_ratio});'
        f" {job_s:.2f} s / {torch_s:.2f} s, median of {ROUNDS} pairs;"
        f" peak {peak:.0f} MiB (target <= {job.target_mib})"
    )
    return ratio <= job.target_ratio and peak <= job.target_mib


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        met = [measure(job, folder) for job in JOBS]
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
