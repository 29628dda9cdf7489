#!/usr/bin/env python3
"""Writes src/dsocr_analyze/report/schema*.json again, from the types of the documents."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import msgspec

from dsocr_analyze.archive.advice_document import AdviceDocument
from dsocr_analyze.archive.plan import PlanDocument
from dsocr_analyze.archive.setting import ArchiveDocument, CountOpening
from dsocr_analyze.gate.judge import Check
from dsocr_analyze.report import (
    comparison,
    devices,
    document,
    measured,
    time_tables,
    tree,
)

REPORT = Path(__file__).resolve().parent.parent / "src/dsocr_analyze/report"

DOCUMENTS: Final[dict[str, dict[str, type[msgspec.Struct]]]] = {
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
    "plan": {"plan": PlanDocument},
    "sweep": {"archive": ArchiveDocument, "table": CountOpening},
    "time": {"time": time_tables.TimeReport, "time-from-benchmark": measured.BenchmarkReport},
    "tree": {"tree": tree.TreeDocument, "tree-leaves": tree.LeavesDocument},
}
"""The documents of every command, whose name is empty for the main one, by the schema's name."""

_TITLES: Final = {
    "schema": "dsocr-analyze report (static_compute.json)",
    "advise": "dsocr-analyze advise --format json",
    "archive": "dsocr-analyze archive --format json",
    "plan": "dsocr-analyze plan --format json",
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
        "schema.json" if kind == "schema" else f"schema-{kind}.json": _schema_of(
            each, _TITLES[kind]
        )
        for kinds in DOCUMENTS.values()
        for kind, each in kinds.items()
    }


_ATTRIBUTE: Final = re.compile(r"^(\w+): (.+?)(?=^\w|\Z)", re.MULTILINE | re.DOTALL)


def _schema_of(kind: type[msgspec.Struct], title: str) -> dict[str, Any]:
    """A document's schema, described by its types' docstrings."""
    schema = msgspec.json.schema(kind)
    found: dict[str, type[msgspec.Struct]] = {}
    _structs_in(kind, found)
    for name, definition in schema["$defs"].items():
        descriptions: dict[str, str] = {}
        for base in reversed(found[name].__mro__):  # its own docstring is the last
            text, _, attributes = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
            definition["description"] = " ".join(text.split())
            for field, about in _ATTRIBUTE.findall(inspect.cleandoc("\n" + attributes)):
                descriptions[field] = " ".join(about.split())
        definition["properties"] = {
            field.encode_name: {
                "description": descriptions[field.name],
                **definition["properties"][field.encode_name],
            }
            for field in msgspec.structs.fields(found[name])
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **schema,
    }


def _structs_in(hint: Any, found: dict[str, type[msgspec.Struct]]) -> None:
    """Adds all structs in an annotation, by name."""
    if not isinstance(hint, type) or not issubclass(hint, msgspec.Struct):
        for part in get_args(hint):
            _structs_in(part, found)
    elif hint.__name__ not in found:
        found[hint.__name__] = hint
        for part in get_type_hints(hint).values():
            _structs_in(part, found)


def main() -> None:
    """Writes the schemas."""
    for name, schema in schemas().items():
        (REPORT / name).write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
