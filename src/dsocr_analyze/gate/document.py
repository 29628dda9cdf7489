"""What a check found: the one typed document that each of its outputs is made from.

The JSON Schema of a check is generated from these types; their docstrings are its
descriptions.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from dsocr_analyze.report.opening import Opening

__all__ = [
    "Amounts",
    "Baseline",
    "Check",
    "Figure",
    "InputChange",
    "Level",
    "Move",
    "Outcome",
    "Verdict",
    "WorkloadCheck",
    "worst",
]

Outcome = Literal["passed", "warned", "failed"]
Level = Literal["warn", "error"]
Count = Annotated[int, Meta(ge=0)]


class Baseline(Struct, frozen=True, kw_only=True):
    """What the workloads are compared with.

    Attributes:
        kind: Whether it is a saved report or a revision of the repository.
        name: The file or the revision, as it was given.
        commit: The revision's commit; null of a report.
    """

    kind: Literal["report", "revision"]
    name: str
    commit: str | None

    @property
    def title(self) -> str:
        """Its name for readers."""
        return self.name if self.commit is None else f"{self.name} ({self.commit[:12]})"


class InputChange(Struct, frozen=True, kw_only=True):
    """Something that was changed, as against what this did to the figures.

    Attributes:
        kind: A key of config.json, the model's code, what is counted (an option of the workload),
            how it is counted (engine, version of the tool), or a budget.
        key: Its name: of a config the dotted path of the key.
        before: The baseline's value, as JSON where it is a config's; null where it has none.
        after: The value now, likewise.
    """

    kind: Literal["config", "code", "workload", "setting", "budget"]
    key: str
    before: str | None
    after: str | None


class Figure(Struct, frozen=True, kw_only=True):
    """A counted figure that is not what the baseline has.

    Attributes:
        key: Its key in the report, as a dotted path.
        before: The baseline's; null where it has no such figure.
        after: The value now, likewise.
    """

    key: str
    before: Count | None
    after: Count | None


class Amounts(Struct, frozen=True, kw_only=True):
    """Two amounts of the same work.

    Attributes:
        before: The baseline's; 0 where it has no such stage, module or operator.
        after: The amount now, likewise.
    """

    before: Count
    after: Count

    @property
    def difference(self) -> int:
        """What came to it, negative for what went."""
        return self.after - self.before


class Move(Struct, frozen=True, kw_only=True):
    """A stage, or some modules, an operator or a kind of operators of it, whose work moved.

    Attributes:
        level: Which of them.
        stage: The stage; of a decode stage, amounts are of one step.
        name: The stage, the modules' path with `*` for the numbers in which they differ, the
            operator or the kind.
        modules: How many modules moved; 1 of anything else.
        flops: Of modules, what they do themselves, without those below them.
        bytes: Read and written, likewise; null of a single operator.
        params: Of a stage; null of anything else.
        share: By how much of the whole batch it moved: the largest of its shares of the baseline's
            FLOPs, bytes and parameters, each decode step counted.
    """

    level: Literal["stage", "module", "operator", "kind"]
    stage: str
    name: str
    modules: Count
    flops: Amounts
    bytes: Amounts | None
    params: Amounts | None
    share: Annotated[float, Meta(ge=0)]


class Verdict(Struct, frozen=True, kw_only=True):
    """One figure held against one limit.

    Attributes:
        key: The figure's key in the report, as a dotted path.
        rule: The limit as the budget states it (`max_increase 2 %`); `baseline` for a counted
            figure that has no budget and has to be the baseline's.
        outcome: Whether it is kept.
        value: The figure now; null where it is gone.
        baseline: The baseline's; null where there is none.
        limit: The largest or smallest value that the rule allows; null where nobody can say.
        message: What is wrong, in a line; empty where nothing is.
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
        outcome: The worst of its verdicts, with its warnings.
        title: What was counted.
        is_compared: Whether there is a baseline of it.
        inputs: What was changed: keys of the config first.
        moved: Where the figures moved: stages, then modules, operators and kinds of operators,
            each the largest share first.
        changed: Counted figures that are not the baseline's, in the order of the report.
        unchanged: How many counted figures are the baseline's.
        verdicts: Figures held against their limits, those that are not kept first.
        warnings: What is in doubt.
    """

    name: str
    outcome: Outcome
    title: str
    is_compared: bool
    inputs: tuple[InputChange, ...]
    moved: tuple[Move, ...]
    changed: tuple[Figure, ...]
    unchanged: Count
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]

    def failures(self, outcome: Outcome) -> tuple[Verdict, ...]:
        """Verdicts of that outcome."""
        return tuple(each for each in self.verdicts if each.outcome == outcome)

    def moves(self, level: str) -> tuple[Move, ...]:
        """What moved at a level, the largest share first."""
        return tuple(each for each in self.moved if each.level == level)


class Check(Opening, frozen=True, kw_only=True):
    """The result of `dsocr-analyze check`.

    Attributes:
        outcome: The worst of the workloads', with the warnings.
        tool: Version of dsocr-analyze, which counted all but a saved report.
        budgets: The file with the budgets.
        baseline: What the workloads are compared with; null for nothing.
        workloads: One entry per workload, in the order of the file.
        warnings: What is in doubt of all of them.
    """

    outcome: Outcome
    tool: str
    budgets: str
    baseline: Baseline | None
    workloads: tuple[WorkloadCheck, ...]
    warnings: tuple[str, ...]

    def count(self, outcome: Outcome) -> int:
        """Verdicts of that outcome; with the warnings, where it is `warned`."""
        found = sum(len(each.failures(outcome)) for each in self.workloads)
        if outcome != "warned":
            return found
        return found + len(self.warnings) + sum(len(each.warnings) for each in self.workloads)


_RANK: Final[dict[Outcome, int]] = {"passed": 0, "warned": 1, "failed": 2}


def worst(*outcomes: Outcome) -> Outcome:
    """The worst of them; `passed` of none."""
    return max(outcomes, key=_RANK.__getitem__, default="passed")
