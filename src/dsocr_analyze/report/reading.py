"""Reads saved reports of this schema version."""

import reprlib
from pathlib import Path
from typing import Any, Final

import msgspec

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.input_files import DOCUMENT_BYTES, read_bytes
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.opening import SCHEMA_VERSION

LARGEST_NUMBER: Final = 10**30
"""Above any figure that a workload can reach."""

_LATER_KEYS: Final = ("experts_touched", "bytes_read_expected", "operator_bytes")
"""Keys that stages of early reports lack."""


def load_report(path: Path) -> Report:
    """A saved `static_compute.json`; ConfigError if it is none of this version."""
    name = repr(str(path))
    try:
        data = read_bytes(path, DOCUMENT_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read report {name}: {reason}") from error
    try:
        return _decoded(data)
    except ValueError as error:
        raise ConfigError(f"report {name} {error}") from error
    except RecursionError as error:
        raise ConfigError(f"report {name} is nested too deeply") from error


def _decoded(data: bytes) -> Report:
    """The report; errors lack the file's name."""
    try:
        parsed = msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"is not JSON: {error}") from error
    version = parsed.get("schema_version") if isinstance(parsed, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"has schema_version {reprlib.repr(version)}; give a report with schema_version"
            f" {SCHEMA_VERSION!r}, as dsocr-analyze writes it when it counts the page anew"
        )
    _check_sizes(parsed)
    _complete(parsed)
    try:
        return msgspec.convert(parsed, Report)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"is not a report of schema_version {version!r}: {error}") from error


def _check_sizes(value: object) -> None:
    """Raises ValueError for numbers that could overflow a float later."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_sizes(item)
    elif isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
        raise ValueError(f"contains {reprlib.repr(value)}; no figure is above {LARGEST_NUMBER:.0e}")


def _complete(parsed: Any) -> None:
    """Adds keys that stages of early reports lack, as unknown."""
    stages = parsed.get("stages")
    for stage in stages.values() if isinstance(stages, dict) else ():
        if isinstance(stage, dict):
            stage.update({key: None for key in _LATER_KEYS if key not in stage})
