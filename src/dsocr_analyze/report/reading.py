"""Reads saved reports and measurements of this schema version."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.input_files import DOCUMENT_BYTES, exists, read_bytes
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.opening import SCHEMA_VERSION

if TYPE_CHECKING:
    from dsocr_analyze.report.measured import Measurement

LARGEST_NUMBER: Final = 10**30
"""Above any figure that a workload can reach."""

_Document = TypeVar("_Document")

_LATER_KEYS: Final = ("experts_touched", "bytes_read_expected", "operator_bytes", "operator_calls")
"""Keys that stages of early reports lack."""


def load_report(path: Path) -> Report:
    """A saved `static_compute.json`; ConfigError if it is none of this version."""
    return _loaded(path, "report", "dsocr-analyze writes it when it counts the page anew", _report)


def load_measurement(path: Path) -> Measurement:
    """What `measure` wrote as JSON; ConfigError if it is not, or was altered."""
    written = "`dsocr-analyze measure` writes it as JSON"
    if not exists(path):
        raise ConfigError(f"there is no measurement {str(path)!r}; {written}")
    return _loaded(path, "measurement", written, _measurement)


def _loaded(path: Path, kind: str, written: str, made: Callable[[Any], _Document]) -> _Document:
    """A document that is `written` somehow, `made` from parsed JSON; or ConfigError."""
    name = f"{kind} {str(path)!r}"
    try:
        data = read_bytes(path, DOCUMENT_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {name}: {reason}") from error
    try:
        parsed = _parsed(data, kind, written)
        try:
            return made(parsed)
        except (msgspec.ValidationError, ValueError) as error:
            raise ValueError(
                f"is not a {kind} of schema_version {SCHEMA_VERSION!r}: {error}"
            ) from error
    except ValueError as error:
        raise ConfigError(f"{name} {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{name} is nested too deeply") from error


def _parsed(data: bytes, kind: str, written: str) -> Any:
    """JSON of this schema version; errors lack the file's name."""
    try:
        parsed = msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"is not JSON: {error}") from error
    version = parsed.get("schema_version") if isinstance(parsed, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"has schema_version {reprlib.repr(version)}; give a {kind} with schema_version"
            f" {SCHEMA_VERSION!r}, as {written}"
        )
    _check_sizes(parsed)
    return parsed


def _report(parsed: Any) -> Report:
    if "command" in parsed:
        raise ValueError(f"it is of the command {reprlib.repr(parsed['command'])}")
    _complete(parsed)
    return msgspec.convert(parsed, Report)


def _measurement(parsed: Any) -> Measurement:
    from dsocr_analyze.report.measured import Measurement  # with numpy, which reports do without

    found = msgspec.convert(parsed, Measurement)
    if found.command != "measure":
        raise ValueError(f"it is of the command {reprlib.repr(found.command)}")
    others = (found.prefill, found.page, found.reference, found.preprocessing)
    for each in (*found.stages.values(), *filter(None, others)):
        samples = each.samples
        if not (samples and min(samples) > 0 and each == each.of(samples, each.predicted)):
            raise ValueError(f"seconds {each.fastest!r} do not follow from their samples")
    peak = found.peak
    if peak.measured != peak.predicted + peak.besides:
        raise ValueError(f"peak.measured {peak.measured} does not follow from the rest of 'peak'")
    return found


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
