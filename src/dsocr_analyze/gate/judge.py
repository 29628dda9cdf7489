"""Judges workloads by their budgets and baseline: a check's result, whose types are its schema."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor, inf
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct

from dsocr_analyze.figures import Count
from dsocr_analyze.gate.budgets import (
    LEVELS,
    MEASURED,
    OF_VALUES,
    Budget,
    BudgetedWorkload,
    Edit,
    Limit,
    ReportKeys,
    is_number,
)
from dsocr_analyze.gate.compared import (
    Figure,
    InputChange,
    InputKind,
    Move,
    ReportChanges,
    changed_input,
    compared,
    counted_figures,
    listed,
)
from dsocr_analyze.kernels import grouped
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.measured import Measurement
from dsocr_analyze.report.opening import NO_OPTIONS, SCHEMA_VERSION, Opening, Options
from dsocr_analyze.report.tables import headline
from dsocr_analyze.version import VERSION

Outcome = Literal["passed", "warned", "failed"]


class Baseline(Struct, frozen=True, kw_only=True):
    """What the workloads are compared with.

    Attributes:
        kind: A saved report or a revision of the repository.
        name: The file or revision, as given.
        commit: The revision's commit; null for a report.
    """

    kind: Literal["report", "revision"]
    name: str
    commit: str | None

    @property
    def title(self) -> str:
        """Its name for readers."""
        return self.name if self.commit is None else f"{self.name} ({self.commit[:12]})"


class Verdict(Struct, frozen=True, kw_only=True):
    """One figure checked against one limit.

    Attributes:
        key: The figure's key in the report.
        rule: The budget's limit (`max_increase 2 %`), or `baseline` without a budget.
        outcome: Whether the limit is kept.
        value: The figure now; null if gone.
        baseline: The baseline's figure; null without one.
        limit: The last allowed value; null if unknown.
        message: What is wrong; may be empty.
    """

    key: str
    rule: str
    outcome: Outcome
    value: int | float | None
    baseline: int | float | None
    limit: int | float | None
    message: str


class WorkloadCheck(Struct, frozen=True, kw_only=True):
    """One workload.

    Attributes:
        name: Its name in the budgets.
        outcome: The worst of its verdicts and warnings.
        title: What was counted.
        is_compared: Whether it has a baseline.
        inputs: Changed inputs, config keys first.
        moved: Where work changed: stages, modules, operators, kinds of operators, by share.
        changed: Figures that differ, unless they follow from another in their part of the report.
        following: Number of those that follow.
        unchanged: Number of equal figures.
        verdicts: Figures against their limits, exceeded ones first.
        warnings: Doubts about the comparison.
    """

    name: str
    outcome: Outcome
    title: str
    is_compared: bool
    inputs: tuple[InputChange, ...]
    moved: tuple[Move, ...]
    changed: tuple[Figure, ...]
    following: Count
    unchanged: Count
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]

    def failures(self, outcome: Outcome) -> tuple[Verdict, ...]:
        """Verdicts with that outcome."""
        return tuple(each for each in self.verdicts if each.outcome == outcome)

    def moves(self, level: str) -> tuple[Move, ...]:
        """Moves at a level, largest first."""
        return tuple(each for each in self.moved if each.level == level)


class Check(Opening, frozen=True, kw_only=True):
    """The result of `dsocr-analyze check`.

    Attributes:
        outcome: The worst of the workloads' outcomes and the warnings.
        tool: Version of dsocr-analyze that counted all but a saved report.
        budgets: The file with the budgets.
        baseline: What workloads are compared with; null without one.
        workloads: One entry per workload, in file order.
        warnings: Doubts about all workloads.
    """

    outcome: Outcome
    tool: str
    budgets: str
    baseline: Baseline | None
    workloads: tuple[WorkloadCheck, ...]
    warnings: tuple[str, ...]

    def count(self, outcome: Outcome) -> int:
        """Number of verdicts with that outcome; warnings are `warned`."""
        warnings = len(self.warnings) + sum(len(each.warnings) for each in self.workloads)
        found = sum(len(each.failures(outcome)) for each in self.workloads)
        return found + warnings if outcome == "warned" else found


def worst(*outcomes: Outcome) -> Outcome:
    """The worst outcome; `passed` without any."""
    return max(outcomes, key=get_args(Outcome).index, default="passed")


def whole_check(
    budgets: str,
    baseline: Baseline | None,
    workloads: Iterable[WorkloadCheck],
    warnings: tuple[str, ...] = (),
    options: Options = NO_OPTIONS,
) -> Check:
    """The check of these workloads, with warnings on all of them."""
    found = tuple(workloads)
    return Check(
        schema_version=SCHEMA_VERSION, command="check", options=options,
        outcome=worst(*(each.outcome for each in found), "warned" if warnings else "passed"),
        tool=VERSION, budgets=budgets,
        baseline=baseline, workloads=found, warnings=warnings,
    )  # fmt: skip


_MOST_NAMED: Final = 8
"""Most keys named in a warning."""


class Counted(Struct, frozen=True):
    """A workload's reports, now and in the baseline.

    Attributes:
        is_compared: Whether a baseline was requested.
        before: The workload in the baseline.
        warnings: Doubts about the two.
        measured: Its seconds on a device, now.
    """

    report: Report
    baseline: Report | None = None
    is_compared: bool = False
    before: BudgetedWorkload | None = None
    warnings: tuple[str, ...] = ()
    measured: Measurement | None = None

    @property
    def keys(self) -> ReportKeys:
        """All that budgets can name."""
        return ReportKeys(self.report, self.measured)


def judge(workload: BudgetedWorkload, counted: Counted) -> WorkloadCheck:
    """Checks figures against budgets, others against the baseline; ConfigError for a wrong key."""
    report, baseline, before = counted.report, counted.baseline, counted.before
    keys, old_keys = counted.keys, ReportKeys(baseline)
    verdicts: list[Verdict] = []
    named: set[str] = set()
    for budget in workload.budgets:
        figures = keys.figures(budget.key)
        for key, value in figures.items():
            verdicts += _of_budget(budget, key, value, old_keys.values(key), counted)
        # Figures that are gone are only in the baseline.
        named.update(figures, old_keys.values(budget.key) if "*" in budget.key else ())
    changes = ReportChanges() if baseline is None else compared(baseline, report)
    verdicts += (
        _of_change(each, workload.default) for each in changes.changed if each.key not in named
    )
    verdicts.sort(key=lambda each: ("failed", "warned", "passed").index(each.outcome))
    said = {(each.kind, each.key) for each in changes.inputs}
    redefined = () if before is None else _redefinitions(before, workload)
    inputs = (*changes.inputs, *(each for each in redefined if (each.kind, each.key) not in said))
    doubts = {
        "limits are looser than the baseline's":
            () if baseline is None or before is None
            else loosened_keys(before, workload, baseline, counted.measured),
        "another workload is counted than in the baseline":
            [each.key for each in inputs if each.kind == "workload"],
        "the report states other things than the baseline":
            [each.key for each in inputs if each.kind == "report"],
    }  # fmt: skip
    warnings = [
        *counted.warnings,
        *report.warnings,
        *([] if baseline is None else _doubts_of_code(baseline, report)),
        *(f"{what}: {listed(found, _MOST_NAMED)}" for what, found in doubts.items() if found),
    ]
    said_of_it = [headline(report), report.workload.title]
    if (measured := counted.measured) is not None:
        said_of_it.append(f"measured {measured.created} on {measured.title}")
    return WorkloadCheck(
        name=workload.name,
        outcome=worst(*(each.outcome for each in verdicts), "warned" if warnings else "passed"),
        title="; ".join(said_of_it),
        is_compared=baseline is not None,
        inputs=inputs,
        moved=changes.moved,
        changed=changes.changed,
        following=changes.following,
        unchanged=changes.unchanged,
        verdicts=tuple(verdicts),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _of_budget(
    budget: Budget,
    key: str,
    value: int | float | None,
    baseline: Mapping[str, Any],
    counted: Counted,
) -> Iterator[Verdict]:
    """A verdict per limit; `baseline` has what the key names there."""
    before = next((each for each in baseline.values() if is_number(each)), None)
    exceeded: Outcome = "failed" if budget.level == "error" else "warned"
    if value is None:
        unknown, why = exceeded, "it is unknown (null) in this report"
    elif counted.is_compared:  # the figure is new, unless nothing has a baseline
        unknown, why = exceeded if counted.baseline else "warned", "the baseline has no such figure"
    else:
        unknown, why = "passed", "there is no baseline"
    for limit in budget.limits:
        last = None if value is None else _last(limit, before)
        outcome, message = unknown, f"{key} cannot be checked against {limit.text}: {why}"
        if value is not None and last is not None:
            side = "above" if limit.is_upper else "below"
            outcome, message = (
                ("passed", "") if limit.keeps(value, last)
                else (exceeded, f"{key} is {_text(value)}, {side} {_text(last)} ({limit.text})")
            )  # fmt: skip
        yield Verdict(
            key=key, rule=limit.text, outcome=outcome, value=value, baseline=before, limit=last,
            message=message,
        )  # fmt: skip


def _last(limit: Limit, before: int | float | None) -> int | float | None:
    """The last allowed value, whole if `before` is."""
    exact = limit.value(before)
    if not isinstance(exact, Fraction) or isinstance(before, float):
        return float(exact) if isinstance(exact, Fraction) else exact
    return floor(exact) if limit.is_upper else ceil(exact)


def _text(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _of_change(figure: Figure, default: Budget) -> Verdict:
    key, before, after = figure.key, figure.before, figure.after
    last, message = None, f"{key} is {'gone' if after is None else 'new'}, and has no budget"
    if before is not None and after is not None:
        limit = default.limits[after < before]
        last = _last(limit, before)
        is_kept = last is not None and limit.keeps(after, last)
        message = "" if is_kept else f"{key} went from {before:,} to {after:,}, and has no budget"
    return Verdict(
        key=key, rule="baseline", outcome="failed" if message else "passed", value=after,
        baseline=before, limit=last, message=message,
    )  # fmt: skip


def _doubts_of_code(before: Report, after: Report) -> Iterator[str]:
    """Code changes that closed forms cannot see."""
    old, new = before.metadata.model, after.metadata.model
    if (
        not old.source == new.source == "reference"  # that code changes only with the tool
        and old.code_digest != new.code_digest
        and "analytic" in (before.metadata.engine, after.metadata.engine)
    ):
        yield (
            "the model's Python files differ from the baseline's, and closed forms do not run"
            ' them; engine = "trace" counts what they do'
        )


# --- changed budgets -----------------------------------------------------------------------------


def _redefinitions(before: BudgetedWorkload, after: BudgetedWorkload) -> Iterator[InputChange]:
    """A workload's options, limits and tolerance that differ between two revisions."""
    parts: list[tuple[InputKind, Mapping[str, Any], Mapping[str, Any]]] = [
        ("workload", before.options, after.options),
        ("budget", _limits_of(before), _limits_of(after)),
    ]
    for kind, old, new in parts:
        for key in {**new, **old}:
            yield from changed_input(kind, key, old.get(key), new.get(key))


def _limits_of(workload: BudgetedWorkload) -> Mapping[str, str]:
    found = defaultdict(list, tolerance=[workload.tolerance.amount_text])
    for budget in workload.budgets:
        texts = ", ".join(each.text for each in budget.limits)
        found[budget.key].append(f"{texts} ({budget.level})")
    return {key: "; ".join(words) for key, words in found.items()}


def loosened_keys(
    before: BudgetedWorkload,
    after: BudgetedWorkload,
    baseline: Report,
    measured: Measurement | None = None,
) -> list[str]:
    """Figures that may now have values that they might not before."""
    keys = ReportKeys(baseline, measured)
    old, new = _by_figure(before, keys), _by_figure(after, keys)
    figures = counted_figures(baseline) | dict([*old, *new])
    return [
        each[0]
        for each in figures.items()
        for was, now in [
            (old.get(each, _unnamed(before, each)), new.get(each, _unnamed(after, each)))
        ]
        if any(_is_looser(was, now, each[1], levels) for levels in (LEVELS, ("error",)))
    ]


_Figure: TypeAlias = tuple[str, int | float | None]
"""A figure's key, and its value in the baseline, if known; of a measured one, the value now."""


def _unnamed(workload: BudgetedWorkload, figure: _Figure) -> Sequence[Budget]:
    """The budgets of a figure that none names: what is measured may then be anything."""
    return () if figure[0].startswith(f"{MEASURED}.") else (workload.default,)


def _by_figure(workload: BudgetedWorkload, keys: ReportKeys) -> Mapping[_Figure, Sequence[Budget]]:
    return grouped(
        ((key, value), budget)
        for budget in workload.budgets
        for key, value in keys.values(budget.key).items()
        if value is None or is_number(value)
    )


def _is_looser(
    was: Sequence[Budget], now: Sequence[Budget], value: int | float | None, levels: Sequence[str]
) -> bool:
    (low, high), (lowest, highest) = (_allowed(each, value, levels) for each in (was, now))
    return lowest < low or highest > high


def _allowed(
    budgets: Sequence[Budget], value: int | float | None, levels: Sequence[str]
) -> tuple[float | Fraction, float | Fraction]:
    """The smallest and largest value that budgets of some levels allow."""
    ends = [
        (limit.is_upper, limit.value(value))
        for each in budgets if each.level in levels
        for limit in each.limits
    ]  # fmt: skip
    lows = [end for is_upper, end in ends if end is not None and not is_upper]
    highs = [end for is_upper, end in ends if end is not None and is_upper]
    return max([-inf, *lows]), min([inf, *highs])


# --- new limits ----------------------------------------------------------------------------------

_FIRST_KEYS: Final = (
    "workload.seq_len", "total.params", "total.flops", "total.batch.flops",
    "total.batch.bytes_read", "total.batch.bytes_written", "memory.weights_bytes",
    "memory.kv_cache_bytes", "memory.peak_activation_bytes",
)  # fmt: skip
"""First budgets of a workload without any."""


def edits_of(workload: BudgetedWorkload, counted: Counted, check: WorkloadCheck) -> list[Edit]:
    """Edits with which the check passes: of each budget, then of new ones.

    Kept and relative limits stay; new are those of changed figures, or of a workload without any.
    """
    keys = counted.keys
    new = {
        key: {"max": value}
        for first in ([] if workload.budgets else _FIRST_KEYS)
        for key, value in keys.figures(first).items()
        if value is not None
    }
    new |= {
        each.key: {"max": each.value, "min": each.value}
        for each in check.failures("failed")
        if each.rule == "baseline" and each.value is not None and each.key not in new
    }
    return [
        *(Edit(each.key, _exceeded(each, keys)) for each in workload.budgets),
        *(Edit(key, limits) for key, limits in new.items()),
    ]


def _exceeded(budget: Budget, keys: ReportKeys) -> Mapping[str, int | float]:
    """Exceeded absolute limits, with their new values."""
    values = [each for each in keys.figures(budget.key).values() if each is not None]
    return {
        limit.name: max(values) if limit.is_upper else min(values)
        for limit in budget.limits
        if limit.name in OF_VALUES and not all(limit.keeps(each, limit.amount) for each in values)
    }
