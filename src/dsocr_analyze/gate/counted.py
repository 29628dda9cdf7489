"""How the figures of two reports compare.

Counts are exact, so they only change if what is counted changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from dsocr_analyze.gate.differences import Difference, differences
from dsocr_analyze.gate.document import Figure
from dsocr_analyze.report.document import Counts, Report, Stage

__all__ = ["Compared", "compared", "counted_figures"]

_WORK: Final = ("matrix_flops", "vector_flops", "flops", "bytes_read", "bytes_written")


def counted_figures(report: Report) -> dict[str, int]:
    """Tokens, parameters, FLOPs, bytes and memory, in total and by stage, by report key."""
    return {key: value for key, value in _figures(report) if value is not None}


def _figures(report: Report) -> Iterator[tuple[str, int | None]]:
    workload, total, memory = report.workload, report.total, report.memory
    yield "workload.visual_tokens", workload.visual_tokens
    yield "workload.text_tokens", workload.text_tokens
    yield "workload.seq_len", workload.seq_len
    yield "total.params", total.params
    yield from _work("total", total)
    yield "total.causal_savable_flops", total.causal_savable_flops
    if total.decode_step is not None:
        yield from _work("total.decode_step", total.decode_step)
    yield from _work("total.batch", total.batch)
    for name, stage in report.stages.items():
        yield from _of_stage(name, stage)
    yield "unassigned.params", report.unassigned.params
    yield "memory.weights_bytes", memory.weights_bytes
    yield "memory.inputs_bytes", memory.inputs_bytes
    yield "memory.kv_cache_bytes", memory.kv_cache_bytes
    yield "memory.peak_activation_bytes", memory.peak_activation_bytes


def _of_stage(name: str, stage: Stage) -> Iterator[tuple[str, int]]:
    yield f"stages.{name}.params", stage.params
    yield from _work(f"stages.{name}", stage)


def _work(place: str, counts: Counts) -> Iterator[tuple[str, int]]:
    for name in _WORK:
        yield f"{place}.{name}", getattr(counts, name)


@dataclass(frozen=True)
class Compared:
    """How two reports compare.

    Attributes:
        changed: Figures that differ, except those that follow from another.
        following: How many figures differ and follow from another.
        unchanged: How many figures are equal.
        words: Everything else that differs and doesn't follow from a figure.
    """

    changed: list[Figure] = field(default_factory=list)
    following: int = 0
    unchanged: int = 0
    words: list[Difference] = field(default_factory=list)


def compared(before: Report, after: Report) -> Compared:
    """Compare everything that two reports state.

    A section's other numbers and its texts follow from its counted figures; in a section without
    any, such as predicted seconds, they follow from all counted figures. So they count as changed
    only if none of these has changed.
    """
    found = differences(before, after)
    stages = [*_of_one_side(before, after)]
    counted = counted_figures(after)
    moved = {each.section for each in found.numbers if each.key in counted}
    moved |= {"stages"} if stages else set()
    sections = {key.partition(".")[0] for key in counted} - {"stages"}
    sections |= {f"stages.{name}" for name in after.stages}

    def follows(each: Difference) -> bool:
        if each.section == "metadata":  # the inputs, from which the figures follow
            return False
        return bool(each.section in moved if each.section in sections else moved)

    own = [each for each in found.numbers if each.key in counted or not follows(each)]
    return Compared(
        changed=[*(Figure(key=each.key, before=each.before, after=each.after) for each in own),
                 *stages],
        following=len(found.numbers) - len(own),
        unchanged=found.equal,
        words=[each for each in found.words if not follows(each)],
    )  # fmt: skip


def _of_one_side(before: Report, after: Report) -> Iterator[Figure]:
    """The counted figures of stages that only one report has."""
    for name, stage in after.stages.items():
        if name not in before.stages:
            for key, value in _of_stage(name, stage):
                yield Figure(key=key, before=None, after=value)
    for name, stage in before.stages.items():
        if name not in after.stages:
            for key, value in _of_stage(name, stage):
                yield Figure(key=key, before=value, after=None)
