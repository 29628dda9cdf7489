#!/usr/bin/env python3
"""Writes the schemas again, from the types: of the report, and of what `check --json` writes."""

from __future__ import annotations

import json
from pathlib import Path

from dsocr_analyze.gate.schema import check_schema
from dsocr_analyze.report.schema import report_schema

SOURCE = Path(__file__).resolve().parent.parent / "src/dsocr_analyze"
SCHEMAS = {"report/schema.json": report_schema, "gate/schema.json": check_schema}


def main() -> None:
    """Writes the schemas."""
    for name, schema in SCHEMAS.items():
        (SOURCE / name).write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
