"""Reports of schema version 1, as written by dsocr-analyze 0.1, and their upgrade to version 2.

Version 1 has the whole batch's work under `page`, and a module's own work only if it differs from
its total. It has neither the inputs' bytes, nor the module of the peak, nor the touched experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct, field, structs

from dsocr_analyze.figures import Engine
from dsocr_analyze.report import document
from dsocr_analyze.report.document import Count, Counts, DecodeStep, Report, Work

__all__ = ["SCHEMA_VERSION", "Report1", "upgraded"]

SCHEMA_VERSION: Final = "1"


class Page1(Work, frozen=True, kw_only=True):
    """Work of the whole batch."""

    new_tokens: Count
    decode_steps: Count


class Total1(Work, frozen=True, kw_only=True):
    """The `total` object."""

    params: Count
    causal_savable_flops: Count
    decode_step: DecodeStep
    page: Page1


class Module1(Counts, frozen=True, kw_only=True):
    """A row of `by_module`; the analytic engine wrote counts only."""

    class_name: str | None = field(name="class", default=None)
    calls: Count | None = None
    params: Count | None = None
    own: Counts | None = None


class Stage1(Work, frozen=True, kw_only=True):
    """A stage."""

    params: Count
    calls: Count
    causal_savable_flops: Count
    operators: Mapping[str, Count]
    operator_families: Mapping[str, document.Family]
    by_module: Mapping[str, Module1]
    flops_analytic: Count | None
    notes: tuple[str, ...]


class Stages1(Struct, frozen=True, kw_only=True):
    """The five stages."""

    sam: Stage1
    clip: Stage1
    projector: Stage1
    prefill: Stage1
    decode: Stage1


class Model1(Struct, frozen=True, kw_only=True):
    """Where the model comes from; the analytic engine wrote no class."""

    source: Literal["reference", "directory"]
    id: str
    config_digest: str
    code_digest: str
    class_name: str | None = field(name="class", default=None)
    weights: Literal["none", "checkpoint"]


class Metadata1(Struct, frozen=True, kw_only=True):
    """How the figures were obtained."""

    model: Model1
    versions: Mapping[str, str]
    engine: Engine
    device: str
    dtype: str
    attention: str
    conventions: tuple[str, ...]
    created: str


class Memory1(Struct, frozen=True, kw_only=True):
    """What the batch holds in memory."""

    weights_bytes: Count
    kv_cache_bytes: Count
    peak_activation_bytes: Count
    stated_for: Mapping[str, str]


class Peak1(Struct, frozen=True, kw_only=True):
    """Peak activation by both engines."""

    traced: Count
    analytic: Count


class Agreement1(Struct, frozen=True, kw_only=True):
    """Whether traced and analytic figures agree, the peak aside."""

    agrees: bool
    stages: Mapping[str, Mapping[str, bool]]
    kv_cache_bytes: bool
    page: bool | None
    first_difference: str | None
    not_modelled: tuple[document.NotModelled, ...]
    not_modelled_share: Mapping[str, document.LeftOutShare]
    peak_activation_bytes: Peak1


class Report1(Struct, frozen=True, kw_only=True):
    """A report of schema version 1."""

    schema_version: Literal["1"]
    metadata: Metadata1
    workload: document.Workload
    total: Total1
    stages: Stages1
    unassigned: document.Unassigned
    memory: Memory1
    agreement: Agreement1 | None
    operator_ledger: document.OperatorLedger
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def upgraded(report: Report1) -> Report:
    """The same report in version 2; what version 1 lacks is None.

    Raises:
        ValueError: Its parts contradict each other.
    """
    model = report.metadata.model
    return Report(
        schema_version=document.SCHEMA_VERSION,
        metadata=document.Metadata(
            **_fields(report.metadata)
            | {"model": document.Model(**_fields(model), architecture=None), "kernels_of": None}
        ),
        workload=report.workload,
        total=_total(report.total, report.workload.batch_size),
        stages={
            name: _stage(stage, model.class_name) for name, stage in _fields(report.stages).items()
        },
        unassigned=report.unassigned,
        memory=document.Memory(**_fields(report.memory), inputs_bytes=None, peak_module=None),
        agreement=None if report.agreement is None else _agreement(report.agreement),
        time=(),
        operator_ledger=report.operator_ledger,
        warnings=report.warnings,
        notes=report.notes,
    )


# A struct's fields by name with values unchanged; most of a report is copied this way.
_fields = structs.asdict


def _total(total: Total1, pages: int) -> document.Total:
    fields = _fields(total.page)
    batch = document.Batch(max_new_tokens=fields.pop("new_tokens"), **fields)
    return document.Total(
        **_fields(total) | {"batch": batch, "page": document.PageShare.of(batch, pages)}
    )


def _stage(stage: Stage1, model_class: str | None) -> document.Stage:
    """A stage with modules by path: version 1 named the model itself after its class."""
    rows = {
        "" if path == model_class else path: document.Module(
            **_fields(module) | {"own": _own(module)}
        )
        for path, module in stage.by_module.items()
    }
    return document.Stage(
        **_fields(stage) | {"by_module": rows},
        experts_touched=None,
        bytes_read_expected=None,
        operator_bytes=None,
    )


def _own(module: Module1) -> Counts:
    if module.own is not None:
        return module.own
    return Counts(**{key: getattr(module, key) for key in Counts.__struct_fields__})


def _agreement(agreement: Agreement1) -> document.Agreement:
    fields = _fields(agreement)
    peak = document.PeakAgreement(**_fields(agreement.peak_activation_bytes), agrees=None)
    return document.Agreement(batch=fields.pop("page"), **fields | {"peak_activation_bytes": peak})
