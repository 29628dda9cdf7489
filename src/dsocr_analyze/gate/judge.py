"""Judges a workload's report by its budgets and its baseline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.gate.budgets import Allowance, Budget, Workload
from dsocr_analyze.gate.counted import Compared, compared
from dsocr_analyze.gate.document import (
    Figure,
    Level,
    Outcome,
    Verdict,
    WorkloadCheck,
    worst,
)
from dsocr_analyze.gate.inputs import input_changes
from dsocr_analyze.gate.moved import moves
from dsocr_analyze.gate.redefined import loosened_keys, redefinitions
from dsocr_analyze.gate.report_keys import NamedFigure, ReportKeys
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.tables import headline

__all__ = ["Counted", "judge"]

_OUTCOME: Final[dict[Level, Outcome]] = {"warn": "warned", "error": "failed"}

_DOUBTFUL: Final = {
    "workload": "another workload is counted than in the baseline",
    "report": "the report states other things than the baseline",
}
"""The warning about each kind of input that a change of the model does not change."""

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
    report, baseline = counted.report, counted.baseline
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
            named.update(old_keys.paths(budget.key))
        for figure in found:
            verdicts += _of_budget(budget, figure, old_keys, is_compared=counted.is_compared)
    before = counted.before
    inputs = [] if before is None else list(redefinitions(before, workload))
    changes = Compared()
    if baseline is not None:
        changes = compared(baseline, report)
        found_inputs = input_changes(baseline, report, changes.words)
        said = {(each.kind, each.key) for each in found_inputs}
        inputs = found_inputs + [each for each in inputs if (each.kind, each.key) not in said]
        verdicts += _of_changes(changes.changed, named, workload.tolerance)
        warnings += _doubts_of_code(baseline, report)
        if before not in (None, workload):
            loosened = loosened_keys(before, workload, baseline)
            warnings += _named("limits are looser than the baseline's", loosened)
    for kind, what in _DOUBTFUL.items():
        warnings += _named(what, [each.key for each in inputs if each.kind == kind])
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


# --- budgets ---------------------------------------------------------------------------------


def _of_budget(
    budget: Budget, figure: NamedFigure, baseline: ReportKeys | None, *, is_compared: bool
) -> Iterator[Verdict]:
    """One verdict per limit of a budget."""
    level = _OUTCOME[budget.level]
    before = _in_baseline(baseline, figure.key)
    for name, text in budget.limits().items():
        rule = f"{name} {text}"
        allowance = {"max_increase": budget.max_increase, "max_decrease": budget.max_decrease}.get(
            name
        )
        if figure.value is None:
            yield _unjudged(figure, rule, before, level, "it is unknown (null) in this report")
        elif allowance is None:
            limit = budget.max if name == "max" else budget.min
            assert limit is not None, "limits() names those that there are"
            yield _verdict(figure, rule, before, limit, level, is_upper=name == "max")
        elif before is None:
            # In a comparison, a figure that the baseline lacks is new.
            outcome: Outcome = level if baseline is not None else "warned"
            why = "the baseline has no such figure" if is_compared else "there is no baseline"
            yield _unjudged(figure, rule, before, outcome if is_compared else "passed", why)
        else:
            is_upper = name == "max_increase"
            limit = _limit(before, allowance, is_upper=is_upper)
            yield _verdict(figure, rule, before, limit, level, is_upper=is_upper)


def _in_baseline(baseline: ReportKeys | None, key: str) -> int | float | None:
    if baseline is None or not baseline.has(key):
        return None
    try:
        [figure] = baseline.figures(key)
    except ConfigError:
        return None
    return figure.value


def _limit(before: int | float, allowance: Allowance, *, is_upper: bool) -> int | float:
    """The last allowed value; a whole number if `before` is one."""
    room = allowance.of(before)
    exact = Fraction(before) + (room if is_upper else -room)
    if isinstance(before, float):
        return float(exact)
    return exact.__floor__() if is_upper else exact.__ceil__()


def _verdict(
    figure: NamedFigure,
    rule: str,
    before: int | float | None,
    limit: int | float,
    level: Outcome,
    *,
    is_upper: bool,
) -> Verdict:
    value = figure.value
    assert value is not None, "an unknown figure is judged elsewhere"
    is_kept = value <= limit if is_upper else value >= limit
    side = "above" if is_upper else "below"
    message = "" if is_kept else f"{figure.key} is {_text(value)}, {side} {_text(limit)} ({rule})"
    return Verdict(
        key=figure.key, rule=rule, outcome="passed" if is_kept else level, value=value,
        baseline=before, limit=limit, message=message,
    )  # fmt: skip


def _unjudged(
    figure: NamedFigure, rule: str, before: int | float | None, outcome: Outcome, why: str
) -> Verdict:
    message = f"{figure.key} cannot be checked against {rule}: {why}"
    return Verdict(
        key=figure.key, rule=rule, outcome=outcome, value=figure.value, baseline=before, limit=None,
        message=message,
    )  # fmt: skip


def _text(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


# --- the baseline ----------------------------------------------------------------------------


def _of_changes(changed: list[Figure], named: set[str], tolerance: Allowance) -> Iterator[Verdict]:
    """One verdict per figure that changed and has no budget."""
    for figure in changed:
        if figure.key in named:
            continue
        before, after = figure.before, figure.after
        if before is None or after is None:
            message = f"{figure.key} is {'gone' if after is None else 'new'}, and has no budget"
            limit = None
        else:
            is_upper = after > before
            limit = _limit(before, tolerance, is_upper=is_upper)
            is_kept = after <= limit if is_upper else after >= limit
            message = "" if is_kept else (
                f"{figure.key} went from {before:,} to {after:,}, and has no budget"
            )  # fmt: skip
        yield Verdict(
            key=figure.key, rule="baseline", outcome="failed" if message else "passed",
            value=after, baseline=before, limit=limit, message=message,
        )  # fmt: skip


def _named(what: str, keys: list[str]) -> Iterator[str]:
    """A warning that names the first of some keys, if there are any."""
    if keys:
        more = f" and {len(keys) - _MOST_NAMED:,} more" if len(keys) > _MOST_NAMED else ""
        yield f"{what}: {', '.join(keys[:_MOST_NAMED])}{more}"


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
