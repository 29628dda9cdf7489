#!/usr/bin/env python3
"""Build the wheel and the sdist, install each into clean environments in turn, and run it.

    make distributions
    PYTHON=python3.12 python3 scripts/distributions.py    with another Python

One environment holds what is installed without an extra (requirements/base.txt), the other what the
main job needs (requirements/analyze.txt), and each this project from the built file; nothing of the
checkout can be imported. Without torch, each file has to answer what runs nothing, to name what is
missing for the rest, and to stay small; with it, to trace a page with the same result. Both have to
find their package data.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from run import BASE_LOCK, ROOT, SetupError, find_python, install_packages, install_project

MAIN = "--base-size 1024 --image-size 640"
PREDICTED = ("devices", "time h100 --mode base", "sweep --mode tiny,small --output sweep.csv")
COMMANDS = {
    BASE_LOCK: (
        "--version",
        f"{MAIN} --output counted",
        *PREDICTED,
        "fit h100",
        "plan --pages 2M --deadline 24h --gpu h100",
        "advise --page a4@200",
        "compare base gundam",
        "archive pages.csv",
    ),
    "analyze.txt": (
        "--version",
        f"{MAIN} --output traced",
        f"{MAIN} --engine analytic --output closed-forms",
        "tree",
        *PREDICTED,
    ),
}
"""What runs where the packages of a lock are installed."""

RUNNING = ("tree", "--engine trace", "measure", "docs --output pages")
"""What is refused without torch."""

MOST_MEGABYTES = 350


def build(folder: Path) -> list[Path]:
    """The wheel and the sdist, by the environment that this script runs in."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)],
        cwd=ROOT,
        check=True,
    )
    return sorted(folder.iterdir())


def check(distribution: Path, lock: str, python: Path, folder: Path) -> None:
    """One distribution in an environment that holds everything else."""
    install_project(str(python), "--force-reinstall", str(distribution))
    program = str(python.with_name("dsocr-analyze"))
    for command in COMMANDS[lock]:
        print(f"{distribution.name}: dsocr-analyze {command}", flush=True)
        subprocess.run(
            [program, *command.split()], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
    for command in RUNNING if lock == BASE_LOCK else ():
        done = subprocess.run(
            [program, *command.split()], cwd=folder, capture_output=True, text=True
        )
        if done.returncode != 2 or "pip install 'dsocr-analyze[trace]'" not in done.stderr:
            raise SetupError(f"{distribution.name}: {command}: {done.returncode}, {done.stderr}")


def check_size(environment: Path) -> None:
    """What an environment without torch takes on disk, with pip and what builds this project."""
    files = [path for path in environment.rglob("*") if path.is_file() and not path.is_symlink()]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    print(f"without torch: {megabytes:.0f} MB", flush=True)
    if megabytes > MOST_MEGABYTES:
        raise SetupError(f"it may take {MOST_MEGABYTES} MB")


def main() -> int:
    """Check both; the exit status is 0 where both work."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            distributions = build(folder / "built")
            for lock in COMMANDS:
                environment = folder / lock.partition(".")[0]
                python = environment / "bin" / "python"
                subprocess.run([find_python(), "-m", "venv", str(environment)], check=True)
                install_packages(str(python), lock)
                for distribution in distributions:
                    here = folder / distribution.suffix[1:]
                    here.mkdir(exist_ok=True)
                    (here / "pages.csv").write_text("width,height\n1240,1754\n")
                    check(distribution, lock, python, here)
                if lock == BASE_LOCK:
                    check_size(environment)
            reports = {path: _flops_in(path) for path in folder.glob("*/*/static_compute.json")}
            if len({*reports.values()}) != 1:
                raise SetupError(f"reports differ: {reports}")
        except (SetupError, subprocess.CalledProcessError) as error:
            print(f"distributions.py: {error}", file=sys.stderr)
            return 1
    return 0


def _flops_in(report: Path) -> int:
    flops: int = json.loads(report.read_text(encoding="utf-8"))["total"]["flops"]
    return flops


if __name__ == "__main__":
    sys.exit(main())
