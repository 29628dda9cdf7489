"""What a page costs, stage by stage: the parts that add up to the whole page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from dsocr_analyze.report.stage_colours import OUTSIDE

if TYPE_CHECKING:
    from dsocr_analyze.report.document import Counts, Report
    from dsocr_analyze.timing.prediction import TimeEntry

__all__ = ["AMOUNTS", "Amount", "batch_parts", "page_parts", "seconds_parts"]

Amount: TypeAlias = "Callable[[Counts], int]"

AMOUNTS: Final[dict[str, Amount]] = {
    "flops": lambda counts: counts.flops,
    "bytes": lambda counts: counts.bytes_moved,
}
"""The part of a stage's counts that is summed."""


def batch_parts(report: Report, amount: Amount) -> dict[str, int]:
    """An amount of the whole batch by stage, all decode steps summed."""
    parts = {name: amount(stage) for name, stage in report.stages.items()}
    if report.decode_name is not None:
        parts[report.decode_name] = amount(report.total.batch) - amount(report.total)
    return parts


def page_parts(report: Report, amount: Amount) -> dict[str, float]:
    """The same for one page: its share of the batch."""
    pages = report.total.page.pages
    return {name: part / pages for name, part in batch_parts(report, amount).items()}


def seconds_parts(report: Report, entry: TimeEntry) -> dict[str, float]:
    """Seconds of a page alone by stage, with the rest under `OUTSIDE`.

    Benchmarks correct the first token as a whole. If the corrected time is below the sum of its
    stages, the stages are scaled down to it.
    """
    before = {
        name: entry.stages[name].seconds if name in entry.stages else 0.0
        for name in report.stages
        if name != report.decode_name
    }
    together = sum(before.values())
    factor = min(1.0, entry.ttft_seconds / together) if together else 1.0
    parts = {name: factor * seconds for name, seconds in before.items()}
    if report.decode_name is not None:
        parts[report.decode_name] = entry.page_seconds - entry.ttft_seconds
    return parts | {OUTSIDE: max(entry.ttft_seconds - factor * together, 0.0)}
