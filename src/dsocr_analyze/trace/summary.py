"""From the record of what ran to sums: by stage, by module, by operator, and the ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dsocr_analyze.model.stages import STAGES, Stage, owner_of
from dsocr_analyze.trace.passes import PassTraces
from dsocr_analyze.trace.recorder import Status, Trace
from dsocr_analyze.work import NO_WORK, Work

__all__ = ["Ledger", "ModuleWork", "StageSummary", "ledger_of", "summarize"]

_VISION: tuple[Stage, ...] = ("sam", "clip", "projector")

Ledger = dict[Status, dict[str, int]]


@dataclass
class ModuleWork:
    """Work under one module path within one stage."""

    calls: int = 0
    own: Work = NO_WORK
    """What the module's own forward called, its children's left out."""
    total: Work = NO_WORK
    """Own work and that of every module below."""


@dataclass
class StageSummary:
    """What one stage executed."""

    calls: int = 0
    work: Work = NO_WORK
    operators: dict[str, Work] = field(default_factory=dict)
    modules: dict[str, ModuleWork] = field(default_factory=dict)
    """By path, parents before children, in the order of the model's tree."""
    operators_by_path: dict[str, dict[str, Work]] = field(default_factory=dict)
    """Own work of each path, by operator."""
    causal_savable_flops: int = 0


def summarize(traces: PassTraces, paths: Iterable[str]) -> dict[Stage, StageSummary]:
    """Books the prefill pass and the first decode step to stages.

    Args:
        traces: The passes.
        paths: All module paths of the model, parents before children.
    """
    order = list(paths)
    stages = {stage: StageSummary() for stage in STAGES}
    _book(traces.prefill, {stage: stages[stage] for stage in (*_VISION, "prefill")}, order)
    _book(traces.decode_steps[0], {"decode": stages["decode"]}, order)
    return stages


def _book(trace: Trace, stages: Mapping[Stage, StageSummary], order: list[str]) -> None:
    """Books one pass: to the vision stages what they own, to the remaining stage the rest."""
    rest = next(stage for stage in stages if stage not in _VISION)
    stage_of: dict[str, Stage] = {}

    def booked_to(path: str) -> Stage:
        stage = stage_of.get(path)
        if stage is None:
            owner = owner_of(path)
            stage = owner if owner in stages and owner in _VISION else rest
            stage_of[path] = stage
        return stage

    sums: dict[tuple[str, str], list[int]] = {}
    for path, operator, status, work in trace.entries:
        if status != "counted":
            continue
        total = sums.get((path, operator))
        if total is None:
            sums[path, operator] = list(work)
        else:
            for index, count in enumerate(work):
                total[index] += count
    for (path, operator), counts in sums.items():
        summary = stages[booked_to(path)]
        summary.operators_by_path.setdefault(path, {})[operator] = Work(*counts)
    calls = Counter(trace.calls)
    position = {path: index for index, path in enumerate(order)}
    for stage, summary in stages.items():
        called = {path for path in calls if booked_to(path) == stage}
        operators: dict[str, Work] = defaultdict(Work)
        modules: dict[str, ModuleWork] = {}
        for path in called | summary.operators_by_path.keys():
            for ancestor in _ancestors_within(path, stage):
                modules.setdefault(ancestor, ModuleWork(calls.get(ancestor, 0)))
        for path, by_operator in summary.operators_by_path.items():
            own = NO_WORK
            for operator, work in by_operator.items():
                own = own.plus(work)
                operators[operator] = operators[operator].plus(work)
            modules[path].own = own
            for ancestor in _ancestors_within(path, stage):
                modules[ancestor].total = modules[ancestor].total.plus(own)
            summary.work = summary.work.plus(own)
        summary.modules = dict(
            sorted(modules.items(), key=lambda item: position.get(item[0], len(position)))
        )
        summary.operators = dict(
            sorted(operators.items(), key=lambda item: (-item[1].flops, item[0]))
        )
        root = next(iter(summary.modules), "")
        summary.calls = calls.get(root, 0)
        summary.causal_savable_flops = 2 * sum(
            macs for path, macs in trace.causal_savable_macs.items() if booked_to(path) == stage
        )


def _ancestors_within(path: str, stage: Stage) -> list[str]:
    """`path` and its ancestors that are booked to the same stage, root first."""
    parts = path.split(".") if path else []
    ancestors = [".".join(parts[:length]) for length in range(len(parts) + 1)]
    if stage in _VISION:
        return [ancestor for ancestor in ancestors if owner_of(ancestor) == stage]
    return ancestors


def ledger_of(*traces: Trace) -> Ledger:
    """Calls of every executed operator, by status and name."""
    counts: dict[Status, Counter[str]] = {
        "counted": Counter(),
        "free": Counter(),
        "unknown": Counter(),
    }
    for trace in traces:
        for _, operator, status, _ in trace.entries:
            counts[status][operator] += 1
    return {status: dict(sorted(counter.items())) for status, counter in counts.items()}
