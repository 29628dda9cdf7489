#!/usr/bin/env python3
"""Writes src/dsocr_analyze/report/schema*.json again, from the types of the documents."""

from __future__ import annotations

import json
from pathlib import Path

from dsocr_analyze.cli.documents import schemas

REPORT = Path(__file__).resolve().parent.parent / "src/dsocr_analyze/report"


def main() -> None:
    """Writes the schemas."""
    for name, schema in schemas().items():
        (REPORT / name).write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
