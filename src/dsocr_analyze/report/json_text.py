"""Typed documents as JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from dsocr_analyze.escaping import as_json

__all__ = ["dump_json"]

_PRETTY_DEPTH = 4
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
