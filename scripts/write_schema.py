#!/usr/bin/env python3
"""Writes src/dsocr_analyze/report/schema.json again, from the types of the report."""

from __future__ import annotations

import json
from pathlib import Path

from dsocr_analyze.report.schema import report_schema

SCHEMA = Path(__file__).resolve().parent.parent / "src/dsocr_analyze/report/schema.json"


def main() -> None:
    """Writes the schema."""
    SCHEMA.write_text(json.dumps(report_schema(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
