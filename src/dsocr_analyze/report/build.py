"""Builds the report from a page's figures and their agreement: the only place that does."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from dsocr_analyze import kernels
from dsocr_analyze.figures import ModelSource, PageFigures, Provenance, StageFigures
from dsocr_analyze.report.document import (
    CONVENTIONS,
    SCHEMA_VERSION,
    Agreement,
    Batch,
    Counts,
    DecodeStep,
    ExpertsTouched,
    Family,
    LeftOutShare,
    Memory,
    Metadata,
    Model,
    Module,
    NotModelled,
    OperatorLedger,
    PageShare,
    PeakAgreement,
    Report,
    Stage,
    Total,
    Unassigned,
    View,
    Workload,
)
from dsocr_analyze.report.quantities import counted
from dsocr_analyze.workload import Workload as PageWorkload

if TYPE_CHECKING:
    from dsocr_analyze import agreement as comparing
    from dsocr_analyze import workload as planned
    from dsocr_analyze.report.time_entry import TimeEntry

__all__ = ["build_report", "model_document", "workload_document"]


def build_report(
    figures: PageFigures,
    agreement: comparing.Agreement | None,
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
        metadata=_metadata(figures.provenance, created),
        workload=workload_document(figures.workload),
        total=_total(figures),
        stages={name: _stage(figures, stage, agreement) for name, stage in figures.stages.items()},
        unassigned=Unassigned(
            params=sum(figures.parameters.unassigned.values()),
            names=tuple(figures.parameters.unassigned),
        ),
        memory=_memory(figures),
        agreement=None if agreement is None else _agreement(agreement),
        time=tuple(times),
        operator_ledger=OperatorLedger(
            counted=dict(figures.ledger.counted),
            free=dict(figures.ledger.free),
            unknown=dict(figures.ledger.unknown),
        ),
        warnings=figures.warnings,
        notes=figures.notes,
    )


def _counts(work: kernels.Work) -> dict[str, int]:
    """The fields of `Counts`."""
    return {
        "macs": work.macs,
        "matrix_flops": work.matrix_flops,
        "vector_flops": work.vector_flops,
        "flops": work.flops,
        "activations": work.activations,
        "bytes_read": work.bytes_read,
        "bytes_written": work.bytes_written,
    }


def _intensity(work: kernels.Work) -> float | None:
    """FLOPs per byte; None if no bytes move."""
    return work.flops / work.bytes_moved if work.bytes_moved else None


def model_document(model: ModelSource) -> Model:
    """The `model` object of the metadata."""
    return Model(
        architecture=model.architecture,
        source=model.source,
        id=model.id,
        config_digest=model.config_digest,
        code_digest=model.code_digest,
        class_name=model.class_name,
        weights=model.weights,
        config_text=model.config_text,
    )


def _metadata(provenance: Provenance, created: datetime) -> Metadata:
    return Metadata(
        model=model_document(provenance.model),
        versions=dict(provenance.versions),
        engine=provenance.engine,
        device=provenance.device,
        dtype=provenance.dtype.name,
        attention=provenance.attention,
        kernels_of="cuda",
        conventions=CONVENTIONS,
        created=created.isoformat(timespec="seconds"),
    )


def workload_document(workload: planned.AnyWorkload) -> Workload:
    """The `workload` object."""
    if not isinstance(workload, PageWorkload):
        return Workload(
            page=None,
            base_size=None,
            image_size=None,
            crop_mode=None,
            grid=None,
            views=None,
            visual_tokens=None,
            text_tokens=None,
            seq_len=workload.seq_len,
            batch_size=workload.batch_size,
            max_new_tokens=workload.max_new_tokens,
            prompt_pages=None,
        )
    return Workload(
        page=workload.page,
        base_size=workload.base_size,
        image_size=workload.image_size,
        crop_mode=workload.crop_mode,
        grid=workload.grid,
        views=tuple(View(count=each.count, resolution=each.resolution) for each in workload.views),
        visual_tokens=workload.visual_tokens,
        text_tokens=workload.text_tokens,
        seq_len=workload.seq_len,
        batch_size=workload.batch_size,
        max_new_tokens=workload.max_new_tokens,
        prompt_pages=workload.prompt_pages,
    )


def _total(figures: PageFigures) -> Total:
    workload = figures.workload
    prefill, step = figures.prefill_pass, figures.decode_step
    batch = Batch(
        **_counts(figures.batch),
        arithmetic_intensity=_intensity(figures.batch),
        max_new_tokens=workload.max_new_tokens,
        decode_steps=max(0, workload.max_new_tokens - 1),
    )
    return Total(
        **_counts(prefill),
        arithmetic_intensity=_intensity(prefill),
        params=figures.parameters.total,
        causal_savable_flops=figures.causal_savable_flops,
        decode_step=None
        if step is None
        else DecodeStep(
            **_counts(step),
            arithmetic_intensity=_intensity(step),
            cached_tokens=workload.seq_len,
        ),
        batch=batch,
        page=PageShare.of(batch, workload.pages),
    )


def _stage(
    figures: PageFigures, stage: StageFigures, agreement: comparing.Agreement | None
) -> Stage:
    if agreement is not None:
        flops_analytic: int | None = agreement.stages[stage.name].analytic_flops
    else:
        flops_analytic = stage.work.flops if figures.provenance.engine == "analytic" else None
    # The decoder's part of the prefill pass is the last of it.
    in_prefill_pass = [
        name for name in figures.stages if figures.stages[name] is not figures.decode
    ]
    is_prefill = stage.name == in_prefill_pass[-1]
    return Stage(
        **_counts(stage.work),
        arithmetic_intensity=_intensity(stage.work),
        params=stage.params,
        calls=stage.calls,
        causal_savable_flops=figures.causal_savable_flops if is_prefill else 0,
        experts_touched=_experts_touched(stage),
        bytes_read_expected=stage.bytes_read_expected,
        operators={name: work.flops for name, work in stage.operators.items()},
        operator_bytes={name: work.bytes_moved for name, work in stage.operators.items()},
        operator_families={
            kind: Family(
                operators=family.operators, flops=family.work.flops, bytes=family.work.bytes_moved
            )
            for kind, family in stage.kinds.items()
        },
        by_module=_modules(figures, stage),
        flops_analytic=flops_analytic,
        notes=stage.notes,
    )


def _experts_touched(stage: StageFigures) -> ExpertsTouched | None:
    experts = stage.experts
    if experts is None:
        return None
    return ExpertsTouched(
        even=experts.even, expected=experts.expected, counted=experts.counted_per_layer
    )


def _modules(figures: PageFigures, stage: StageFigures) -> dict[str, Module]:
    return {
        path: Module(
            **_counts(module.total),
            class_name=figures.module_classes.get(path),
            calls=module.calls,
            params=module.params,
            own=Counts(**_counts(module.own)),
        )
        for path, module in stage.modules.items()
    }


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
            "weights_bytes": f"all parameters in {figures.provenance.dtype.name}",
            "inputs_bytes": f"inputs of the prefill pass of {what}: pixels, token ids, masks",
            "kv_cache_bytes": f"{counted(tokens, 'token')} of {what}: the prompt and"
            " every new token but the last"
            if figures.decodes
            else "the model does not decode",
            "peak_activation_bytes": "the prefill pass: tensors alive at once, without weights and"
            " inputs but with the KV cache",
        },
    )


# --- agreement ---------------------------------------------------------------------------------


def _agreement(agreement: comparing.Agreement) -> Agreement:
    return Agreement(
        agrees=agreement.agrees,
        stages={name: dict(stage.agrees) for name, stage in agreement.stages.items()},
        kv_cache_bytes=agreement.cache_agrees,
        batch=agreement.batch_agrees,
        peak_activation_bytes=PeakAgreement(
            traced=agreement.peak.traced,
            analytic=agreement.peak.analytic,
            agrees=agreement.peak.agrees,
        ),
        first_difference=agreement.first_difference,
        not_modelled=tuple(
            NotModelled(
                **_counts(left.work),
                stage=name,
                modules=left.modules,
                operators=left.operators,
                reason=left.reason,
            )
            for name, stage in agreement.stages.items()
            for left in stage.left_out
        ),
        not_modelled_share={
            name: LeftOutShare(vector_flops=stage.vector_flops_left_out, bytes=stage.bytes_left_out)
            for name, stage in agreement.stages.items()
            if stage.left_out
        },
    )
