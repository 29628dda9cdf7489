"""Judges a workload's report by its budgets and its baseline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, inf
from typing import Any, Final

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.gate.budgets import LEVELS, Budget, Limit, Workload
from dsocr_analyze.gate.compared import (
    Compared,
    changed_input,
    compared,
    counted_figures,
    input_changes,
    listed,
    moves,
)
from dsocr_analyze.gate.document import (
    Figure,
    InputChange,
    InputKind,
    Outcome,
    Verdict,
    WorkloadCheck,
    worst,
)
from dsocr_analyze.gate.report_keys import NamedFigure, ReportKeys, is_number
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.tables import headline

__all__ = ["Counted", "judge", "loosened_keys", "redefinitions"]

_MOST_NAMED: Final = 8
"""Most keys named in a warning."""


@dataclass(frozen=True)
class Counted:
    """A workload's reports.

    Attributes:
        report: Its report now.
        baseline: Its report in the baseline; None if there is none.
        is_compared: Whether a baseline was requested.
        before: The workload in the baseline; None if the baseline has none.
        warnings: Doubts about the two.
    """

    report: Report
    baseline: Report | None = None
    is_compared: bool = False
    before: Workload | None = None
    warnings: tuple[str, ...] = ()


def judge(workload: Workload, counted: Counted) -> WorkloadCheck:
    """Check figures with a budget against it, and all others against the baseline.

    A figure named by a budget is judged by its budgets alone; any other must equal the baseline's
    within the workload's tolerance.

    Raises:
        ConfigError: A budget's key does not name a number in the report.
    """
    report, baseline, before = counted.report, counted.baseline, counted.before
    keys = ReportKeys(report)
    old_keys = None if baseline is None else ReportKeys(baseline)
    warnings = [*counted.warnings, *report.warnings]
    verdicts: list[Verdict] = []
    named: set[str] = set()
    for budget in workload.budgets:
        try:
            found = keys.figures(budget.key)
        except ConfigError as error:
            raise ConfigError(f"workload {workload.name!r}: {error}") from error
        named.update(figure.key for figure in found)
        if old_keys is not None and "*" in budget.key:  # figures that are gone are only there
            named.update(path for path, _ in old_keys.values(budget.key))
        for figure in found:
            verdicts += _of_budget(budget, figure, old_keys, is_compared=counted.is_compared)
    inputs = [] if before is None else list(redefinitions(before, workload))
    changes, loosened = Compared(), []
    if baseline is not None:
        changes = compared(baseline, report)
        found_inputs = input_changes(baseline, report, changes.words)
        said = {(each.kind, each.key) for each in found_inputs}
        inputs = found_inputs + [each for each in inputs if (each.kind, each.key) not in said]
        others = (each for each in changes.changed if each.key not in named)
        verdicts += (_of_change(each, workload.default) for each in others)
        warnings += _doubts_of_code(baseline, report)
        loosened = [] if before is None else loosened_keys(before, workload, baseline)
    doubts = {
        "limits are looser than the baseline's": loosened,
        "another workload is counted than in the baseline": _keys(inputs, "workload"),
        "the report states other things than the baseline": _keys(inputs, "report"),
    }
    warnings += [f"{what}: {listed(keys, _MOST_NAMED)}" for what, keys in doubts.items() if keys]
    verdicts.sort(key=lambda each: ("failed", "warned", "passed").index(each.outcome))
    return WorkloadCheck(
        name=workload.name,
        outcome=worst(*(each.outcome for each in verdicts), "warned" if warnings else "passed"),
        title=f"{headline(report)}; {report.workload.title}",
        is_compared=baseline is not None,
        inputs=tuple(inputs),
        moved=() if baseline is None else tuple(moves(baseline, report)),
        changed=tuple(changes.changed),
        following=changes.following,
        unchanged=changes.unchanged,
        verdicts=tuple(verdicts),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _of_budget(
    budget: Budget, figure: NamedFigure, baseline: ReportKeys | None, *, is_compared: bool
) -> Iterator[Verdict]:
    """One verdict per limit of a budget."""
    key, value = figure
    found = [] if baseline is None else [each for _, each in baseline.values(key)]
    before = found[0] if found and is_number(found[0]) else None
    for limit in budget.limits():
        outcome: Outcome = "failed" if budget.level == "error" else "warned"
        last, why = _last(limit, before), ""
        if value is None:
            last, why = None, "it is unknown (null) in this report"
        elif last is None and is_compared:  # the figure is new, unless nothing has a baseline
            outcome = "warned" if baseline is None else outcome
            why = "the baseline has no such figure"
        elif last is None:
            outcome, why = "passed", "there is no baseline"
        message = f"{key} cannot be checked against {limit.text}: {why}"
        if value is not None and last is not None:
            is_kept = limit.keeps(value, last)
            outcome = "passed" if is_kept else outcome
            side = "above" if limit.is_upper else "below"
            message = "" if is_kept else (
                f"{key} is {_text(value)}, {side} {_text(last)} ({limit.text})"
            )  # fmt: skip
        yield Verdict(
            key=key, rule=limit.text, outcome=outcome, value=value, baseline=before, limit=last,
            message=message,
        )  # fmt: skip


def _last(limit: Limit, before: int | float | None) -> int | float | None:
    """The last allowed value; a whole number if `before` is one."""
    exact = limit.value(before)
    if not isinstance(exact, Fraction):
        return exact
    if isinstance(before, float):
        return float(exact)
    return floor(exact) if limit.is_upper else ceil(exact)


def _text(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _of_change(figure: Figure, default: Budget) -> Verdict:
    """The verdict on a figure that changed and has no budget."""
    key, before, after = figure.key, figure.before, figure.after
    last, message = None, ""
    if before is None or after is None:
        message = f"{key} is {'gone' if after is None else 'new'}, and has no budget"
    else:
        [limit] = [each for each in default.limits() if each.is_upper == (after > before)]
        last = _last(limit, before)
        if last is None or not limit.keeps(after, last):
            message = f"{key} went from {before:,} to {after:,}, and has no budget"
    return Verdict(
        key=key, rule="baseline", outcome="failed" if message else "passed", value=after,
        baseline=before, limit=last, message=message,
    )  # fmt: skip


def _doubts_of_code(before: Report, after: Report) -> Iterator[str]:
    """Warnings about code changes that closed forms cannot see."""
    old, new = before.metadata.model, after.metadata.model
    is_ours = old.source == new.source == "reference"  # this code changes only with the tool
    if (
        not is_ours
        and old.code_digest != new.code_digest
        and "analytic" in (before.metadata.engine, after.metadata.engine)
    ):
        yield (
            "the model's Python files differ from the baseline's, and closed forms do not run"
            ' them; engine = "trace" counts what they do'
        )


def _keys(inputs: Sequence[InputChange], kind: InputKind) -> list[str]:
    return [each.key for each in inputs if each.kind == kind]


# --- changed budgets -----------------------------------------------------------------------------


def redefinitions(before: Workload, after: Workload) -> Iterator[InputChange]:
    """All options, limits and tolerances of a workload that differ between two revisions."""
    parts: list[tuple[InputKind, Mapping[str, Any], Mapping[str, Any]]] = [
        ("workload", vars(before.options), vars(after.options)),
        ("budget", _limits_of(before), _limits_of(after)),
    ]
    for kind, old, new in parts:
        for key in {**new, **old}:
            yield from changed_input(kind, key, old.get(key), new.get(key))


def _limits_of(workload: Workload) -> Mapping[str, str]:
    """The tolerance and the limits of each key, in words."""
    found = defaultdict(list, tolerance=[workload.tolerance.text])
    for budget in workload.budgets:
        limits = ", ".join(each.text for each in budget.limits())
        found[budget.key].append(f"{limits} ({budget.level})")
    return {key: "; ".join(words) for key, words in found.items()}


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
        was, now = old.get((key, value), [before.default]), new.get((key, value), [after.default])
        ranges = (
            (*_allowed(was, value, levels), *_allowed(now, value, levels))
            for levels in (LEVELS, ("error",))
        )
        if any(lowest < low or highest > high for low, high, lowest, highest in ranges):
            found.append(key)
    return found


def _by_figure(
    workload: Workload, keys: ReportKeys
) -> Mapping[tuple[str, int | float | None], Sequence[Budget]]:
    """The budgets of each figure that the baseline has."""
    found: defaultdict[tuple[str, int | float | None], list[Budget]] = defaultdict(list)
    for budget in workload.budgets:
        with suppress(ConfigError):  # a key that the baseline does not have
            for figure in keys.figures(budget.key):
                found[figure].append(budget)
    return found


def _allowed(
    budgets: Sequence[Budget], value: int | float | None, levels: Sequence[str]
) -> tuple[float | Fraction, float | Fraction]:
    """The smallest and largest value that a figure may have.

    Args:
        budgets: Its budgets.
        value: The baseline's value; None if unknown.
        levels: The levels of the budgets to consider.
    """
    limits = [limit for each in budgets if each.level in levels for limit in each.limits()]
    ends = [(each.is_upper, each.value(value)) for each in limits]
    lows = [end for is_upper, end in ends if end is not None and not is_upper]
    highs = [end for is_upper, end in ends if end is not None and is_upper]
    return max([-inf, *lows]), min([inf, *highs])
