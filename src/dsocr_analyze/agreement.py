"""Compares two figures of the same workload: whether they agree, and where they first differ.

Independent of the engines: either side is a `PageFigures`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from dsocr_analyze.figures import Count, Counts, Share, counts_of
from dsocr_analyze.kernels import NO_WORK, Work, total_work

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.architectures.architecture import NotModelled as WithoutForm
    from dsocr_analyze.figures import PageFigures, StageFigures

__all__ = ["Agreement", "LeftOutShare", "NotModelled", "PeakAgreement", "compare"]

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

_ROUTED_PEAK_TOLERANCE: Final = 0.01
"""Relative difference allowed between peaks when a checkpoint's own routing decides how many
tokens an expert holds at a time."""

_CACHES_DIFFER: Final = "the KV cache differs in size between the trace and the closed forms"

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
    """Traced operators without a closed form, which are left out of the comparison.

    Attributes:
        stage: Stage in which they ran.
        modules: Pattern that matches the paths of the modules calling them.
        operators: Their names.
        reason: Why they have no closed form.
    """

    stage: str
    modules: str
    operators: tuple[str, ...]
    reason: str


class LeftOutShare(Struct, frozen=True, kw_only=True):
    """The share of a stage's work in operators without a closed form.

    Attributes:
        vector_flops: Fraction of its vector FLOPs.
        bytes: Fraction of its bytes.
    """

    vector_flops: Share
    bytes: Share


class Agreement(Struct, frozen=True, kw_only=True):
    """Whether the two engines agree.

    Attributes:
        agrees: Whether everything that was compared agrees.
        stages: Whether each quantity agrees, by stage and quantity.
        kv_cache_bytes: Whether the KV cache agrees.
        batch: Whether the work of the whole batch agrees; null if some operators are not modelled.
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
        lines = [
            f"operators without a closed form are {share:.2%} of the {quantity} of stage {name}"
            for name, left_out in self.not_modelled_share.items()
            for quantity, share in asdict(left_out).items()
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
    has_weights = traced.provenance.model.weights == "checkpoint"
    tolerance = _ROUTED_PEAK_TOLERANCE if has_weights else 0.0
    peak = PeakAgreement(
        traced=one.peak.nbytes,
        analytic=other.peak.nbytes,
        agrees=abs(one.peak.nbytes - other.peak.nbytes) <= tolerance * other.peak.nbytes,
    )
    not_modelled = tuple(left for stage in stages.values() for left in stage.not_modelled)
    of_stages = [stage.difference for stage in stages.values() if stage.difference]
    of_caches = [] if one.caches == other.caches else [_CACHES_DIFFER]
    of_batch = [*_batch_differences(traced.batch, analytic.batch, has_weights=has_weights)]
    of_peak = f"peak activation is {peak.traced} bytes traced and {peak.analytic} analytic"
    differences = [*of_stages, *of_caches, *of_batch, *([] if peak.agrees else [of_peak])]
    batch = None if not_modelled else not of_batch
    return Agreement(
        agrees=not of_stages and not of_caches and batch is not False and bool(peak.agrees),
        stages={name: stage.agrees for name, stage in stages.items()},
        kv_cache_bytes=not of_caches,
        batch=batch,
        peak_activation_bytes=peak,
        first_difference=differences[0] if differences else None,
        not_modelled=not_modelled,
        not_modelled_share={name: each.share for name, each in stages.items() if each.not_modelled},
    )


def _batch_differences(traced: Work, analytic: Work, *, has_weights: bool) -> Iterator[str]:
    # A checkpoint's routing reads other experts than uniform routing, and different ones per step.
    for name in Work._fields[:3] if has_weights else Work._fields:
        one, other = getattr(traced, name), getattr(analytic, name)
        if one != other:
            yield f"{name} of the batch is {one} traced and {other} analytic"


class _StageAgreement(NamedTuple):
    """How the engines compare on one stage."""

    agrees: Mapping[str, bool]
    difference: str | None
    not_modelled: Sequence[NotModelled]
    share: LeftOutShare


def _compare_stage(
    traced: StageFigures,
    analytic: StageFigures,
    architecture: Architecture,
    expert_weights_bytes: int,
) -> _StageAgreement:
    modelled, left_out = _modelled(traced, architecture.forms.not_modelled)
    closed = dict(analytic.own)
    if architecture.routed_expert is not None:
        _join_experts(modelled, closed, architecture.routed_expert, expert_weights_bytes)
    differences = [*_differences(traced, analytic, modelled, closed)]
    wrong = {quantity for quantity, _ in differences}
    total, left = total_work(modelled.values()), total_work(left_out.values())
    return _StageAgreement(
        {quantity: quantity not in wrong for quantity in _QUANTITIES},
        differences[0][1] if differences else None,
        [
            NotModelled(
                **counts_of(work),
                stage=traced.name,
                modules=entry.modules,
                operators=tuple(sorted(entry.operators)),
                reason=entry.reason,
            )
            for entry, work in left_out.items()
        ],
        LeftOutShare(
            vector_flops=_share(left.vector_flops, total.vector_flops),
            bytes=_share(left.bytes_moved, total.bytes_moved),
        ),
    )


def _differences(
    traced: StageFigures,
    analytic: StageFigures,
    modules: Mapping[str, Work],
    closed: Mapping[str, Work],
) -> Iterator[tuple[str, str]]:
    """Every quantity of a module, without its children, that differs, and a line that says so.

    In the order in which the modules ran.
    """

    def difference(path: str, quantity: str, one: int, other: int) -> tuple[str, str]:
        module = repr(path) if path else "the model itself"
        values = f"{one} traced and {other} analytic"
        return quantity, f"stage {traced.name}: {quantity} of {module} is {values}"

    if traced.params != analytic.params:
        yield difference("", "params", traced.params, analytic.params)
    for path in (*modules, *(path for path in closed if path not in modules)):
        one, other = modules.get(path, NO_WORK), closed.get(path, NO_WORK)
        if one == other:
            continue
        for quantity in _QUANTITIES[1:]:
            values = getattr(one, quantity), getattr(other, quantity)
            if values[0] != values[1]:
                yield difference(path, quantity, *values)


def _modelled(
    stage: StageFigures, not_modelled: Iterable[WithoutForm]
) -> tuple[dict[str, Work], dict[WithoutForm, Work]]:
    """Own work of every module, and the work of operators that have no closed form."""
    modules: dict[str, Work] = {}
    left_out: dict[WithoutForm, Work] = {}
    for path, operators in stage.own_operators.items():
        entry = next((each for each in not_modelled if _is_meant(each, path, operators)), None)
        for operator, work in operators.items():
            if entry is not None and operator in entry.operators:
                left_out[entry] = left_out.get(entry, NO_WORK).plus(work)
            else:
                modules[path] = modules.get(path, NO_WORK).plus(work)
    return modules, left_out


def _is_meant(entry: WithoutForm, path: str, operators: Mapping[str, Work]) -> bool:
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
