"""Compares two figures of the same workload: whether they agree, and where they first differ.

Independent of the engines: either side is a `PageFigures`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dsocr_analyze.kernels import NO_WORK, Work, total_work

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture, NotModelled
    from dsocr_analyze.figures import PageFigures, StageFigures

__all__ = [
    "Agreement",
    "Difference",
    "LeftOut",
    "PeakAgreement",
    "StageAgreement",
    "compare",
]

_QUANTITIES: Final = (
    "params",
    "macs",
    "matrix_flops",
    "activations",
    "vector_flops",
    "bytes_read",
    "bytes_written",
)
"""Compared in every stage, exactly, in this order."""

_WORK_QUANTITIES: Final = _QUANTITIES[1:]

_ROUTED_PEAK_TOLERANCE: Final = 0.01
"""Relative difference allowed between peaks when a checkpoint's own routing decides how many
tokens an expert holds at a time."""

_LARGEST_SHARE_LEFT_OUT: Final = 0.001
"""Share of a stage that may lack a closed form without a warning."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Traced operators without a closed form.

    Attributes:
        modules: Pattern of the paths of the modules that call them.
        operators: Their names, sorted.
        reason: Why they have no closed form.
        work: Their work.
    """

    modules: str
    operators: tuple[str, ...]
    reason: str
    work: Work


@dataclass(frozen=True, slots=True)
class Difference:
    """A quantity of a module (without its children) on which the engines disagree."""

    stage: str
    path: str
    quantity: str
    traced: int
    analytic: int

    def __str__(self) -> str:
        module = repr(self.path) if self.path else "the model itself"
        return (
            f"stage {self.stage}: {self.quantity} of {module} is {self.traced} traced"
            f" and {self.analytic} analytic"
        )


@dataclass(frozen=True, slots=True)
class StageAgreement:
    """How the engines compare on one stage.

    Attributes:
        agrees: Whether they agree, for each quantity compared.
        analytic_flops: FLOPs of the stage by the analytic engine.
        difference: The first module and quantity that differ; None if all agree.
        left_out: Operators without a closed form.
        vector_flops_left_out: Their share of the stage's traced vector FLOPs.
        bytes_left_out: Their share of its traced bytes.
    """

    agrees: Mapping[str, bool]
    analytic_flops: int
    difference: Difference | None
    left_out: tuple[LeftOut, ...] = ()
    vector_flops_left_out: float = 0.0
    bytes_left_out: float = 0.0


@dataclass(frozen=True, slots=True)
class PeakAgreement:
    """Peak activation by both engines.

    Attributes:
        traced: Bytes by the trace.
        analytic: Bytes by the closed forms.
        tolerance: Relative difference allowed: 0, except under a checkpoint's own routing.
    """

    traced: int
    analytic: int
    tolerance: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether the two peaks agree."""
        return abs(self.traced - self.analytic) <= self.tolerance * self.analytic


@dataclass(frozen=True)
class Agreement:
    """How the engines compare on a whole workload.

    Attributes:
        stages: By stage.
        cache_agrees: Whether the KV cache has the same size, after the prefill pass and at the end.
        batch_agrees: Whether the batch's work is the same; None if operators without a closed form
            are left out.
        peak: Peak activation.
        batch_difference: One line naming the first count of the batch that differs.
    """

    stages: Mapping[str, StageAgreement]
    cache_agrees: bool
    batch_agrees: bool | None
    peak: PeakAgreement
    batch_difference: str | None = None

    @property
    def agrees(self) -> bool:
        """Whether everything compared agrees."""
        return (
            self.cache_agrees
            and self.batch_agrees is not False
            and self.peak.agrees
            and all(all(stage.agrees.values()) for stage in self.stages.values())
        )

    @property
    def first_difference(self) -> str | None:
        """One line naming the first disagreement, in stage order."""
        for stage in self.stages.values():
            if stage.difference is not None:
                return str(stage.difference)
        if not self.cache_agrees:
            return "the KV cache differs in size between the trace and the closed forms"
        if self.batch_difference is not None:
            return self.batch_difference
        if not self.peak.agrees:
            return (
                f"peak activation is {self.peak.traced} bytes traced and {self.peak.analytic}"
                " analytic"
            )
        return None

    @property
    def warnings(self) -> list[str]:
        """Warnings for a reader, one line each."""
        lines = [
            f"operators without a closed form are {share:.2%} of the {quantity} of stage {name}"
            for name, stage in self.stages.items()
            for quantity, share in (
                ("vector_flops", stage.vector_flops_left_out),
                ("bytes", stage.bytes_left_out),
            )
            if share > _LARGEST_SHARE_LEFT_OUT
        ]
        if self.first_difference is not None:
            lines.append(f"the two engines disagree; {self.first_difference}")
        return lines


def compare(
    traced: PageFigures,
    analytic: PageFigures,
    architecture: Architecture,
    *,
    expert_weights_bytes: int,
) -> Agreement:
    """Compares two figures of a workload module by module; they must be equal.

    A checkpoint's routing touches other experts than uniform routing does. Where a layer's traced
    experts differ from those of the closed form, all experts of that layer are compared as one,
    with each touched expert's weights counted once.

    Args:
        traced: Figures of the trace.
        analytic: Analytic figures of the same workload.
        architecture: The model's; it knows which operators have no closed form and which modules
            are experts.
        expert_weights_bytes: Bytes of one routed expert's weights.
    """
    stages = {
        name: _compare_stage(stage, analytic.stages[name], architecture, expert_weights_bytes)
        for name, stage in traced.stages.items()
    }
    one, other = traced.memory, analytic.memory
    batch_agrees, batch_difference = _compare_batch(traced, analytic)
    return Agreement(
        stages=stages,
        cache_agrees=(one.prefill_cache_bytes, one.kv_cache_bytes)
        == (other.prefill_cache_bytes, other.kv_cache_bytes),
        batch_agrees=None if any(stage.left_out for stage in stages.values()) else batch_agrees,
        peak=PeakAgreement(
            one.peak.nbytes,
            other.peak.nbytes,
            _ROUTED_PEAK_TOLERANCE if traced.provenance.model.weights == "checkpoint" else 0.0,
        ),
        batch_difference=batch_difference,
    )


def _compare_batch(traced: PageFigures, analytic: PageFigures) -> tuple[bool, str | None]:
    # A checkpoint's routing reads other experts than uniform routing, and different ones per step.
    has_weights = traced.provenance.model.weights == "checkpoint"
    for name in Work._fields[:3] if has_weights else Work._fields:
        one, other = getattr(traced.batch, name), getattr(analytic.batch, name)
        if one != other:
            return False, f"{name} of the batch is {one} traced and {other} analytic"
    return True, None


@dataclass(slots=True)
class _Rows:
    """Own work of a stage's modules, and the work left out."""

    modules: dict[str, Work] = field(default_factory=dict)
    left_out: dict[NotModelled, Work] = field(default_factory=dict)


def _compare_stage(
    traced: StageFigures,
    analytic: StageFigures,
    architecture: Architecture,
    expert_weights_bytes: int,
) -> StageAgreement:
    rows = _modelled(traced, architecture.forms.not_modelled)
    closed = dict(analytic.own)
    if architecture.routed_expert is not None:
        _join_experts(rows.modules, closed, architecture.routed_expert, expert_weights_bytes)
    differences = list(_differences(traced, analytic, rows.modules, closed))
    wrong = {difference.quantity for difference in differences}
    total = total_work(rows.modules.values())
    left_out = total_work(rows.left_out.values())
    return StageAgreement(
        agrees={quantity: quantity not in wrong for quantity in _QUANTITIES},
        analytic_flops=analytic.work.flops,
        difference=differences[0] if differences else None,
        left_out=tuple(
            LeftOut(entry.modules, tuple(sorted(entry.operators)), entry.reason, work)
            for entry, work in rows.left_out.items()
        ),
        vector_flops_left_out=_share(left_out.vector_flops, total.vector_flops),
        bytes_left_out=_share(left_out.bytes_moved, total.bytes_moved),
    )


def _differences(
    traced: StageFigures,
    analytic: StageFigures,
    modules: Mapping[str, Work],
    closed: Mapping[str, Work],
) -> Iterable[Difference]:
    """Yields every module and quantity that differ, in the order the modules ran."""
    if traced.params != analytic.params:
        yield Difference(traced.name, "", "params", traced.params, analytic.params)
    for path in (*modules, *(path for path in closed if path not in modules)):
        one, other = modules.get(path, NO_WORK), closed.get(path, NO_WORK)
        if one == other:
            continue
        for quantity in _WORK_QUANTITIES:
            values = getattr(one, quantity), getattr(other, quantity)
            if values[0] != values[1]:
                yield Difference(traced.name, path, quantity, *values)


def _modelled(stage: StageFigures, not_modelled: Iterable[NotModelled]) -> _Rows:
    """Own work of every module, with operators that have no closed form summed separately."""
    rows = _Rows()
    for path, operators in stage.own_operators.items():
        entry = next((e for e in not_modelled if _is_meant(e, path, operators)), None)
        for operator, work in operators.items():
            if entry is not None and operator in entry.operators:
                rows.left_out[entry] = rows.left_out.get(entry, NO_WORK).plus(work)
            else:
                rows.modules[path] = rows.modules.get(path, NO_WORK).plus(work)
    return rows


def _is_meant(entry: NotModelled, path: str, operators: Mapping[str, Work]) -> bool:
    return entry.operators <= operators.keys() and bool(re.fullmatch(entry.modules, path))


def _join_experts(
    traced: dict[str, Work],
    closed: dict[str, Work],
    routed_expert: re.Pattern[str],
    weights_bytes: int,
) -> None:
    """Merges a layer's experts into one row if other experts were touched than predicted."""
    layers: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
    for side, modules in enumerate((traced, closed)):
        for path in modules:
            if match := routed_expert.fullmatch(path):
                layers.setdefault(match["experts"], ({}, {}))[side][path] = match["index"]
    for experts, (found, foreseen) in layers.items():
        if {path: traced[path] for path in found} == {path: closed[path] for path in foreseen}:
            continue
        more = len(set(found.values())) - len(set(foreseen.values()))
        one = total_work([traced.pop(path) for path in found])
        other = total_work([closed.pop(path) for path in foreseen])
        traced[experts] = one
        closed[experts] = other._replace(bytes_read=other.bytes_read + weights_bytes * more)


def _share(part: int, rest: int) -> float:
    """The share of `part` in the sum of both; 0 if both are 0."""
    return part / (part + rest) if part else 0.0
