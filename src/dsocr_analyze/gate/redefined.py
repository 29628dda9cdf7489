"""What a change of the budgets themselves changes: what is counted, and what is allowed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from fractions import Fraction
from math import inf
from typing import TypeAlias

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.gate.budgets import LEVELS, Allowance, Budget, Options, Workload
from dsocr_analyze.gate.counted import counted_figures
from dsocr_analyze.gate.document import InputChange, Level
from dsocr_analyze.gate.report_keys import ReportKeys
from dsocr_analyze.report.document import Report

__all__ = ["loosened_keys", "redefinitions"]


def redefinitions(before: Workload, after: Workload) -> Iterator[InputChange]:
    """All options, limits and tolerances of a workload that differ between two revisions."""
    for name in (each.name for each in fields(Options)):
        was, now = getattr(before.options, name), getattr(after.options, name)
        if was != now:
            yield InputChange(kind="workload", key=name, before=_text(was), after=_text(now))
    if before.tolerance != after.tolerance:
        yield InputChange(
            kind="budget", key="tolerance", before=before.tolerance.text, after=after.tolerance.text
        )
    old, new = _by_key(before), _by_key(after)
    for key in dict.fromkeys([*new, *old]):
        if old.get(key) != new.get(key):
            yield InputChange(kind="budget", key=key, before=old.get(key), after=new.get(key))


def _text(value: object) -> str | None:
    if isinstance(value, tuple):
        return ", ".join(value) or None
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _by_key(workload: Workload) -> Mapping[str, str]:
    """The limits of each key, in words."""
    found: dict[str, str] = {}
    for budget in workload.budgets:
        limits = ", ".join(f"{name} {text}" for name, text in budget.limits().items())
        words = f"{limits} ({budget.level})"
        found[budget.key] = f"{found[budget.key]}; {words}" if budget.key in found else words
    return found


def loosened_keys(before: Workload, after: Workload, baseline: Report) -> list[str]:
    """The figures that may now have a value that they might not have before.

    A figure without a budget may differ from the baseline's by the tolerance, so a first budget for
    it loosens its limit unless it allows no more than that.

    Args:
        before: The workload in the baseline.
        after: The workload now.
        baseline: The baseline's report, which relative limits refer to.
    """
    keys = ReportKeys(baseline)
    old, new = _by_figure(before, keys), _by_figure(after, keys)
    values = counted_figures(baseline) | dict([*old, *new])
    found = []
    for key, value in values.items():
        budgets = old.get((key, value), ()), new.get((key, value), ())
        for levels in (LEVELS, ("error",)):
            was = _allowed(budgets[0], before.tolerance, value, levels)
            now = _allowed(budgets[1], after.tolerance, value, levels)
            if now[0] < was[0] or now[1] > was[1]:
                found.append(key)
                break
    return found


_Figure: TypeAlias = tuple[str, int | float | None]


def _by_figure(workload: Workload, keys: ReportKeys) -> Mapping[_Figure, Sequence[Budget]]:
    """The budgets of each figure that the baseline has."""
    found: defaultdict[_Figure, list[Budget]] = defaultdict(list)
    for budget in workload.budgets:
        with suppress(ConfigError):  # a key that the baseline does not have
            for key, value in keys.figures(budget.key):
                found[key, value].append(budget)
    return found


def _allowed(
    budgets: Sequence[Budget], tolerance: Allowance, value: float | None, levels: Sequence[Level]
) -> tuple[float | Fraction, float | Fraction]:
    """The smallest and largest value that a figure may have, given the baseline's.

    Args:
        budgets: Its budgets.
        tolerance: How much a figure without a budget may differ.
        value: The baseline's value; None if unknown.
        levels: The levels of the budgets to consider.
    """
    lows: list[float | Fraction] = [-inf]
    highs: list[float | Fraction] = [inf]
    chosen = [each for each in budgets if each.level in levels]
    lows += [each.min for each in chosen if each.min is not None]
    highs += [each.max for each in chosen if each.max is not None]
    if value is not None:
        falls = [each.max_decrease for each in chosen] if budgets else [tolerance]
        rises = [each.max_increase for each in chosen] if budgets else [tolerance]
        lows += [Fraction(value) - each.of(value) for each in falls if each is not None]
        highs += [Fraction(value) + each.of(value) for each in rises if each is not None]
    return max(lows), min(highs)
