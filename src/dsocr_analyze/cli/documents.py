"""The list of all JSON documents that commands write, and their schemas."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from dsocr_analyze.advice.document import AdviceDocument
from dsocr_analyze.archive.document import ArchiveDocument
from dsocr_analyze.columns.setting import CountOpening
from dsocr_analyze.gate.judge import Check
from dsocr_analyze.report.comparison import ComparisonDocument
from dsocr_analyze.report.devices import CorrectionsDocument, DevicesDocument, FitDocument
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.measured import BenchmarkReport, InferenceReport, Measurement
from dsocr_analyze.report.opening import schema_of
from dsocr_analyze.report.time_tables import TimeReport
from dsocr_analyze.report.tree import LeavesDocument, TreeDocument

__all__ = ["DOCUMENTS", "schemas"]

DOCUMENTS: Final[dict[str, dict[str, type[Struct]]]] = {
    "": {"schema": Report},
    "advise": {"advise": AdviceDocument},
    "archive": {"archive": ArchiveDocument, "table": CountOpening},
    "check": {"check": Check},
    "compare": {"compare": ComparisonDocument},
    "devices": {"devices": DevicesDocument, "devices-corrections": CorrectionsDocument},
    "fit": {"fit": FitDocument},
    "infer": {"infer": InferenceReport},
    "measure": {"measure": Measurement},
    "sweep": {"archive": ArchiveDocument, "table": CountOpening},
    "time": {"time": TimeReport, "time-from-benchmark": BenchmarkReport},
    "tree": {"tree": TreeDocument, "tree-leaves": LeavesDocument},
}
"""Kinds of documents that each command writes; the main command's name is empty.

A kind is the name of its schema: `report/schema.json` for the report, `report/schema-KIND.json` for
the others.
"""

_TITLES: Final = {
    "schema": "dsocr-analyze report (static_compute.json)",
    "advise": "dsocr-analyze advise --format json",
    "archive": "dsocr-analyze archive --format json",
    "table": "dsocr-analyze sweep and archive: metadata of a table",
    "check": "dsocr-analyze check --json",
    "compare": "dsocr-analyze compare --format json",
    "devices": "dsocr-analyze devices --format json",
    "devices-corrections": "dsocr-analyze devices --corrections --format json",
    "fit": "dsocr-analyze fit --format json",
    "infer": "dsocr-analyze infer (infer_one.json)",
    "measure": "dsocr-analyze measure --format json",
    "time": "dsocr-analyze time --format json",
    "time-from-benchmark": "dsocr-analyze time --from-benchmark FILE --format json",
    "tree": "dsocr-analyze tree --format json",
    "tree-leaves": "dsocr-analyze tree --leaves --format json",
}


def schemas() -> dict[str, dict[str, Any]]:
    """The schema of every kind of document, by its file name in `report/`."""
    kinds = {kind: each for found in DOCUMENTS.values() for kind, each in found.items()}
    return {
        "schema.json" if kind == "schema" else f"schema-{kind}.json": schema_of(each, _TITLES[kind])
        for kind, each in kinds.items()
    }
