"""The result of a check: the one typed document that all its outputs are made from.

The JSON Schema of a check is generated from these types and takes its descriptions from their
docstrings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from dsocr_analyze.report.document import NO_OPTIONS, SCHEMA_VERSION, Opening, Options
from dsocr_analyze.version import VERSION

__all__ = [
    "Amounts",
    "Baseline",
    "Check",
    "Figure",
    "InputChange",
    "InputKind",
    "Level",
    "Move",
    "MoveLevel",
    "Outcome",
    "Verdict",
    "WorkloadCheck",
    "whole_check",
    "worst",
]

Outcome = Literal["passed", "warned", "failed"]
InputKind = Literal["config", "code", "workload", "setting", "budget", "report"]
Level = Literal["warn", "error"]
MoveLevel = Literal["stage", "module", "operator", "kind"]
Count = Annotated[int, Meta(ge=0)]


class Baseline(Struct, frozen=True, kw_only=True):
    """What the workloads are compared with.

    Attributes:
        kind: Whether it is a saved report or a revision of the repository.
        name: The file or the revision, as given.
        commit: The revision's commit; null for a saved report.
    """

    kind: Literal["report", "revision"]
    name: str
    commit: str | None

    @property
    def title(self) -> str:
        """Its name for readers."""
        return self.name if self.commit is None else f"{self.name} ({self.commit[:12]})"


class InputChange(Struct, frozen=True, kw_only=True):
    """A changed input, as opposed to its effect on the figures.

    Attributes:
        kind: A key of config.json, the model's code, what is counted (an option of the workload),
            how it is counted (engine, version of the tool), a budget, or anything else that the
            report states and that is not a number.
        key: Its name; for a config, the dotted path of the key.
        before: The baseline's value, as JSON for a config key; null if absent.
        after: The value now, as JSON for a config key; null if absent.
    """

    kind: InputKind
    key: str
    before: str | None
    after: str | None


class Figure(Struct, frozen=True, kw_only=True):
    """A figure that differs from the baseline's.

    Attributes:
        key: Its key in the report, as a dotted path.
        before: The baseline's value; null if it has no such figure.
        after: The value now; null if there is no such figure any more.
    """

    key: str
    before: int | float | None
    after: int | float | None


class Amounts(Struct, frozen=True, kw_only=True):
    """The amount of some work, before and after.

    Attributes:
        before: The baseline's; 0 if it has no such stage, module or operator.
        after: The amount now; 0 if there is no such stage, module or operator any more.
    """

    before: Count
    after: Count

    @property
    def difference(self) -> int:
        """The increase; negative for a decrease."""
        return self.after - self.before


class Move(Struct, frozen=True, kw_only=True):
    """A stage whose work changed, or modules, an operator or a kind of operators within one.

    Attributes:
        level: Which of these it is.
        stage: The stage; for a decode stage, amounts are per step.
        name: Name of the stage, operator or kind, or the modules' path with `*` for numbers in
            which they differ.
        modules: Number of modules that changed; 1 for anything else.
        flops: FLOPs; for modules, of their own forwards without their children.
        bytes: Bytes read and written; for modules, of their own forwards. Null for an operator.
        params: Parameters of a stage; null for anything else.
        share: Change as a share of the whole batch: the largest of its shares of the baseline's
            FLOPs, bytes and parameters, counting every decode step.
    """

    level: MoveLevel
    stage: str
    name: str
    modules: Count
    flops: Amounts
    bytes: Amounts | None
    params: Amounts | None
    share: Annotated[float, Meta(ge=0)]


class Verdict(Struct, frozen=True, kw_only=True):
    """One figure checked against one limit.

    Attributes:
        key: The figure's key in the report, as a dotted path.
        rule: The limit from the budget (`max_increase 2 %`); `baseline` for a figure without a
            budget, which must equal the baseline's.
        outcome: Whether the limit is kept.
        value: The figure now; null if it is gone.
        baseline: The baseline's figure; null if there is none.
        limit: The largest or smallest value that the rule allows; null if unknown.
        message: What is wrong, in one line; empty if nothing is.
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
        is_compared: Whether there is a baseline for it.
        inputs: Changed inputs, config keys first.
        moved: Where work changed: stages, then modules, operators and kinds of operators, each
            with the largest share first.
        changed: Figures that differ from the baseline's, in report order, without those that follow
            from another one in their part of the report.
        following: Number of figures that differ and follow from another one.
        unchanged: Number of figures equal to the baseline's.
        verdicts: Figures checked against their limits, exceeded limits first.
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
        """Moves at a level, largest share first."""
        return tuple(each for each in self.moved if each.level == level)


class Check(Opening, frozen=True, kw_only=True):
    """The result of `dsocr-analyze check`.

    Attributes:
        outcome: The worst of the workloads' outcomes and the warnings.
        tool: Version of dsocr-analyze that counted everything except a saved report.
        budgets: The file with the budgets.
        baseline: What the workloads are compared with; null without a baseline.
        workloads: One entry per workload, in file order.
        warnings: Doubts that apply to all workloads.
    """

    outcome: Outcome
    tool: str
    budgets: str
    baseline: Baseline | None
    workloads: tuple[WorkloadCheck, ...]
    warnings: tuple[str, ...]

    def count(self, outcome: Outcome) -> int:
        """Number of verdicts with that outcome, plus the warnings for `warned`."""
        found = sum(len(each.failures(outcome)) for each in self.workloads)
        if outcome != "warned":
            return found
        return found + len(self.warnings) + sum(len(each.warnings) for each in self.workloads)


def worst(*outcomes: Outcome) -> Outcome:
    """The worst of some outcomes; `passed` if there are none."""
    return max(outcomes, key=get_args(Outcome).index, default="passed")


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
