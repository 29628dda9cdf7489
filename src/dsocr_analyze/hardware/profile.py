"""Device profiles, read from TOML and written: fitted coefficients per kernel kind and data type.

A shipped profile is `profiles/<name>.toml`. A user's has the same format, plus `[gpu]` if the GPU
is not in the catalogue, and falls back to a shipped one of its GPU. A kind without coefficients is
extrapolated: it uses those of the GPU named by `like`, with this GPU's own peaks.

A kind states `held_out_median` and `held_out_p90`, measured on sizes that the fit did not see, or
`derived` if its coefficients were not fitted; its errors are then assumed.

A user's file is checked entry by entry; tests check the shipped ones in the same way.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.coefficients import (
    COEFFICIENTS,
    Coefficients,
    Fitted,
    coefficients_of,
)
from dsocr_analyze.hardware.devices import Gpu, catalogue_name, gpu_catalogue
from dsocr_analyze.hardware.timed_device import EXTRAPOLATED_BAND, Device, MeasuredHost
from dsocr_analyze.input_files import SETTINGS_BYTES, read_bytes

if TYPE_CHECKING:
    from dsocr_analyze.hardware.cpu_kernels import CpuKernels
    from dsocr_analyze.hardware.kernel_times.fitting import FitErrors
    from dsocr_analyze.toml_table import Table

__all__ = [
    "all_profiles",
    "check_gpu",
    "check_kinds",
    "cpu_profile_text",
    "device",
    "gpu_text",
    "host_text",
    "kind_text",
    "profile_from_file",
    "top_text",
]


_DTYPES: Final = ("bfloat16", "float16", "float8")
_PRODUCT_DTYPES: Final = (*_DTYPES, "float32")
"""Types of products; other kinds in float32 are priced as movement."""
_DERIVED_ERROR: Final = (0.15, 0.4)
"""Assumed median and 90th percentile of the error for kinds that were not fitted."""
_ERRORS: Final = ("held_out_median", "held_out_p90")
_COUNTS: Final = ("held_out_rows", "held_out_groups", "training_rows")
_STATED: Final = ("framework", "derived", "training_rows", "training_median", "held_out_rows",
                  "held_out_groups", "held_out_median", "held_out_p90", "left_out_median",
                  "left_out_p90")  # fmt: skip
_STATED_OF_CPU: Final = ("training_rows", "held_out_rows", *_ERRORS)
_TOP: Final = ("name", "source", "licence", "system", "gpu", "host", "cpu", "kernels",
               *COEFFICIENTS)  # fmt: skip
_OF_GPU: Final = (
    "title", "tensor_tflops", "bandwidth_gb_s", "memory_gb", "source", "sms", "l2_mb",
)  # fmt: skip
"""Keys of every GPU's table."""


def device(name: str, *, profiles: Iterable[Path] = ()) -> Device:
    """The GPU with this name (any case), alias, or name that torch reports.

    `profiles` are files with the user's own.

    Raises:
        DeviceError: There is no such GPU, or a file is wrong.
    """
    known = all_profiles(profiles)
    return known[catalogue_name(name, known)]


def all_profiles(files: Iterable[Path] = ()) -> dict[str, Device]:
    """All GPUs by name; the profiles in the user's `files` add to or replace shipped ones.

    Raises:
        DeviceError: A file cannot be read or is not a profile.
    """
    profiles = dict(zip(gpu_catalogue(), map(_shipped, gpu_catalogue()), strict=True))
    for file in files:
        profile = profile_from_file(file, profiles)
        profiles[profile.gpu.name] = profile
    return profiles


@cache
def _shipped(name: str) -> Device:
    catalogue = gpu_catalogue()
    gpu, file = catalogue[name], resources.files(__package__).joinpath(f"profiles/{name}.toml")
    table = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    base = _shipped(catalogue_name(gpu.like, catalogue)) if gpu.like else None
    return _profile(gpu, table, _own_kinds(table, name), base)


def _own_kinds(table: Table, gpu: str) -> dict[tuple[str, str], Fitted]:
    found = {}
    for kind in COEFFICIENTS:
        for dtype, entry in table.get(kind, {}).items():
            assumed = "held_out_median" not in entry
            median, p90 = _DERIVED_ERROR
            if not assumed:
                median, p90 = float(entry["held_out_median"]), float(entry["held_out_p90"])
            found[kind, dtype] = Fitted(
                coefficients_of(kind, dtype)(**entry["coefficients"]), median, p90,
                entry.get("held_out_rows", 0), entry.get("training_rows", 0), gpu,
                entry.get("framework", ""), entry.get("held_out_groups", 0),
                derived=entry.get("derived", ""), assumed=assumed,
            )  # fmt: skip
    return found


def _profile(
    gpu: Gpu,
    table: Table,
    own: Mapping[tuple[str, str], Fitted],
    base: Device | None,
    host: MeasuredHost | None = None,
) -> Device:
    """A GPU with its own kinds, and the others as on the GPU that it is like."""
    kinds, others = {}, base.kinds if base else {}
    for kind in COEFFICIENTS:
        for dtype in sorted(_PRODUCT_DTYPES):
            key = kind, dtype
            if key in own:
                kinds[key] = own[key]
            elif key in others and (dtype not in ("float8", "float32") or gpu.tflops(dtype)):
                other = others[key]
                wider = 1.0 if other.extrapolated else EXTRAPOLATED_BAND
                kinds[key] = replace(
                    other, median=wider * other.median, p90=wider * other.p90, extrapolated=True
                )
    source, licence = table.get("source", ""), table.get("licence", "")
    if base and not own:
        source, licence = f"extrapolated from {base.gpu.name}: {base.source}", base.licence
    return Device(gpu, source, licence, kinds, host)


# --- a user's file ---------------------------------------------------------------------------


def profile_from_file(file: Path, known: Mapping[str, Device] | None = None) -> Device:
    """Read a user's profile, a TOML file as in `profiles/`, with `name`.

    `[gpu]` has the keys of `devices.toml` and may be left out for a GPU of the catalogue; its
    `like` may name one of `known`, by default the shipped ones.

    Raises:
        DeviceError: It cannot be read, or something in it is missing, unknown or impossible.
    """
    known = all_profiles() if known is None else known
    try:
        table = tomllib.loads(read_bytes(file, SETTINGS_BYTES).decode())
    except OSError as error:
        raise DeviceError(f"cannot read {str(file)!r}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        raise DeviceError(f"{str(file)!r} is not a device profile: {error}") from error
    _check_keys(table, _TOP, str(file))
    name: Any = table.get("name")
    is_name = isinstance(name, str) and bool(name) and name == name.lower()
    _check(is_name, f"{file}: name", "a lower-case string", name)
    for key in ("source", "licence", "system"):
        _check_text(table, key, str(file))
    if "gpu" not in table and name not in known:
        raise DeviceError(f"{file}: {name} is not in the catalogue, so give a table [gpu]")
    if "gpu" in table:
        check_gpu(table["gpu"], f"{file}: gpu")
        gpu = Gpu(name=name, **table["gpu"])
    else:
        gpu = known[name].gpu
    if "cpu" in table:
        kernels = _cpu_kernels(table, str(file))
        return Device(gpu, str(table.get("source", file)), "", {}, cpu=kernels)
    check_kinds(table, str(file))
    kinds = _own_kinds(table, name)
    host = None
    if (entry := table.get("host")) is not None:
        _check_record(entry, MeasuredHost, f"{file}: host", None)
        host = MeasuredHost(**dict(zip(entry, map(float, entry.values()), strict=True)))
    if name in known and "gpu" not in table:
        kinds = {**known[name].kinds, **kinds}
    base = known[catalogue_name(gpu.like, known)] if gpu.like else None
    if not kinds and base is None:
        raise DeviceError(f"{file}: give coefficients of {', '.join(COEFFICIENTS)}, or gpu.like")
    return _profile(gpu, {"source": str(file), **table}, kinds, base, host)


def check_gpu(entry: Any, where: str) -> None:
    """Raise DeviceError, which names `where`, for what is wrong in the table of a GPU."""
    _check_record(entry, Gpu, where, _OF_GPU)
    if entry.get("tensor_dtype", "bfloat16") not in ("bfloat16", "float16"):
        raise DeviceError(f"{where}.tensor_dtype must be bfloat16 or float16")


def check_kinds(table: Table, where: str) -> None:
    """Raise DeviceError, which names `where`, for what is wrong in a profile's kernel kinds."""
    for kind in COEFFICIENTS:
        entries = table.get(kind, {})
        _check(isinstance(entries, dict), f"{where}: {kind}", "a table of data types", entries)
        for dtype, entry in entries.items():
            types = _PRODUCT_DTYPES if kind == "gemm" else _DTYPES
            if dtype not in types:
                raise DeviceError(f"{where}: unknown type {kind}.{dtype}; use {', '.join(types)}")
            _check_kind(entry, coefficients_of(kind, dtype), f"{where}: {kind}.{dtype}")


def _check_kind(entry: Any, record: type[Coefficients], where: str) -> None:
    types = {field.name: str(field.type) for field in fields(record)}
    for name, value in _given_coefficients(entry, _STATED, types, where, types).items():
        right, is_right = "above 0", _is_positive(value)
        if types[name] == "int":
            right, is_right = "a whole number", type(value) is int and value >= 0
        _check(is_right, f"{where}.coefficients.{name}", right, value)
    derived = entry.get("derived")
    is_right = derived is None or (isinstance(derived, str) and bool(derived))
    _check(is_right, f"{where}.derived", "a string naming the origin", derived)
    missing = [name for name in _ERRORS if name not in entry]
    if missing and (derived is None or len(missing) < len(_ERRORS)):
        raise DeviceError(
            f"{where} lacks {', '.join(missing)}: errors measured on sizes held out of the fit; for"
            ' coefficients that were not fitted, name their origin instead: derived = "..."'
        )
    _check_each(entry, () if missing else _ERRORS, where, "a number above 0", _is_positive)
    _check_text(entry, "framework", where)
    _check_each(dict.fromkeys(_COUNTS, 0) | entry, _COUNTS, where, "a whole number", _is_count)


def _cpu_kernels(table: Table, where: str) -> CpuKernels:
    """The kernel families in a CPU's profile; raises DeviceError for wrong entries."""
    from dsocr_analyze.hardware.cpu_kernels import CpuKernels, names_of

    cpu, kernels, families = table["cpu"], table.get("kernels", {}), {}
    if not isinstance(cpu, dict):
        raise DeviceError(f"{where}: cpu must be a table")
    _check_keys(cpu, ("threads", "operator_us"), f"{where}: cpu")
    for key, types in (("threads", int), ("operator_us", int | float)):
        is_right = _is_positive(cpu.get(key)) and isinstance(cpu[key], types)
        _check(is_right, f"{where}: cpu.{key}", "a number above 0", cpu.get(key))
    if not isinstance(kernels, dict) or not all(isinstance(e, dict) for e in kernels.values()):
        raise DeviceError(f"{where}: kernels must be a table of families by data type")
    for family, dtype, entry in ((f, d, e) for f, each in kernels.items() for d, e in each.items()):
        place = f"{where}: kernels.{family}.{dtype}"
        given = _given_coefficients(entry, _STATED_OF_CPU, names_of(family), place)
        _check_each(given, given, f"{place}.coefficients", "0 or above", _is_amount)
        _check_each(entry, _STATED_OF_CPU, place, "a number", _is_amount)
        _check_each(entry, ("held_out_rows", "training_rows"), place, "a whole number", _is_count)
        families[family, dtype] = Fitted(
            {name: float(value) for name, value in given.items()},
            float(entry["held_out_median"]), float(entry["held_out_p90"]),
            entry["held_out_rows"], entry["training_rows"],
        )  # fmt: skip
    if not any(family == "product" for family, _ in families):
        raise DeviceError(f"{where}: kernels.product is missing; calibrate again")
    return CpuKernels(cpu["threads"], float(cpu["operator_us"]), families)


def _given_coefficients(
    entry: Any, stated: tuple[str, ...], known: Iterable[str], where: str,
    needed: Iterable[str] = (),
) -> Table:  # fmt: skip
    """The coefficients that an entry of a profile gives, whatever their values are."""
    if not isinstance(entry, dict) or not isinstance(entry.get("coefficients"), dict):
        raise DeviceError(f"{where} must be a table with a table of coefficients")
    _check_keys(entry, ("coefficients", *stated), where)
    given: Table = entry["coefficients"]
    _check_keys(given, known, f"{where}.coefficients", needed)
    return given


def _check_record(
    entry: Any, record: type[Gpu | MeasuredHost], where: str, needed: Iterable[str] | None
) -> None:
    """Check a table with the fields of a record, of which all are needed by default."""
    types = {field.name: str(field.type) for field in fields(record) if field.name != "name"}
    if not isinstance(entry, dict):
        raise DeviceError(f"{where} must be a table")
    _check_keys(entry, types, where, types if needed is None else needed)
    for key, value in entry.items():
        right, is_right = "a string", isinstance(value, str)
        if types[key] != "str":
            right = "a positive number"
            is_right = _is_positive(value) and (types[key] != "int" or isinstance(value, int))
        _check(is_right, f"{where}.{key}", right, value)


def _check_keys(table: Table, known: Iterable[str], where: str, needed: Iterable[str] = ()) -> None:
    """Raises DeviceError for unknown keys and for missing ones."""
    if unknown := [name for name in table if name not in set(known)]:
        raise DeviceError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(known)}")
    if missing := [name for name in needed if name not in table]:
        raise DeviceError(f"{where} lacks {', '.join(missing)}")


def _check_text(entry: Table, key: str, where: str) -> None:
    value = entry.get(key, "")
    _check(isinstance(value, str), f"{where}: {key}", "a string", value)


def _check_each(
    table: Table, keys: Iterable[str], where: str, right: str, is_right: Callable[[object], bool]
) -> None:
    for key in keys:
        _check(is_right(table.get(key)), f"{where}.{key}", right, table.get(key))


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e30


def _is_amount(value: object) -> bool:
    return value == 0 or _is_positive(value)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1e30


def _check(is_right: bool, where: str, right: str, value: object) -> None:
    if not is_right:
        raise DeviceError(f"{where} must be {right}, not {value!r}")


# --- writing ---------------------------------------------------------------------------------


_LEAST_ERROR: Final = 1e-4
"""Floor for stated errors: 0 would look as if nothing had been held out."""


def top_text(**entries: str) -> str:
    """The keys before the first table: `name`, `source`, `licence`."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in entries.items())


def gpu_text(gpu: Gpu) -> str:
    """The `[gpu]` table of a GPU that is not in the catalogue."""
    defaults = {field.name: field.default for field in fields(gpu)}
    values: Mapping[str, str | float] = asdict(gpu)
    lines = [
        f"{key} = {json.dumps(value) if isinstance(value, str) else _number(value)}"
        for key, value in values.items()
        if key != "name" and value != defaults[key]
    ]
    return "\n".join(["[gpu]", *lines]) + "\n"


def host_text(host: MeasuredHost) -> str:
    """The `[host]` table of measured host figures."""
    values: Mapping[str, float] = asdict(host)
    return "".join(["[host]\n", *(f"{key} = {_number(each)}\n" for key, each in values.items())])


def kind_text(
    kind: str,
    dtype: str,
    coefficients: Coefficients,
    errors: FitErrors,
    framework: str,
    left_out: tuple[float, float] | None = None,
) -> str:
    """The tables of a kernel kind in a data type, whose kernels `framework` launched.

    `left_out` is for experts: median and 90th percentile of the error on each training group under
    a fit to the others.
    """
    median, ninety = (max(_LEAST_ERROR, e) for e in (errors.held_out_median, errors.held_out_p90))
    lines = [
        f"[{kind}.{dtype}]", f"framework = {json.dumps(framework)}",
        f"training_rows = {errors.training_rows}",
        f"training_median = {errors.training_median:.4f}",
        f"held_out_rows = {errors.held_out_rows}",
        f"held_out_groups = {errors.held_out_groups}",
        f"held_out_median = {median:.4f}", f"held_out_p90 = {ninety:.4f}",
        *([] if left_out is None
          else [f"left_out_median = {left_out[0]:.4f}", f"left_out_p90 = {left_out[1]:.4f}"]),
        "", f"[{kind}.{dtype}.coefficients]",
        *(f"{name} = {_number(value)}"
          for name, value in asdict(coefficients).items()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def cpu_profile_text(device: Device) -> str:
    """The whole profile of a CPU."""
    cpu = device.cpu
    assert cpu is not None, "it is a CPU's"
    tables = [
        top_text(name=device.gpu.name, source=device.source),
        gpu_text(device.gpu),
        f"[cpu]\nthreads = {cpu.threads}\noperator_us = {_number(cpu.operator_us)}\n",
    ]
    for (family, dtype), entry in cpu.families.items():
        coefficients = cast("Mapping[str, float]", entry.coefficients)
        lines = [
            f"[kernels.{family}.{dtype}]",
            f"training_rows = {entry.training_rows}",
            f"held_out_rows = {entry.held_out_rows}",
            f"held_out_median = {_number(entry.median)}",
            f"held_out_p90 = {_number(entry.p90)}",
            "",
            f"[kernels.{family}.{dtype}.coefficients]",
            *(f'"{name}" = {_number(value)}' for name, value in coefficients.items()),
        ]
        tables.append("\n".join(lines) + "\n")
    return "\n".join(tables)


def _number(value: float) -> str:
    return f"{value:.6g}"
