"""The CPU seconds of every task in docs/tasks.md, against those of `python -c "import torch"`.

    python benchmarks/bench_tasks.py [--slack 1.2]

Tasks that trace the model have no limit here (`bench_main_job.py` has one for them); all others run
nothing, and may take half an import, libraries for files and pictures included. Each task is a
process of its own, in turn with the import, and CPU seconds are those of the process and its
children. Exits with 1 where a limit is missed. Needs the extras `pdf`, `plot` and `html`.
"""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from conditions import is_within, print_environment, rounds, slack
from task_files import write_task_files

from dsocr_analyze.cli.docs import TASKS

ROUNDS = 3
IMPORT_TORCH = ("-c", "import torch")
MOST = 0.5


def runs_nothing(task: str) -> bool:
    """Whether a task answers without tracing the model."""
    words = shlex.split(task)
    is_main = not words or words[0].startswith("-")
    return "analytic" in words if is_main else words[0] != "tree"


def cpu_seconds(arguments: tuple[str, ...], folder: str) -> float:
    """What a Python process and its children take, over all cores."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "XDG_CONFIG_HOME": folder},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    print_environment()
    factor = slack()
    tasks = list(filter(runs_nothing, TASKS.values()))
    with tempfile.TemporaryDirectory() as folder:
        write_task_files(Path(folder))
        command = ("-m", "dsocr_analyze")
        cpu_seconds((*command, "--engine", "analytic", "--json", "report.json", "-q"), folder)
        runs = [IMPORT_TORCH, *((*command, *shlex.split(task)) for task in tasks)]
        taken = rounds([partial(cpu_seconds, each, folder) for each in runs], ROUNDS)
    met = [
        is_within(f"dsocr-analyze {task}", [row[place] / row[0] for row in taken], MOST, factor)
        for place, task in enumerate(tasks, 1)
    ]
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
