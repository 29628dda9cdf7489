"""Reads saved reports of this schema version and the previous one."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any, Final

import msgspec

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.input_files import DOCUMENT_BYTES, read_bytes
from dsocr_analyze.report import version1
from dsocr_analyze.report.document import SCHEMA_VERSION, Report

__all__ = ["LARGEST_NUMBER", "load_report"]

_READABLE_VERSIONS: Final = (version1.SCHEMA_VERSION, SCHEMA_VERSION)

_LATER_STAGE_KEYS: Final = ("experts_touched", "bytes_read_expected", "operator_bytes")

LARGEST_NUMBER: Final = 10**30
"""Above any figure that a workload can reach."""


def load_report(path: Path) -> Report:
    """A saved `static_compute.json`.

    Raises:
        ConfigError: The file cannot be read, or is not a report of a readable version.
    """
    name = repr(str(path))
    try:
        data = read_bytes(path, DOCUMENT_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read report {name}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"cannot read report {name}: {error}") from error
    try:
        return _decoded(data)
    except ValueError as error:
        raise ConfigError(f"report {name} {error}") from error
    except RecursionError as error:
        raise ConfigError(f"report {name} is nested too deeply") from error


def _decoded(data: bytes) -> Report:
    """The report in a file's content; error messages are predicates without the file's name."""
    try:
        parsed = msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"is not JSON: {error}") from error
    version = parsed.get("schema_version") if isinstance(parsed, dict) else None
    if version not in _READABLE_VERSIONS:
        raise ValueError(
            f"has schema_version {reprlib.repr(version)}; give a report with schema_version"
            f" {' or '.join(map(repr, _READABLE_VERSIONS))}"
        )
    _check_sizes(parsed)
    try:
        if version == version1.SCHEMA_VERSION:
            return version1.upgraded(msgspec.convert(parsed, version1.Report1))
        _complete(parsed)
        return msgspec.convert(parsed, Report)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"is not a report of schema_version {version!r}: {error}") from error


def _complete(parsed: dict[str, Any]) -> None:
    """Add the keys that early reports of this version lack, with value null."""
    stages = parsed.get("stages")
    for stage in stages.values() if isinstance(stages, dict) else ():
        if isinstance(stage, dict):
            for key in _LATER_STAGE_KEYS:
                stage.setdefault(key, None)


def _check_sizes(value: object) -> None:
    """Raise ValueError for numbers beyond any real figure, which could overflow a float later."""
    if isinstance(value, dict):
        for item in value.values():
            _check_sizes(item)
    elif isinstance(value, list):
        for item in value:
            _check_sizes(item)
    elif isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
        raise ValueError(f"contains {reprlib.repr(value)}; no figure is above {LARGEST_NUMBER:.0e}")
