"""Whether the closed forms and a trace agree, and where they differ first.

The traced side comes as plain mappings, so that nothing here knows of torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dsocr_analyze.costs.swiglu import swiglu_params
from dsocr_analyze.model.stages import ROUTED_EXPERT, STAGES, Stage
from dsocr_analyze.work import NO_WORK, Work

if TYPE_CHECKING:
    from dsocr_analyze.costs.compose import PageCosts

__all__ = [
    "NOT_MODELLED",
    "QUANTITIES",
    "Agreement",
    "Difference",
    "LeftOut",
    "NotModelled",
    "StageAgreement",
    "compare_with_trace",
]

QUANTITIES: Final = (
    "params",
    "macs",
    "matrix_flops",
    "activations",
    "vector_flops",
    "bytes_read",
    "bytes_written",
)
"""What is compared in every stage, in this order."""

_WORK_QUANTITIES: Final = QUANTITIES[1:]


@dataclass(frozen=True, slots=True)
class NotModelled:
    """Incidental operators without a closed form.

    Attributes:
        modules: Pattern of the module paths that call them.
        operators: Their names; a module that does not call all of them is not meant.
        reason: Why they have none.
    """

    modules: str
    operators: frozenset[str]
    reason: str


NOT_MODELLED: Final = (
    NotModelled(
        r"model\.layers\.\d+\.self_attn\.rotary_emb",
        frozenset({"max", "add", "gt", "lt"}),
        "plain attention with 'dynamic' positions asks each layer for the longest position",
    ),
)
"""The only operators of the model that the closed forms leave out."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a trace has of one entry of `NOT_MODELLED`."""

    entry: NotModelled
    work: Work


@dataclass(frozen=True, slots=True)
class Difference:
    """A quantity of a module (its children's not included) on which the two disagree."""

    stage: Stage
    path: str
    quantity: str
    traced: int
    closed_form: int

    def __str__(self) -> str:
        module = repr(self.path) if self.path else "the model itself"
        return (
            f"stage {self.stage}: {self.quantity} of {module} is {self.traced} traced"
            f" and {self.closed_form} by the closed forms"
        )


@dataclass(frozen=True, slots=True)
class StageAgreement:
    """How one stage compares.

    Attributes:
        agrees: By quantity of `QUANTITIES`; "params" only where they were given.
        difference: The first module and quantity that differ; None where all agree.
        left_out: Operators that are not modelled.
        vector_flops_left_out: Their share of the stage's traced vector FLOPs.
        bytes_left_out: Their share of its traced bytes.
    """

    agrees: Mapping[str, bool]
    difference: Difference | None
    left_out: tuple[LeftOut, ...] = ()
    vector_flops_left_out: float = 0.0
    bytes_left_out: float = 0.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a whole page compares.

    Attributes:
        stages: By stage.
        cache_agrees: Whether the KV cache has as many bytes; None where that was not given.
        cache_difference: Traced and closed-form bytes where it has not.
    """

    stages: Mapping[Stage, StageAgreement]
    cache_agrees: bool | None = None
    cache_difference: tuple[int, int] | None = None

    @property
    def agrees(self) -> bool:
        """Whether every quantity of every stage, and the cache, agrees."""
        return self.cache_agrees is not False and all(
            all(stage.agrees.values()) for stage in self.stages.values()
        )

    @property
    def difference(self) -> Difference | None:
        """The first module and quantity that differ, in the order of the stages."""
        found = (stage.difference for stage in self.stages.values())
        return next((difference for difference in found if difference is not None), None)

    @property
    def warning(self) -> str | None:
        """One line that names the first disagreement; None where there is none."""
        if self.difference is not None:
            return f"trace and closed forms disagree; {self.difference}"
        if self.cache_difference is not None:
            traced, closed_form = self.cache_difference
            return (
                f"trace and closed forms disagree; the KV cache has {traced} bytes traced"
                f" and {closed_form} by the closed forms"
            )
        return None


@dataclass(slots=True)
class _Rows:
    """Own work of a stage's modules, and what was left out of it."""

    modules: dict[str, Work] = field(default_factory=dict)
    left_out: dict[NotModelled, Work] = field(default_factory=dict)


def compare_with_trace(
    costs: PageCosts,
    traced: Mapping[Stage, Mapping[str, Mapping[str, Work]]],
    *,
    params: Mapping[Stage, int] | None = None,
    kv_cache_bytes: int | None = None,
    kv_tokens: int | None = None,
) -> Agreement:
    """Holds the closed forms of a page against a trace of it, module by module, to the integer.

    Real routing touches other experts than uniform routing does. Where a traced layer's experts are
    not those of the closed form, they are compared all together, each touched expert's weights
    counted once.

    Args:
        costs: The closed forms.
        traced: For each stage, work by operator of each module path (its children's not included);
            "decode" is one step over a cache of `seq_len` tokens.
        params: Parameters by owning stage, where they are to be compared.
        kv_cache_bytes: Bytes of a traced KV cache, where they are to be compared.
        kv_tokens: Tokens a sequence that this cache holds; `seq_len` where not given.
    """
    stages = {
        stage: _compare_stage(
            costs, stage, traced.get(stage, {}), None if params is None else params[stage]
        )
        for stage in STAGES
    }
    if kv_cache_bytes is None:
        return Agreement(stages)
    expected = costs.kv_bytes(costs.workload.seq_len if kv_tokens is None else kv_tokens)
    if kv_cache_bytes == expected:
        return Agreement(stages, cache_agrees=True)
    return Agreement(stages, cache_agrees=False, cache_difference=(kv_cache_bytes, expected))


def _compare_stage(
    costs: PageCosts,
    stage: Stage,
    traced: Mapping[str, Mapping[str, Work]],
    params: int | None,
) -> StageAgreement:
    rows = _modelled(traced)
    closed = dict(costs.stages[stage].centres)
    _join_experts(costs, rows.modules, closed)
    differences: dict[str, Difference] = {}
    if params is not None and params != costs.stages[stage].params:
        differences["params"] = Difference(stage, "", "params", params, costs.stages[stage].params)
    first: Difference | None = differences.get("params")
    for path in _in_order(rows.modules, closed):
        one, other = rows.modules.get(path, NO_WORK), closed.get(path, NO_WORK)
        if one == other:
            continue
        for quantity in _WORK_QUANTITIES:
            values = getattr(one, quantity), getattr(other, quantity)
            if values[0] != values[1]:
                difference = Difference(stage, path, quantity, *values)
                differences.setdefault(quantity, difference)
                first = first or difference
    compared = _WORK_QUANTITIES if params is None else QUANTITIES
    total = _sum(rows.modules.values())
    left_out = _sum(rows.left_out.values())
    return StageAgreement(
        agrees={quantity: quantity not in differences for quantity in compared},
        difference=first,
        left_out=tuple(LeftOut(entry, work) for entry, work in rows.left_out.items()),
        vector_flops_left_out=_share(left_out.vector_flops, total.vector_flops),
        bytes_left_out=_share(
            left_out.bytes_read + left_out.bytes_written,
            total.bytes_read + total.bytes_written,
        ),
    )


def _modelled(traced: Mapping[str, Mapping[str, Work]]) -> _Rows:
    """Own work of every module without the operators of `NOT_MODELLED`, which are summed apart."""
    rows = _Rows()
    for path, operators in traced.items():
        entry = next((e for e in NOT_MODELLED if _is_meant(e, path, operators)), None)
        for operator, work in operators.items():
            if entry is not None and operator in entry.operators:
                rows.left_out[entry] = rows.left_out.get(entry, NO_WORK).plus(work)
            else:
                rows.modules[path] = rows.modules.get(path, NO_WORK).plus(work)
    return rows


def _is_meant(entry: NotModelled, path: str, operators: Mapping[str, Work]) -> bool:
    return entry.operators <= operators.keys() and bool(re.fullmatch(entry.modules, path))


def _in_order(traced: Mapping[str, Work], closed: Mapping[str, Work]) -> Iterable[str]:
    """Paths in the order in which they ran, then those that only the closed forms have."""
    yield from traced
    yield from (path for path in closed if path not in traced)


def _join_experts(costs: PageCosts, traced: dict[str, Work], closed: dict[str, Work]) -> None:
    """Puts the experts of a layer together where other ones were touched than foreseen."""
    layers: dict[str, tuple[list[str], list[str]]] = {}
    for side, modules in enumerate((traced, closed)):
        for path in modules:
            if match := ROUTED_EXPERT.fullmatch(path):
                layers.setdefault(match["experts"], ([], []))[side].append(path)
    decoder = costs.dimensions.decoder
    weights = costs.element_bytes * swiglu_params(
        decoder.hidden_size, decoder.moe_intermediate_size
    )
    for experts, (found, foreseen) in layers.items():
        if {path: traced[path] for path in found} == {path: closed[path] for path in foreseen}:
            continue
        touched = [len({_index(path) for path in paths}) for paths in (found, foreseen)]
        one = _sum(traced.pop(path) for path in found)
        other = _sum(closed.pop(path) for path in foreseen)
        more = weights * (touched[0] - touched[1])
        traced[experts] = one
        closed[experts] = other._replace(bytes_read=other.bytes_read + more)


def _index(path: str) -> str:
    match = ROUTED_EXPERT.fullmatch(path)
    return match["index"] if match else ""


def _sum(works: Iterable[Work]) -> Work:
    total = NO_WORK
    for work in works:
        total = total.plus(work)
    return total


def _share(part: int, whole: int) -> float:
    """Part of the sum of both; 0 for nothing."""
    return part / (part + whole) if part else 0.0
