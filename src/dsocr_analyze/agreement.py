"""Compares two figures of a workload: whether they agree, and where they first differ."""

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.figures import (
    Count,
    Counts,
    IncidentalOperators,
    PageFigures,
    Share,
    StageFigures,
    counts_of,
)
from dsocr_analyze.kernels import NO_WORK, Work, total_work, work_by

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

_ExpertWork: TypeAlias = dict[tuple[str, str], Work]
"""Work by a routed expert's number and its module's path."""

_ROUTED_PEAK_TOLERANCE: Final = 0.01
"""Relative difference of peaks allowed where a checkpoint routes tokens to experts."""

_LARGEST_SHARE_LEFT_OUT: Final = 0.001
"""Share of a stage that may lack a closed form without a warning."""


class PeakAgreement(Struct, frozen=True, kw_only=True):
    """Peak activation from both engines.

    Attributes:
        traced: Bytes from the trace.
        analytic: Bytes from the closed forms.
        agrees: Whether they agree; null if not compared.
    """

    traced: Count
    analytic: Count
    agrees: bool | None


class NotModelled(Counts, frozen=True, kw_only=True):
    """Traced operators without a closed form, left out of the comparison.

    Attributes:
        stage: Stage in which they ran.
        modules: Pattern of the paths of modules that call them.
        operators: Their names.
        reason: Why they have no closed form.
    """

    stage: str
    modules: str
    operators: tuple[str, ...]
    reason: str


class LeftOutShare(Struct, frozen=True, kw_only=True):
    """Share of a stage's work without a closed form.

    Attributes:
        vector_flops: Fraction of its vector FLOPs.
        bytes: Fraction of its bytes.
    """

    vector_flops: Share
    bytes: Share


class Agreement(Struct, frozen=True, kw_only=True):
    """Whether the two engines agree.

    Attributes:
        agrees: Whether all that was compared agrees.
        stages: Whether each quantity agrees, by stage and quantity.
        kv_cache_bytes: Whether the KV cache agrees.
        batch: Whether the batch's work agrees; null if some operators are not modelled.
        peak_activation_bytes: Peak activation from both engines.
        first_difference: The first module and quantity that differ; null if all agree.
        not_modelled: Operators without a closed form.
        not_modelled_share: Their share of each stage that has any.
    """

    agrees: bool
    stages: Mapping[str, Mapping[str, bool]]
    kv_cache_bytes: bool
    batch: bool | None
    peak_activation_bytes: PeakAgreement
    first_difference: str | None
    not_modelled: tuple[NotModelled, ...]
    not_modelled_share: Mapping[str, LeftOutShare]

    @property
    def warnings(self) -> list[str]:
        """Warnings for a reader, one line each."""
        lines = []
        for name, left_out in self.not_modelled_share.items():
            for quantity, share in asdict(left_out).items():
                if share > _LARGEST_SHARE_LEFT_OUT:
                    said = f"{share:.2%} of the {quantity} of stage {name}"
                    lines.append(f"operators without a closed form are {said}")
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
    """Compares a workload's traced and analytic figures module by module; they must be equal.

    A checkpoint's routing touches other experts than uniform routing: layers that differ are
    compared as a whole, with the weights of each touched expert, `expert_weights_bytes`, counted
    once.
    """
    stages: dict[str, Mapping[str, bool]] = {}
    differences: list[str] = []
    not_modelled: list[NotModelled] = []
    shares: dict[str, LeftOutShare] = {}
    for name, stage in traced.stages.items():
        modelled, left_out = _modelled(stage, architecture.forms.model.not_modelled)
        closed = dict(analytic.stages[name].own)
        if architecture.routed_expert is not None:
            _join_experts(modelled, closed, architecture.routed_expert, expert_weights_bytes)
        found = _differences(stage, analytic.stages[name], modelled, closed)
        differences += found.values()
        stages[name] = dict.fromkeys(_QUANTITIES, True) | dict.fromkeys(found, False)
        for entry, work in left_out.items():
            not_modelled.append(
                NotModelled(
                    **counts_of(work), stage=name, modules=entry.modules, reason=entry.reason,
                    operators=tuple(sorted(entry.operators)),
                )
            )  # fmt: skip
        if left_out:
            shares[name] = _share(total_work(left_out.values()), total_work(modelled.values()))
    one, other = traced.memory, analytic.memory
    is_same_cache = (one.prefill_cache_bytes, one.kv_cache_bytes) == (
        other.prefill_cache_bytes, other.kv_cache_bytes,
    )  # fmt: skip
    if not is_same_cache:
        differences.append("the KV cache differs in size between the trace and the closed forms")
    has_weights = traced.provenance.model.weights == "checkpoint"
    # A checkpoint's routing reads other experts than uniform routing, and different ones per step.
    counts = Work._fields[: 3 if has_weights else None]
    is_same_batch = True
    for name, count, form in zip(counts, traced.batch, analytic.batch, strict=False):
        if count != form and not not_modelled:
            is_same_batch = False
            differences.append(f"{name} of the batch is {count} traced and {form} analytic")
    peak, form = one.peak.nbytes, other.peak.nbytes
    tolerance = _ROUTED_PEAK_TOLERANCE if has_weights else 0.0
    is_same_peak = abs(peak - form) <= tolerance * form
    if not is_same_peak:
        differences.append(f"peak activation is {peak} bytes traced and {form} analytic")
    return Agreement(
        agrees=not differences,
        stages=stages,
        kv_cache_bytes=is_same_cache,
        batch=None if not_modelled else is_same_batch,
        peak_activation_bytes=PeakAgreement(traced=peak, analytic=form, agrees=is_same_peak),
        first_difference=differences[0] if differences else None,
        not_modelled=tuple(not_modelled),
        not_modelled_share=shares,
    )


def _share(left_out: Work, modelled: Work) -> LeftOutShare:
    flops, nbytes = left_out.vector_flops, left_out.bytes_moved
    return LeftOutShare(
        vector_flops=flops / (flops + modelled.vector_flops) if flops else 0.0,
        bytes=nbytes / (nbytes + modelled.bytes_moved) if nbytes else 0.0,
    )


def _differences(
    traced: StageFigures,
    analytic: StageFigures,
    modules: Mapping[str, Work],
    closed: Mapping[str, Work],
) -> dict[str, str]:
    """For every quantity that differs, a line on the first module where it does."""
    found: dict[str, str] = {}
    if traced.params != analytic.params:
        values = f"{traced.params} traced and {analytic.params} analytic"
        found["params"] = f"stage {traced.name}: params of the model itself is {values}"
    for path in dict.fromkeys((*modules, *closed)):
        one, other = modules.get(path, NO_WORK), closed.get(path, NO_WORK)
        for quantity in _QUANTITIES[1:] if one != other else ():
            count, form = getattr(one, quantity), getattr(other, quantity)
            if count != form:
                module = repr(path) if path else "the model itself"
                said = f"{quantity} of {module} is {count} traced and {form} analytic"
                found.setdefault(quantity, f"stage {traced.name}: {said}")
    return found


def _modelled(
    stage: StageFigures, not_modelled: Iterable[IncidentalOperators]
) -> tuple[dict[str, Work], dict[IncidentalOperators, Work]]:
    """Own work of every module, and work without a closed form."""
    modules = dict(stage.own)
    left_out: dict[IncidentalOperators, Work] = {}
    works = work_by(stage.kernels, "path", "operator")
    for path, operator in works:
        for entry in not_modelled:
            is_meant = operator in entry.operators and re.fullmatch(entry.modules, path)
            if is_meant and all((path, each) in works for each in entry.operators):
                work = works[path, operator]
                left_out[entry] = left_out.get(entry, NO_WORK).plus(work)
                modules[path] = modules[path].minus(work)
    return modules, left_out


def _join_experts(
    traced: dict[str, Work],
    closed: dict[str, Work],
    routed_expert: re.Pattern[str],
    weights_bytes: int,
) -> None:
    """Merges a layer's experts into one row if others were touched than predicted."""
    layers: dict[str, tuple[_ExpertWork, _ExpertWork]] = {}
    for side, modules in enumerate((traced, closed)):
        for path, work in modules.items():
            if match := routed_expert.fullmatch(path):
                layers.setdefault(match["experts"], ({}, {}))[side][match["index"], path] = work
    for experts, (found, foreseen) in layers.items():
        if found != foreseen:
            more = len(dict(found.keys())) - len(dict(foreseen.keys()))  # experts, by number
            for modules, works in ((traced, found), (closed, foreseen)):
                for _, path in works:
                    del modules[path]
                modules[experts] = total_work(works.values())
            weights = Work(bytes_read=weights_bytes * more)
            closed[experts] = closed[experts].plus(weights)
