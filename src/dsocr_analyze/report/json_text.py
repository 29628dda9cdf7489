"""Typed documents as JSON, and their JSON Schemas."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any, Final, get_args, get_type_hints

import msgspec

from dsocr_analyze.escaping import as_json

__all__ = ["dump_json", "schema_of"]

_ATTRIBUTE: Final = re.compile(r"^(\w+): (.+?)(?=^\w|\Z)", re.MULTILINE | re.DOTALL)

_PRETTY_DEPTH: Final = 4
"""Depth down to which values get lines of their own; a module's row stays on one line."""


_encoded = json.JSONEncoder(allow_nan=False).encode
"""Shared by all values: `json.dumps` would build an encoder for each."""


def dump_json(value: object) -> str:
    """JSON text of a typed document, indented down to its rows, with a trailing newline."""
    return as_json(_dump(msgspec.to_builtins(value), 0)) + "\n"


def _dump(value: Any, depth: int) -> str:
    if isinstance(value, dict) and value:
        if depth == _PRETTY_DEPTH:  # a module's row: thousands of them, integers and names
            return msgspec.json.encode(value).decode()
        opening, closing = "{}"
        lines = [f"{_encoded(key)}: {_dump(item, depth + 1)}" for key, item in value.items()]
    elif isinstance(value, list | tuple) and any(isinstance(item, dict | str) for item in value):
        opening, closing = "[]"
        lines = [_encoded(item) for item in value]
    else:
        return _encoded(value)
    indent = "\n" + "  " * depth
    return f"{opening}{indent}  " + f",{indent}  ".join(lines) + f"{indent}{closing}"


# --- schemas -----------------------------------------------------------------------------------


def schema_of(kind: type[msgspec.Struct], title: str) -> dict[str, Any]:
    """The schema of a document, with descriptions from the types' docstrings.

    Args:
        kind: The document's type.
        title: The schema's title.
    """
    schema = msgspec.json.schema(kind)
    structs: dict[str, type[msgspec.Struct]] = {}
    _structs_in(kind, structs)
    for name, definition in schema["$defs"].items():
        _describe(definition, structs[name])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **schema,
    }


def _structs_in(hint: Any, found: dict[str, type[msgspec.Struct]]) -> None:
    """Add all structs within a type's annotation to those found, by name."""
    if not isinstance(hint, type) or not issubclass(hint, msgspec.Struct):
        for part in get_args(hint):
            _structs_in(part, found)
    elif hint.__name__ not in found:
        found[hint.__name__] = hint
        for part in get_type_hints(hint).values():
            _structs_in(part, found)


def _describe(definition: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    """Add a struct's docstring to its definition: its text, and a description of each key."""
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
    """The text of a Google docstring, and the description of each attribute, each on one line."""
    text, _, attributes = inspect.cleandoc(struct.__doc__ or "").partition("Attributes:\n")
    found = _ATTRIBUTE.findall(inspect.cleandoc("\n" + attributes))
    return " ".join(text.split()), {name: " ".join(about.split()) for name, about in found}
