"""Builds the report from a page's figures and their agreement: the only place that does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

import msgspec
from msgspec import structs

from dsocr_analyze import kernels
from dsocr_analyze.figures import PageFigures, StageFigures, counts_of
from dsocr_analyze.kernels import NO_WORK, ancestors, with_ancestors
from dsocr_analyze.report.document import (
    CONVENTIONS,
    SCHEMA_VERSION,
    Agreement,
    Batch,
    Counts,
    DecodeStep,
    ExpertsTouched,
    Family,
    Memory,
    Metadata,
    Module,
    PageShare,
    Report,
    Stage,
    Total,
    Unassigned,
    Workload,
)
from dsocr_analyze.report.table import counted
from dsocr_analyze.timing.prediction import TimeEntry
from dsocr_analyze.workload import AnyWorkload
from dsocr_analyze.workload import Workload as PageWorkload

__all__ = ["build_report", "workload_document"]


def build_report(
    figures: PageFigures,
    agreement: Agreement | None,
    created: datetime,
    times: Iterable[TimeEntry] = (),
) -> Report:
    """The report of a page.

    Args:
        figures: Its figures, from either engine.
        agreement: How a trace compares with the closed forms; None if only one of them ran.
        created: Time of writing, in UTC.
        times: Predicted seconds.
    """
    return Report(
        schema_version=SCHEMA_VERSION,
        metadata=Metadata(
            **structs.asdict(figures.provenance),
            kernels_of="cuda",
            conventions=CONVENTIONS,
            created=created.isoformat(timespec="seconds"),
        ),
        workload=workload_document(figures.workload),
        total=_total(figures),
        stages={name: _stage(figures, stage) for name, stage in figures.stages.items()},
        unassigned=Unassigned(
            params=sum(figures.parameters.unassigned.values()),
            names=tuple(figures.parameters.unassigned),
        ),
        memory=_memory(figures),
        agreement=agreement,
        time=tuple(times),
        operator_ledger=figures.ledger,
        warnings=figures.warnings,
        notes=figures.notes,
    )


def _intensity(work: kernels.Work) -> float | None:
    """FLOPs per byte; None if no bytes move."""
    return work.flops / work.bytes_moved if work.bytes_moved else None


def workload_document(workload: AnyWorkload) -> Workload:
    """The `workload` object; what lengths alone do not have is None."""
    known = {name: getattr(workload, name, None) for name in Workload.__struct_fields__}
    return msgspec.convert(known, Workload, from_attributes=True)


def _total(figures: PageFigures) -> Total:
    workload = figures.workload
    prefill, step = figures.prefill_pass, figures.decode_step
    batch = Batch(
        **counts_of(figures.batch),
        arithmetic_intensity=_intensity(figures.batch),
        max_new_tokens=workload.max_new_tokens,
        decode_steps=max(0, workload.max_new_tokens - 1),
    )
    return Total(
        **counts_of(prefill),
        arithmetic_intensity=_intensity(prefill),
        params=figures.parameters.total,
        causal_savable_flops=figures.causal_savable_flops,
        decode_step=None
        if step is None
        else DecodeStep(
            **counts_of(step),
            arithmetic_intensity=_intensity(step),
            cached_tokens=workload.seq_len,
        ),
        batch=batch,
        page=PageShare.of(batch, workload.pages),
    )


def _stage(figures: PageFigures, stage: StageFigures) -> Stage:
    is_analytic = figures.provenance.engine == "analytic"
    # The decoder's part of the prefill pass is the last of it.
    in_prefill_pass = [
        name for name in figures.stages if figures.stages[name] is not figures.decode
    ]
    is_prefill, experts = stage.name == in_prefill_pass[-1], stage.experts
    return Stage(
        **counts_of(stage.work),
        arithmetic_intensity=_intensity(stage.work),
        params=stage.params,
        calls=stage.calls,
        causal_savable_flops=figures.causal_savable_flops if is_prefill else 0,
        experts_touched=None
        if experts is None
        else ExpertsTouched(
            even=experts.even, expected=experts.expected, counted=experts.counted_per_layer
        ),
        bytes_read_expected=stage.bytes_read_expected,
        operators={name: work.flops for name, work in stage.operators.items()},
        operator_bytes={name: work.bytes_moved for name, work in stage.operators.items()},
        operator_families={
            kind: Family(
                operators=tuple(name for name in stage.operators if stage.kind_of[name] == kind),
                flops=work.flops,
                bytes=work.bytes_moved,
            )
            for kind, work in stage.kinds.items()
        },
        by_module=_modules(figures, stage),
        flops_analytic=stage.work.flops if is_analytic else figures.flops_analytic.get(stage.name),
        notes=stage.notes,
    )


def _modules(figures: PageFigures, stage: StageFigures) -> dict[str, Module]:
    """Every module that took part, with all its ancestors, sorted by path."""
    own = {path: stage.own.get(path, NO_WORK) for path in (*stage.module_calls, *stage.own)}
    params = Counter[str]()
    for path, count in (stage.own_params or {}).items():
        params.update(dict.fromkeys(ancestors(path), count))
    return {
        path: Module(
            **counts_of(work),
            class_name=figures.module_classes.get(path),
            calls=stage.module_calls.get(path, 0),
            params=None if stage.own_params is None else params[path],
            own=Counts(**counts_of(own.get(path, NO_WORK))),
        )
        for path, work in sorted(with_ancestors(own).items(), key=lambda item: _place(item[0]))
    }


@lru_cache(maxsize=1 << 16)  # stages and reports have the same modules
def _place(path: str) -> tuple[tuple[int, str], ...]:
    """Sort key for paths: component by component, parents first, layer 2 before layer 10."""
    names = path.split(".")
    return tuple((int(name), "") if name.isdecimal() else (-1, name) for name in names)


def _memory(figures: PageFigures) -> Memory:
    memory, workload = figures.memory, figures.workload
    tokens = workload.seq_len + max(0, workload.max_new_tokens - 1)
    what = counted(workload.batch_size, "page" if isinstance(workload, PageWorkload) else "prompt")
    return Memory(
        weights_bytes=memory.weights_bytes,
        inputs_bytes=memory.inputs_bytes,
        kv_cache_bytes=memory.kv_cache_bytes,
        peak_activation_bytes=memory.peak.nbytes,
        peak_module=memory.peak.path,
        stated_for={
            "weights_bytes": f"all parameters in {figures.provenance.dtype}",
            "inputs_bytes": f"inputs of the prefill pass of {what}: pixels, token ids, masks",
            "kv_cache_bytes": f"{counted(tokens, 'token')} of {what}: the prompt and"
            " every new token but the last"
            if figures.decodes
            else "the model does not decode",
            "peak_activation_bytes": "the prefill pass: tensors alive at once, without weights and"
            " inputs but with the KV cache",
        },
    )
