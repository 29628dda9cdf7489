"""The list of all JSON documents that commands write, and their schemas."""

from typing import Any, Final

from msgspec import Struct

from dsocr_analyze.archive.advice_document import AdviceDocument
from dsocr_analyze.archive.setting import ArchiveDocument, CountOpening
from dsocr_analyze.gate.judge import Check
from dsocr_analyze.report import (
    comparison,
    devices,
    document,
    measured,
    opening,
    time_tables,
    tree,
)

DOCUMENTS: Final[dict[str, dict[str, type[Struct]]]] = {
    "": {"schema": document.Report},
    "advise": {"advise": AdviceDocument},
    "archive": {"archive": ArchiveDocument, "table": CountOpening},
    "check": {"check": Check},
    "compare": {"compare": comparison.ComparisonDocument},
    "devices": {
        "devices": devices.DevicesDocument,
        "devices-corrections": devices.CorrectionsDocument,
    },
    "fit": {"fit": devices.FitDocument},
    "infer": {"infer": measured.InferenceReport},
    "measure": {"measure": measured.Measurement},
    "sweep": {"archive": ArchiveDocument, "table": CountOpening},
    "time": {"time": time_tables.TimeReport, "time-from-benchmark": measured.BenchmarkReport},
    "tree": {"tree": tree.TreeDocument, "tree-leaves": tree.LeavesDocument},
}
"""The documents of every command, whose name is empty for the main one, by the schema's name."""

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
    return {
        "schema.json" if kind == "schema" else f"schema-{kind}.json": opening.schema_of(
            each, _TITLES[kind]
        )
        for kinds in DOCUMENTS.values()
        for kind, each in kinds.items()
    }
