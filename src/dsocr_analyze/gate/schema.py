"""The JSON Schema of `dsocr-analyze check --json`, generated from its types."""

from __future__ import annotations

from typing import Any

import msgspec

from dsocr_analyze.gate import document
from dsocr_analyze.report.schema import describe

__all__ = ["check_schema"]


def check_schema() -> dict[str, Any]:
    """The schema of a check, described by the docstrings of its types."""
    schema = msgspec.json.schema(document.Check)
    for name, definition in schema["$defs"].items():
        describe(definition, getattr(document, name))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dsocr-analyze check (check --json)",
        **schema,
    }
