"""Reads saved reports of this schema version and the previous one.

dsocr-analyze 0.1 wrote version 1. It has the whole batch's work under `page`, and a module's own
work only if it differs from its total. It has neither the inputs' bytes, nor the module of the
peak, nor the touched experts; all of these become None.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.input_files import DOCUMENT_BYTES, read_bytes
from dsocr_analyze.report import document
from dsocr_analyze.report.document import SCHEMA_VERSION, Count, Counts, Report

__all__ = ["LARGEST_NUMBER", "load_report"]

_READABLE_VERSIONS: Final = ("1", SCHEMA_VERSION)

_LATER_STAGE_KEYS: Final = ("experts_touched", "bytes_read_expected", "operator_bytes")
"""Keys that version 1 and early reports of this version lack."""

LARGEST_NUMBER: Final = 10**30
"""Above any figure that a workload can reach."""


def load_report(path: Path) -> Report:
    """A saved `static_compute.json`.

    Raises:
        ConfigError: The file cannot be read, or is not a report of a readable version.
    """
    name = repr(str(path))
    try:
        data = read_bytes(path, DOCUMENT_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read report {name}: {reason}") from error
    try:
        return _decoded(data)
    except ValueError as error:
        raise ConfigError(f"report {name} {error}") from error
    except RecursionError as error:
        raise ConfigError(f"report {name} is nested too deeply") from error


def _decoded(data: bytes) -> Report:
    """The report in a file's content; error messages are predicates without the file's name."""
    try:
        parsed = msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"is not JSON: {error}") from error
    version = parsed.get("schema_version") if isinstance(parsed, dict) else None
    if version not in _READABLE_VERSIONS:
        raise ValueError(
            f"has schema_version {reprlib.repr(version)}; give a report with schema_version"
            f" {' or '.join(map(repr, _READABLE_VERSIONS))}"
        )
    _check_sizes(parsed)
    stages = parsed.get("stages")
    for stage in stages.values() if isinstance(stages, dict) else ():
        if isinstance(stage, dict):
            stage.update({key: None for key in _LATER_STAGE_KEYS if key not in stage})
    try:
        if version == SCHEMA_VERSION:
            return msgspec.convert(parsed, Report)
        return _upgraded(msgspec.convert(parsed, _Report1))
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"is not a report of schema_version {version!r}: {error}") from error


def _check_sizes(value: object) -> None:
    """Raise ValueError for numbers beyond any real figure, which could overflow a float later."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_sizes(item)
    elif isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
        raise ValueError(f"contains {reprlib.repr(value)}; no figure is above {LARGEST_NUMBER:.0e}")


# --- version 1: what differs from the structs of this version ------------------------------------


class _Page1(document.Batch, frozen=True, kw_only=True):
    """Work of the whole batch."""

    max_new_tokens: Count = field(name="new_tokens")


class _Total1(document.Work, frozen=True, kw_only=True):
    """The `total` object."""

    params: Count
    causal_savable_flops: Count
    decode_step: document.DecodeStep
    page: _Page1


class _Module1(Counts, frozen=True, kw_only=True):
    """A row of `by_module`; the analytic engine wrote counts only."""

    class_name: str | None = field(name="class", default=None)
    calls: Count | None = None
    params: Count | None = None
    own: Counts | None = None


class _Stage1(document.Stage, frozen=True, kw_only=True):
    """A stage."""

    by_module: Mapping[str, _Module1]  # type: ignore[assignment]  # rows may lack what they own


class _Stages1(Struct, frozen=True, kw_only=True):
    """The five stages."""

    sam: _Stage1
    clip: _Stage1
    projector: _Stage1
    prefill: _Stage1
    decode: _Stage1


class _Model1(document.Model, frozen=True, kw_only=True):
    """Where the model comes from; the analytic engine wrote no class."""

    architecture: None = None
    source: Literal["reference", "directory"]
    class_name: str | None = field(name="class", default=None)


class _Metadata1(document.Metadata, frozen=True, kw_only=True):
    """How the figures were obtained."""

    model: _Model1
    kernels_of: None = None


class _Memory1(document.Memory, frozen=True, kw_only=True):
    """What the batch holds in memory."""

    inputs_bytes: None = None
    peak_module: None = None


class _Peak1(document.PeakAgreement, frozen=True, kw_only=True):
    """Peak activation by both engines, which were not compared."""

    agrees: None = None


class _Agreement1(document.Agreement, frozen=True, kw_only=True):
    """Whether traced and analytic figures agree, the peak aside."""

    batch: bool | None = field(name="page")
    peak_activation_bytes: _Peak1


class _Report1(Struct, frozen=True, kw_only=True):
    """A report of schema version 1."""

    metadata: _Metadata1
    workload: document.Workload
    total: _Total1
    stages: _Stages1
    unassigned: document.Unassigned
    memory: _Memory1
    agreement: _Agreement1 | None
    operator_ledger: document.OperatorLedger
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def _upgraded(report: _Report1) -> Report:
    """The same report in this version; ValueError if its parts contradict each other."""
    model, agreement = report.metadata.model, report.agreement
    batch = _as(document.Batch, report.total.page)
    share = document.PageShare.of(batch, report.workload.batch_size)
    later = {
        "schema_version": SCHEMA_VERSION,
        "metadata": _as(document.Metadata, report.metadata, model=_as(document.Model, model)),
        "total": _as(document.Total, report.total, batch=batch, page=share),
        "stages": {
            name: _as(document.Stage, stage, by_module=_modules(stage, model.class_name))
            for name, stage in asdict(report.stages).items()
        },
        "memory": _as(document.Memory, report.memory),
        "agreement": agreement and _as(
            document.Agreement, agreement,
            peak_activation_bytes=_as(document.PeakAgreement, agreement.peak_activation_bytes),
        ),
        "time": (),
    }  # fmt: skip
    return Report(**asdict(report) | later)


def _as(kind: Any, value: Struct, **changes: object) -> Any:
    """A struct with another's fields, but for some."""
    return kind(**asdict(value) | changes)


def _modules(stage: _Stage1, model_class: str | None) -> dict[str, document.Module]:
    """A stage's modules by path: version 1 named the model itself after its class."""
    rows = {}
    for path, row in stage.by_module.items():
        own = row.own or Counts(**{key: getattr(row, key) for key in Counts.__struct_fields__})
        rows["" if path == model_class else path] = _as(document.Module, row, own=own)
    return rows
