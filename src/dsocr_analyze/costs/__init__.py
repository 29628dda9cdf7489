"""Closed forms: what any page costs, without torch, in microseconds.

One file a layer family, pure functions of integers or integer arrays; `compose` puts them together
for a whole model, `totals` does so for many workloads at once, `agreement` holds them against a
trace.
"""

from __future__ import annotations

from dsocr_analyze.costs.agreement import NOT_MODELLED, Agreement, Difference, compare_with_trace
from dsocr_analyze.costs.compose import PageCosts, StageCosts, page_costs
from dsocr_analyze.costs.totals import PageTotals, page_totals

__all__ = [
    "NOT_MODELLED",
    "Agreement",
    "Difference",
    "PageCosts",
    "PageTotals",
    "StageCosts",
    "compare_with_trace",
    "page_costs",
    "page_totals",
]
