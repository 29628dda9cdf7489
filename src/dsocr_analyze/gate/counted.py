"""The counted figures of a report, which must equal the baseline's unless they have a budget.

Counts are exact, so they only change if what is counted changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsocr_analyze.gate.document import Figure
from dsocr_analyze.report.document import Counts, Report

__all__ = ["changed_figures", "counted_figures"]

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
        yield f"stages.{name}.params", stage.params
        yield from _work(f"stages.{name}", stage)
    yield "unassigned.params", report.unassigned.params
    yield "memory.weights_bytes", memory.weights_bytes
    yield "memory.inputs_bytes", memory.inputs_bytes
    yield "memory.kv_cache_bytes", memory.kv_cache_bytes
    yield "memory.peak_activation_bytes", memory.peak_activation_bytes


def _work(place: str, counts: Counts) -> Iterator[tuple[str, int]]:
    for name in _WORK:
        yield f"{place}.{name}", getattr(counts, name)


def changed_figures(before: Report, after: Report) -> tuple[list[Figure], int]:
    """The counted figures that differ, in report order, and the number of those that don't.

    A figure that is unknown in one report (`memory.inputs_bytes` of schema version 1) counts as
    neither; a figure of a stage that only one report has differs.
    """
    unknown = {
        key
        for report in (before, after)
        for key, value in _figures(report)
        if value is None and not key.startswith("workload.")
    }
    old, new = counted_figures(before), counted_figures(after)
    keys = [key for key in dict.fromkeys([*new, *old]) if key not in unknown]
    changed = [
        Figure(key=key, before=old.get(key), after=new.get(key))
        for key in keys
        if old.get(key) != new.get(key)
    ]
    return changed, len(keys) - len(changed)
