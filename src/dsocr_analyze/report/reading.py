"""Reads saved reports of this schema version and the previous one.

Version 1 has the batch's work under `page`, and a module's own work only where it differs.
"""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypedDict

import msgspec

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.input_files import DOCUMENT_BYTES, read_bytes
from dsocr_analyze.report.document import Batch, PageShare, Report, Stage, Total
from dsocr_analyze.report.opening import SCHEMA_VERSION

LARGEST_NUMBER: Final = 10**30
"""Above any figure that a workload can reach."""

_Keys: TypeAlias = Mapping[tuple[str, ...], Sequence[str]]
"""Keys by path, in which * stands for every key."""

_READABLE_VERSIONS: Final = ("1", SCHEMA_VERSION)

_LATER_KEYS: Final[_Keys] = {
    ("stages", "*"): ("experts_touched", "bytes_read_expected", "operator_bytes"),
}
"""Keys that early reports of either version lack."""

_KEYS_OF_VERSION_2: Final[_Keys] = {
    ("metadata",): ("kernels_of",),
    ("metadata", "model"): ("architecture", "class"),
    ("stages", "*", "by_module", "*"): ("class", "calls", "params"),
    ("memory",): ("inputs_bytes", "peak_module"),
    ("agreement", "peak_activation_bytes"): ("agrees",),
}
"""Keys that version 1 may lack."""


def load_report(path: Path) -> Report:
    """A saved `static_compute.json`; ConfigError if it is none of a readable version."""
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
    if version not in _READABLE_VERSIONS:
        raise ValueError(
            f"has schema_version {reprlib.repr(version)}; give a report with schema_version"
            f" {' or '.join(map(repr, _READABLE_VERSIONS))}"
        )
    _check_sizes(parsed)
    _complete(parsed, _LATER_KEYS)
    try:
        return _upgraded(parsed) if version == "1" else msgspec.convert(parsed, Report)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"is not a report of schema_version {version!r}: {error}") from error


def _check_sizes(value: object) -> None:
    """Raises ValueError for numbers that could overflow a float later."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_sizes(item)
    elif isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
        raise ValueError(f"contains {reprlib.repr(value)}; no figure is above {LARGEST_NUMBER:.0e}")


def _complete(parsed: object, later: _Keys) -> None:
    """Adds lacking keys, as unknown."""
    for path, keys in later.items():
        for each in _objects(parsed, *path):
            each.update({key: None for key in keys if key not in each})


def _objects(value: Any, *path: str) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and not path:
        yield value
    elif isinstance(value, dict):
        for key in value if path[0] == "*" else path[:1]:
            yield from _objects(value.get(key), *path[1:])


# --- version 1: what differs from the structs of this version ------------------------------------


class _Total1(Total, frozen=True, kw_only=True):
    """`total`, whose `page` is the whole batch."""

    batch: None = None  # type: ignore[assignment]  # it is called page
    page: Batch  # type: ignore[assignment]  # a page's share is not written


class _Stages1(TypedDict):
    sam: Stage
    clip: Stage
    projector: Stage
    prefill: Stage
    decode: Stage


class _Report1(Report, frozen=True, kw_only=True):
    schema_version: Literal["1"]  # type: ignore[assignment]  # the other one
    total: _Total1
    stages: _Stages1  # type: ignore[assignment]  # exactly these five
    time: tuple[()] = ()


def _upgraded(parsed: object) -> Report:
    """The report in this version; ValueError if its parts contradict."""
    _complete(parsed, _KEYS_OF_VERSION_2)
    for agreement in _objects(parsed, "agreement"):
        agreement["batch"] = agreement.pop("page", None)
    for page in _objects(parsed, "total", "page"):
        page["max_new_tokens"] = page.pop("new_tokens", None)
    for row in _objects(parsed, "stages", "*", "by_module", "*"):
        row.setdefault("own", {**row})
    report = msgspec.convert(parsed, _Report1)
    batch, model = report.total.page, report.metadata.model
    share = PageShare.of(batch, report.workload.batch_size)
    found: Mapping[str, Any] = {**report.stages}
    stages = {}
    for name in _Stages1.__annotations__:
        # Version 1 named the model itself after its class.
        rows = found[name].by_module.items()
        by_module = {"" if path == model.class_name else path: row for path, row in rows}
        stages[name] = msgspec.structs.replace(found[name], by_module=by_module)
    later = {
        "schema_version": SCHEMA_VERSION,
        "total": Total(**msgspec.structs.asdict(report.total) | {"batch": batch, "page": share}),
        "stages": stages,
    }
    return Report(**msgspec.structs.asdict(report) | later)
