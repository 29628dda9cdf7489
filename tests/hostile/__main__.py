"""Runs a campaign: `python -m hostile --cases 100000`, from the folder `tests`."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from hostile.faults import FAULTS, faults
from hostile.kinds import KINDS, scheduled
from hostile.workers import outcomes

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
        for name, findings, ended in faults(counts, seed, Path(folder, "job")):
            codes = ", ".join(f"{count:,} with {code}" for code, count in sorted(ended.items()))
            print(f"{name:>16}: {counts[name]:,} times; exit codes: {codes or 'none'}")
            for finding in findings:
                print(f"FOUND {finding}", flush=True)
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
    for name, count in (("killed", 200), ("interrupted", 1000), ("full-disk", 200),
                        ("two-writers", 50)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=count, help="default: %(default)s times")
    asked = parser.parse_args()
    counts = {name: vars(asked)[name.replace(" ", "_")] for name in FAULTS}
    broken = campaign(asked.kind or list(KINDS), asked.cases, asked.seed, asked.processes)
    if any(counts.values()):
        broken += fault_campaign(counts, asked.seed)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
