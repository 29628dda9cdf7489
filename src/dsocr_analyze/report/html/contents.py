"""The typed document in an HTML page that its script reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from dsocr_analyze.hardware.profile import Profile
from dsocr_analyze.report.comparison import ComparedQuantity, Comparison, merged
from dsocr_analyze.report.document import Module, Report
from dsocr_analyze.report.markdown import notes_of
from dsocr_analyze.report.stage_colours import OUTSIDE, PALETTE, stage_colours
from dsocr_analyze.report.stage_parts import seconds_parts
from dsocr_analyze.report.tables import headline
from dsocr_analyze.timing.prediction import TimeEntry

__all__ = [
    "ComparisonContents",
    "Contents",
    "Roof",
    "comparison_contents",
    "report_contents",
    "roofs_of",
]


class Roof(Struct, frozen=True, kw_only=True):
    """A GPU's peaks in the data type of a report.

    Attributes:
        gpu: Its name in the catalogue.
        title: Its name for readers.
        dtype: The data type.
        matrix_flops_per_second: Dense rate of matrix products of that type.
        vector_flops_per_second: fp32 rate outside the matrix units; null if unknown.
        bytes_per_second: Memory bandwidth.
        memory_bytes: Its memory as sold.
        measured: Whether kernel times were measured on it rather than taken from another GPU.
        source: Where the peaks come from.
        weak: Which of them are poorly sourced; empty if none are.
    """

    gpu: str
    title: str
    dtype: str
    matrix_flops_per_second: float
    vector_flops_per_second: float | None
    bytes_per_second: float
    memory_bytes: int
    measured: bool
    source: str
    weak: str


class ModuleColumns(Struct, frozen=True, kw_only=True):
    """The modules of a stage by column, which keeps thousands of rows small.

    Attributes:
        path: Paths; the model's own is empty.
        class_name: Classes; null if no model was built.
        calls: Number of calls of each.
        params: Parameters at or below each.
        flops: FLOPs at or below each; all columns up to `bytes_written` include what is below.
        matrix_flops: FLOPs of matrix operators.
        vector_flops: FLOPs of all other operators.
        activations: Output elements of matrix operators.
        bytes_read: Bytes read.
        bytes_written: Bytes written.
        own_flops: FLOPs of its own forward, without its children.
        own_bytes: Bytes read and written by its own forward.
    """

    path: tuple[str, ...]
    class_name: tuple[str | None, ...]
    calls: tuple[int | None, ...]
    params: tuple[int | None, ...]
    flops: tuple[int, ...]
    matrix_flops: tuple[int, ...]
    vector_flops: tuple[int, ...]
    activations: tuple[int, ...]
    bytes_read: tuple[int, ...]
    bytes_written: tuple[int, ...]
    own_flops: tuple[int, ...]
    own_bytes: tuple[int, ...]

    @classmethod
    def of(cls, modules: Mapping[str, Module]) -> ModuleColumns:
        """The columns of a stage's `by_module`."""
        rows = modules.values()
        return cls(
            path=tuple(modules),
            class_name=tuple(row.class_name for row in rows),
            calls=tuple(row.calls for row in rows),
            params=tuple(row.params for row in rows),
            flops=tuple(row.flops for row in rows),
            matrix_flops=tuple(row.matrix_flops for row in rows),
            vector_flops=tuple(row.vector_flops for row in rows),
            activations=tuple(row.activations for row in rows),
            bytes_read=tuple(row.bytes_read for row in rows),
            bytes_written=tuple(row.bytes_written for row in rows),
            own_flops=tuple(row.own.flops for row in rows),
            own_bytes=tuple(row.own.bytes_moved for row in rows),
        )


class Colours(Struct, frozen=True, kw_only=True):
    """The colours of charts.

    Attributes:
        palette: Colours dark enough for white text.
        stages: One colour per stage, and one for the seconds of a page outside all stages.
        outside: Name of the latter.
    """

    palette: tuple[str, ...]
    stages: Mapping[str, str]
    outside: str


SecondsParts: TypeAlias = tuple[Mapping[str, float], ...]
"""Seconds of a page alone by stage, for each prediction of a report."""


class ReportContents(Struct, frozen=True, kw_only=True):
    """The page of one report.

    Attributes:
        kind: The kind of page.
        headline: What ran, and how.
        report: The report without its modules.
        modules: The modules by stage.
        notes: Notes on the report and its stages, and what predicted seconds assume.
        roofs: GPUs whose roofline can be shown, named ones first.
        curves: Predicted seconds over many concurrencies.
        curves_missing: Why there are no curves; empty if there are some.
        colours: The charts' colours.
        seconds: Seconds by stage of this one report.
    """

    kind: Literal["report"] = "report"
    headline: str
    report: Report
    modules: Mapping[str, ModuleColumns]
    notes: tuple[str, ...]
    roofs: tuple[Roof, ...]
    curves: tuple[TimeEntry, ...]
    curves_missing: str
    colours: Colours
    seconds: tuple[SecondsParts]


class DifferingKey(Struct, frozen=True, kw_only=True):
    """A config key in which the configs differ.

    Attributes:
        key: Its path in the config.
        values: Its value in each config, as JSON; null if it is absent.
    """

    key: str
    values: tuple[str | None, ...]


class ComparisonContents(Struct, frozen=True, kw_only=True):
    """The page of a comparison.

    Attributes:
        kind: The kind of page.
        headline: What ran.
        names: Names of the reports; the others are compared with the first.
        rows: One row per quantity.
        reports: The reports without their modules.
        config_names: Names of the compared configs.
        config_differences: The keys in which they differ.
        assumptions: What predicted seconds assume.
        colours: The charts' colours.
        seconds: Seconds by stage of each report.
    """

    kind: Literal["comparison"] = "comparison"
    headline: str
    names: tuple[str, ...]
    rows: tuple[ComparedQuantity, ...]
    reports: tuple[Report, ...]
    config_names: tuple[str, ...]
    config_differences: tuple[DifferingKey, ...]
    assumptions: tuple[str, ...]
    colours: Colours
    seconds: tuple[SecondsParts, ...]


Contents = ReportContents | ComparisonContents


def report_contents(
    report: Report,
    roofs: Sequence[Roof] = (),
    curves: Iterable[TimeEntry] = (),
    curves_missing: str = "",
) -> ReportContents:
    """The page of one report; the arguments are as in `ReportContents`."""
    return ReportContents(
        headline=headline(report),
        report=_without_modules(report),
        modules={name: ModuleColumns.of(stage.by_module) for name, stage in report.stages.items()},
        notes=tuple(notes_of(report)),
        roofs=tuple(roofs),
        curves=tuple(curves),
        curves_missing=curves_missing,
        colours=_colours(report),
        seconds=(_seconds(report),),
    )


def comparison_contents(comparison: Comparison, reports: Sequence[Report]) -> ComparisonContents:
    """The page of a comparison; `reports` are in its order."""
    found, configs = comparison.document, comparison.config_names
    return ComparisonContents(
        headline=comparison.headline(),
        names=found.names,
        rows=found.rows,
        reports=tuple(map(_without_modules, reports)),
        config_names=configs,
        config_differences=tuple(
            DifferingKey(key=key.key, values=tuple(map(key.text, configs)))
            for key in found.config_differences
        ),
        assumptions=found.assumptions,
        colours=_colours(*reports),
        seconds=tuple(map(_seconds, reports)),
    )


def _colours(*reports: Report) -> Colours:
    stages = merged([list(report.stages) for report in reports])
    return Colours(palette=PALETTE, stages=stage_colours([*stages, OUTSIDE]), outside=OUTSIDE)


def _seconds(report: Report) -> SecondsParts:
    return tuple(seconds_parts(report, entry) for entry in report.time)


def roofs_of(profiles: Iterable[Profile], dtype: str, first: Iterable[str] = ()) -> list[Roof]:
    """Peaks of the GPUs that support a data type.

    Args:
        profiles: The GPUs' profiles.
        dtype: The data type, as named in a report.
        first: Names of GPUs to list first, in this order.
    """
    places = {name: place for place, name in enumerate(first)}
    found = []
    for profile in profiles:
        gpu = profile.gpu
        has_dtype = gpu.float32_tflops > 0 if dtype == "float32" else dtype in gpu.dtypes
        if not has_dtype:
            continue
        vector = gpu.float32_tflops * 1e12
        found.append(
            Roof(
                gpu=gpu.name,
                title=gpu.title,
                dtype=dtype,
                matrix_flops_per_second=gpu.tflops(dtype) * 1e12,
                vector_flops_per_second=vector or None,
                bytes_per_second=gpu.bandwidth_gb_s * 1e9,
                memory_bytes=gpu.memory_bytes,
                measured=not profile.extrapolated,
                source=gpu.source,
                weak=gpu.weak,
            )
        )
    return sorted(found, key=lambda roof: places.get(roof.gpu, len(places)))


def _without_modules(report: Report) -> Report:
    stages = {
        name: msgspec.structs.replace(stage, by_module={}) for name, stage in report.stages.items()
    }
    return msgspec.structs.replace(report, stages=stages)
