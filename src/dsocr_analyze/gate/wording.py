"""Wording of a check's results, shared by all its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dsocr_analyze.gate.document import (
    Amounts,
    Check,
    InputChange,
    Move,
    Outcome,
    Verdict,
    WorkloadCheck,
)
from dsocr_analyze.report.quantities import bytes_text, scaled

__all__ = [
    "WORDS",
    "change_cells",
    "counts_text",
    "equal_text",
    "heads",
    "levels_of",
    "move_name",
    "shown_verdicts",
    "signed",
    "summary",
    "unbudgeted",
    "workload_summary",
]

_MOST_INPUTS: Final = 12
"""Most changes of one kind listed before everything else."""

_LONGEST_VALUE: Final = 100
"""Most characters shown of a changed value; the JSON has all of it."""

_MANIFOLD: Final = 10

WORDS: Final[dict[Outcome, str]] = {
    "passed": "passed",
    "warned": "passed with warnings",
    "failed": "FAILED",
}


def summary(check: Check) -> str:
    """One line about the whole check."""
    against = "" if check.baseline is None else f" against {check.baseline.title}"
    found = len(check.workloads)
    counted = f"{found} workload{'' if found == 1 else 's'}{against}"
    return f"{counted}: {WORDS[check.outcome]}{counts_text(check)}"


def counts_text(check: Check) -> str:
    """Number of errors and warnings, as ` (2 errors)`; empty if there are none."""
    named = {"error": check.count("failed"), "warning": check.count("warned")}
    texts = [
        f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in named.items() if count
    ]
    return f" ({', '.join(texts)})" if texts else ""


def workload_summary(workload: WorkloadCheck) -> str:
    """One line about a workload's result."""
    kept = sum(each.rule != "baseline" for each in workload.failures("passed"))
    said = []
    if workload.is_compared and not workload.changed:
        said.append(f"all {equal_text(workload)}")
    elif workload.is_compared:
        changed = len(workload.changed) + workload.following
        said.append(f"{changed:,} of {workload.unchanged + changed:,} figures changed")
    if kept:
        said.append(f"{kept} limit{'' if kept == 1 else 's'} kept")
    return f"{workload.name}: {WORDS[workload.outcome]}" + (f"; {', '.join(said)}" if said else "")


def equal_text(workload: WorkloadCheck) -> str:
    """How many figures equal the baseline's."""
    return f"{workload.unchanged:,} figures equal the baseline's"


def _input_text(change: InputChange) -> str:
    """A changed input: `language_config.num_experts_per_tok: 6 -> 64`."""
    before, after = (_or_absent(each) for each in (change.before, change.after))
    where = "" if change.kind in ("config", "budget") else f"{change.kind} "
    return f"{where}{change.key}: {before} -> {after}"


def _or_absent(value: str | None) -> str:
    if value is None:
        return "(absent)"
    if not value:
        return "''"
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}..."


def heads(workload: WorkloadCheck) -> Iterator[str]:
    """What a reader needs first: changed inputs, then the largest moves."""
    budgets = [each for each in workload.inputs if each.kind == "budget"]
    others = [each for each in workload.inputs if each.kind == "report"]
    causes = [each for each in workload.inputs if each not in (*budgets, *others)]
    yield from _changed("changed", causes)
    for level in levels_of(workload):
        for move in workload.moves(level)[:1]:
            yield f"moved most, {level}: {_named(move)}"
    yield from _changed("changed", others)
    yield from _changed("budget changed", budgets)


def levels_of(workload: WorkloadCheck) -> tuple[str, ...]:
    """The levels to show; kinds of operators if bytes changed but no operator's FLOPs did."""
    return ("stage", "module", "operator" if workload.moves("operator") else "kind")


def _changed(label: str, changes: Sequence[InputChange]) -> Iterator[str]:
    yield from (f"{label}: {_input_text(each)}" for each in changes[:_MOST_INPUTS])
    if len(changes) > _MOST_INPUTS:
        yield f"{label}: {len(changes) - _MOST_INPUTS} more"


def _named(move: Move) -> str:
    flops, nbytes, params = _amounts(move)
    texts = [f"{flops} FLOPs"] if flops else []
    texts += [f"{nbytes} moved"] if nbytes else []
    texts += [f"{params} parameters"] if params else []
    return f"{move_name(move)}: {', '.join(texts)}"


def move_name(move: Move) -> str:
    """What moved: `prefill`, or `model.layers.*.mlp of prefill (12 modules)`."""
    if move.level == "stage":
        return move.name
    several = f" ({move.modules:,} modules)" if move.modules > 1 else ""
    return f"{move.name or 'the model itself'} of {move.stage}{several}"


def _amounts(move: Move) -> tuple[str, str, str]:
    return (
        signed(move.flops),
        "" if move.bytes is None else signed(move.bytes, is_bytes=True),
        "" if move.params is None else signed(move.params),
    )


def signed(amounts: Amounts, *, is_bytes: bool = False, with_part: bool = True) -> str:
    """The change in an amount, signed; empty if there is none."""
    difference = amounts.difference
    if not difference:
        return ""
    text = bytes_text(abs(difference)) if is_bytes else scaled(abs(difference))
    part = f" ({_part_text(difference, amounts.before)})" if with_part else ""
    return f"{'-' if difference < 0 else '+'}{text}{part}"


def _part_text(difference: int | float, before: int | float) -> str:
    """A difference relative to the value before: `+2.5 %`, or `12.5 x` from ten times on."""
    if not before:
        return "new"
    part = difference / before
    return f"{1 + part:,.1f} x" if part >= _MANIFOLD else f"{100 * part:+.3g} %"


def shown_verdicts(workload: WorkloadCheck) -> list[Verdict]:
    """Budgets' limits that are exceeded, errors first."""
    return [
        each for each in workload.verdicts if each.outcome != "passed" and each.rule != "baseline"
    ]


def change_cells(verdict: Verdict) -> tuple[str, str, str, str]:
    """Cells for a changed figure without a budget: key, before, after and change."""
    before, after = verdict.baseline, verdict.value
    if before is None or after is None:
        change = "gone" if after is None else "new"
    else:
        change = _part_text(after - before, before)
    return verdict.key, _digits(before), _digits(after), change


def _digits(value: int | float | None) -> str:
    return "-" if value is None else f"{value:,}"


def unbudgeted(workload: WorkloadCheck) -> list[Verdict]:
    """Figures that differ from the baseline's without a budget that allows it.

    The largest relative change comes first.
    """
    found = [each for each in workload.failures("failed") if each.rule == "baseline"]
    return sorted(found, key=lambda each: -_part(each))


def _part(verdict: Verdict) -> float:
    before, after = verdict.baseline, verdict.value
    if not before or after is None:
        return float("inf")
    return abs(after - before) / before
