"""A whole check: all workloads judged, and the overall outcome."""

from __future__ import annotations

from collections.abc import Iterable

from dsocr_analyze.gate.document import (
    Baseline,
    Check,
    WorkloadCheck,
    worst,
)
from dsocr_analyze.report.document import SCHEMA_VERSION
from dsocr_analyze.report.opening import NO_OPTIONS, Options
from dsocr_analyze.version import VERSION

__all__ = ["whole_check"]


def whole_check(
    budgets: str,
    baseline: Baseline | None,
    workloads: Iterable[WorkloadCheck],
    warnings: tuple[str, ...] = (),
    options: Options = NO_OPTIONS,
) -> Check:
    """The check of these workloads.

    Args:
        budgets: The file with the budgets.
        baseline: What they were compared with; None without a baseline.
        workloads: The judged workloads.
        warnings: Doubts that apply to all of them.
        options: The command line's options, if there is one.
    """
    found = tuple(workloads)
    outcome = worst(*(each.outcome for each in found), "warned" if warnings else "passed")
    return Check(
        schema_version=SCHEMA_VERSION, command="check", options=options, outcome=outcome,
        tool=VERSION, budgets=budgets,
        baseline=baseline, workloads=found, warnings=warnings,
    )  # fmt: skip
