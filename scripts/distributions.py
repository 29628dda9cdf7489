#!/usr/bin/env python3
"""Build the wheel and the sdist, install each into a clean environment in turn, and run it.

    make distributions
    PYTHON=python3.12 python3 scripts/distributions.py    with another Python

The environment holds what the main job needs (requirements/analyze.txt) and this project from the
built file; nothing of the checkout can be imported. Each file has to trace a page, to count it by
closed forms with the same result, and to find its package data.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from run import ROOT, SetupError, find_python, install_packages, install_project

COMMANDS = (
    "--version",
    "--base-size 1024 --image-size 640 --output traced",
    "--base-size 1024 --image-size 640 --engine analytic --output closed-forms",
    "tree",
    "devices",
    "time h100 --mode base",
    "sweep --mode tiny,small --output sweep.csv",
)


def build(folder: Path) -> list[Path]:
    """The wheel and the sdist, by the environment that this script runs in."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)],
        cwd=ROOT,
        check=True,
    )
    return sorted(folder.iterdir())


def check(distribution: Path, python: Path, folder: Path) -> None:
    """One distribution in an environment that holds everything else."""
    install_project(str(python), "--force-reinstall", str(distribution))
    for command in COMMANDS:
        print(f"{distribution.name}: dsocr-analyze {command}", flush=True)
        subprocess.run(
            [str(python.with_name("dsocr-analyze")), *command.split()],
            cwd=folder, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    traced, closed_forms = (
        json.loads((folder / name / "static_compute.json").read_text(encoding="utf-8"))["total"]
        for name in ("traced", "closed-forms")
    )
    if traced["flops"] != closed_forms["flops"]:
        raise SetupError(f"{distribution.name}: {traced['flops']} and {closed_forms['flops']}")


def main() -> int:
    """Check both; the exit status is 0 where both work."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = folder / "environment"
        python = environment / "bin" / "python"
        try:
            distributions = build(folder / "built")
            subprocess.run([find_python(), "-m", "venv", str(environment)], check=True)
            install_packages(str(python), "analyze.txt")
            for distribution in distributions:
                (folder / distribution.suffix[1:]).mkdir()
                check(distribution, python, folder / distribution.suffix[1:])
        except (SetupError, subprocess.CalledProcessError) as error:
            print(f"distributions.py: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
