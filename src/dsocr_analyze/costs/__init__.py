"""Closed forms: what any page costs, without torch, in microseconds.

One file a layer family, pure functions of integers or integer arrays; `compose` puts them together
for a whole model, `totals` does so for many workloads at once, `agreement` holds them against a
trace.
"""

from __future__ import annotations

from dsocr_analyze.costs.compose import PageCosts, StageCosts, page_costs

__all__ = ["PageCosts", "StageCosts", "page_costs"]
