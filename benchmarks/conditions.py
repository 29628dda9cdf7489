"""Where a benchmark runs, and how it judges ratios of what runs in turn."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

README_ENVIRONMENT = Path(__file__).resolve().parent.parent / ".venv"
PACKAGES = ("torch", "transformers", "numpy", "scipy")
"""Packages whose version or presence changes what a benchmark measures."""

# An installed package has its bytecode; without this, every process may compile the sources anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def print_environment() -> None:
    """Prints whose environment this process runs in, versions and processor: one line on stderr."""
    prefix = Path(sys.prefix).resolve()
    whose = (
        "the README's (.venv)" if prefix == README_ENVIRONMENT.resolve() else f"another ({prefix})"
    )
    versions = [f"{name} {version_of(name)}" for name in PACKAGES]
    print(
        f"environment: {whose}, Python {platform.python_version()}, {', '.join(versions)};"
        f" {os.cpu_count()} cores, {processor()}, load {os.getloadavg()[0]:.1f}",
        file=sys.stderr,
    )


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def processor() -> str:
    """The processor's name, and whether it has the wide instructions that change most times."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    known = dict(line.split(":", 1) for line in lines if ":" in line)
    keys = {key.strip(): value.strip() for key, value in known.items()}
    wide = "AVX-512" if "avx512f" in keys.get("flags", "").split() else "no AVX-512"
    return f"{keys.get('model name', platform.machine())} ({wide})"


def slack() -> float:
    """By what factor a limit may be passed: 1, or what `--slack` says."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--slack", type=float, default=1.0, help="factor on every limit")
    return float(parser.parse_args().slack)


def rounds(runs: Sequence[Callable[[], float]], count: int) -> list[list[float]]:
    """What some functions return (seconds), each called once per round, in turn.

    Before the rounds, each is called once: from then on its files are in the page cache.
    """
    for run in runs:
        run()
    return [[run() for run in runs] for _ in range(count)]


def is_within(name: str, ratios: Iterable[float], limit: float, factor: float) -> bool:
    """Whether the median of some ratios is at most a limit; prints it.

    Args:
        name: What the ratio is of.
        ratios: One per round.
        limit: The most that is wanted.
        factor: By how much it may be passed; see `slack`.
    """
    ratios = list(ratios)
    median = statistics.median(ratios)
    is_met = median <= factor * limit
    allowed = f", {factor:g} times that is allowed" if factor != 1 else ""
    print(
        f"{name}: {median:.2f} (at most {limit}{allowed}), median of {len(ratios)} rounds"
        f" from {min(ratios):.2f} to {max(ratios):.2f} {'ok' if is_met else 'MISSED'}"
    )
    return is_met
