"""The JSON Schema of the report, generated from its types."""

from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec

from dsocr_analyze.report import document, time_entry

__all__ = ["describe", "report_schema"]

_ATTRIBUTE = re.compile(r"^(\w+): (.+?)(?=^\w|\Z)", re.MULTILINE | re.DOTALL)


def report_schema() -> dict[str, Any]:
    """The schema of `static_compute.json`, described by the docstrings of the types."""
    schema = msgspec.json.schema(document.Report)
    for name, definition in schema["$defs"].items():
        room = time_entry if name in time_entry.__all__ else document
        describe(definition, getattr(room, name))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dsocr-analyze report (static_compute.json)",
        **schema,
    }


def describe(definition: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    """Puts a struct's docstring into its definition: the text, and a description for every key."""
    definition["description"] = _parts(struct)[0]
    descriptions: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        descriptions |= _parts(base)[1]
    for field in msgspec.structs.fields(struct):
        key = definition["properties"][field.encode_name]
        definition["properties"][field.encode_name] = {
            "description": descriptions[field.name],
            **key,
        }


def _parts(struct: type) -> tuple[str, dict[str, str]]:
    """The text of a Google docstring, and what it says of each attribute, each on one line."""
    text, _, attributes = inspect.cleandoc(struct.__doc__ or "").partition("Attributes:\n")
    found = _ATTRIBUTE.findall(inspect.cleandoc("\n" + attributes))
    return " ".join(text.split()), {name: " ".join(about.split()) for name, about in found}
