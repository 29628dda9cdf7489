"""A whole check: every workload judged, and what came of all of them."""

from __future__ import annotations

from collections.abc import Iterable

from dsocr_analyze.gate.document import (
    CHECK_SCHEMA_VERSION,
    Baseline,
    Check,
    WorkloadCheck,
    worst,
)
from dsocr_analyze.version import VERSION

__all__ = ["whole_check"]


def whole_check(
    budgets: str,
    baseline: Baseline | None,
    workloads: Iterable[WorkloadCheck],
    warnings: tuple[str, ...] = (),
) -> Check:
    """The check that these workloads amount to.

    Args:
        budgets: The file with the budgets.
        baseline: What they were compared with; None for nothing.
        workloads: Each one, judged.
        warnings: What is in doubt of all of them.
    """
    found = tuple(workloads)
    outcome = worst(*(each.outcome for each in found), "warned" if warnings else "passed")
    return Check(
        schema_version=CHECK_SCHEMA_VERSION, outcome=outcome, tool=VERSION, budgets=budgets,
        baseline=baseline, workloads=found, warnings=warnings,
    )  # fmt: skip
