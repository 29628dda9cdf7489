"""What `bench_serving_tables.py` found for every GPU, as saved, and what docs/pricing.md says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dsocr_analyze.hardware import device

SAVED = Path(__file__).parent / "measured" / "serving_tables.json"
LIMIT = 0.05
REASONS = {
    ("h200-sxm", 1): ", where one row takes twice as long over 1,024 columns as over 768 or 1,536,"
    " between which are ours, 1,280"
}
"""What is known about cases beyond the limit."""


class Case(NamedTuple):
    """One GPU and concurrency."""

    gpu: str
    sequences: int
    """Pages at a time."""
    kernel_seconds: float
    """Seconds of a page's kernels, as predicted."""
    covered: float
    """Share of them that tables cover; what follows is over this part."""
    signed: float
    """By how much tables are above the formulas in sum."""
    absolute: float
    """The same kernel by kernel, without their signs."""
    kernel: str
    """The kernel whose difference is the largest share of this part."""
    worst: float
    """By how much tables are above the formula of this kernel."""

    @property
    def is_met(self) -> bool:
        return abs(self.signed) <= LIMIT


def sentence(cases: Sequence[Case]) -> str:
    """What docs/pricing.md says about these cases."""
    met = [case for case in cases if case.is_met]
    covered = [f"{100 * each(case.covered for case in cases):.0f}" for each in (min, max)]
    apart = [f"{100 * each(case.absolute for case in met):.0f}" for each in (min, max)]
    worst = max(met, key=lambda case: abs(case.worst))
    beyond = "; ".join(
        f"{device(case.gpu).gpu.title} with {case.sequences} at a time is"
        f" {100 * abs(case.signed):.1f} % off{REASONS.get(case[:2], '')}"
        for case in cases
        if not case.is_met
    )
    return (
        f"Compared with kernels interpolated from the measured tables, which cover {covered[0]} to"
        f" {covered[1]} % of a served page's seconds, the sum of these seconds is within"
        f" {100 * LIMIT:.0f} % in {len(met)} of {len(cases)} cases. Errors of single kernels cancel"
        f" in it: without their signs they add up to {apart[0]} to {apart[1]} %, and the worst that"
        f" counts, `{worst.kernel}` on {device(worst.gpu).gpu.title} with {worst.sequences} at a"
        f" time, is {100 * abs(worst.worst):.0f} % off."
        f"{' ' * bool(beyond)}{beyond} (`benchmarks/bench_serving_tables.py`)."
    )


def save(cases: Sequence[Case]) -> None:
    """Keep the cases, one per line."""
    lines = ",\n".join(json.dumps(case._asdict()) for case in cases)
    SAVED.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def saved_cases() -> list[Case]:
    """The cases as last saved."""
    return [Case(**each) for each in json.loads(SAVED.read_text(encoding="utf-8"))]
