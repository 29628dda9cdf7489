"""Device profiles, read from TOML and written: fitted coefficients per kernel kind and data type.

A shipped profile is `profiles/<name>.toml`. A user's profile has the same format, plus a table
`[gpu]` if the GPU is not in the catalogue. A kind without its own coefficients is extrapolated: it
uses those of the GPU named by `like`, with this GPU's own peaks. A user's profile of a GPU with a
shipped one falls back to that for anything it leaves out. `[host]` has measurements of the machine
around the GPU.

A kind states `held_out_median` and `held_out_p90`, measured on sizes that the fit did not see, or
`derived` if its coefficients were not fitted; its errors are then assumed. Experts also state
`left_out_*`: the error on each training group under a fit to the others.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.cpu_kernels import CpuKernels, Family, names_of
from dsocr_analyze.hardware.devices import (
    Gpu,
    catalogue_name,
    check_keys,
    check_that,
    gpu_catalogue,
    gpu_from_entry,
    is_positive,
)
from dsocr_analyze.hardware.kernel_times.coefficients import (
    COEFFICIENTS,
    Coefficients,
    coefficients_of,
)
from dsocr_analyze.input_files import SETTINGS_BYTES, read_text

if TYPE_CHECKING:
    from dsocr_analyze.hardware.kernel_times.fitting import FitErrors
    from dsocr_analyze.toml_table import Table

__all__ = [
    "EXTRAPOLATED_BAND",
    "Fitted",
    "MeasuredHost",
    "Profile",
    "all_profiles",
    "cpu_profile_text",
    "gpu_text",
    "host_text",
    "kind_text",
    "profile_from_file",
    "top_text",
]


EXTRAPOLATED_BAND: Final = 2.0
"""Factor by which errors widen for a kind taken from another GPU."""
DTYPES: Final = ("bfloat16", "float16", "float8")
_PRODUCT_DTYPES: Final = (*DTYPES, "float32")
"""Types of products; other kinds in float32 are priced as movement."""
_DERIVED_ERROR: Final = (0.15, 0.4)
"""Assumed median and 90th percentile of the error for kinds that were not fitted."""
_STATED: Final = ("framework", "derived", "training_rows", "training_median", "held_out_rows",
                  "held_out_groups", "held_out_median", "held_out_p90", "left_out_median",
                  "left_out_p90")  # fmt: skip
_TOP: Final = ("name", "source", "licence", "system", "gpu", "host", "cpu", "kernels",
               *COEFFICIENTS)  # fmt: skip
_STATED_OF_CPU: Final = ("training_rows", "held_out_rows", "held_out_median", "held_out_p90")


@dataclass(frozen=True)
class Fitted:
    """Coefficients of a kernel kind in a data type.

    Attributes:
        coefficients: Coefficients of the formula.
        gpu: The GPU whose kernels were measured.
        framework: What launched them, with its version.
        median: Median relative error on the held-out groups.
        p90: 90th percentile of that error.
        held_out_rows: Rows behind these two errors; 0 if they are assumed.
        held_out_groups: Groups of those rows.
        training_rows: Rows used in the fit.
        extrapolated: Whether they are from another GPU, with a wider error.
        derived: What they were derived from if they were not fitted; empty if fitted.
        assumed: Whether the two errors are assumed, not measured.
    """

    coefficients: Coefficients
    gpu: str
    framework: str
    median: float
    p90: float
    held_out_rows: int
    held_out_groups: int
    training_rows: int
    extrapolated: bool = False
    derived: str = ""
    assumed: bool = False


@dataclass(frozen=True)
class MeasuredHost:
    """Measured overhead of the machine around a GPU.

    Attributes:
        launch_us: Microseconds per operator of uncompiled model code, including views and Python
            around it.
        sync_us: Microseconds per value that the host waits for.
        step_us: Microseconds between two decode steps of `generate`.
        graph_us: Microseconds per launch of a CUDA graph.
        link_gb_s: Rate of copies to the GPU from memory that is not pinned, GB/s.
    """

    launch_us: float
    sync_us: float
    step_us: float
    graph_us: float
    link_gb_s: float


@dataclass(frozen=True)
class Profile:
    """A GPU and how long its kernels take.

    Attributes:
        gpu: The GPU.
        source: Source of the figures.
        licence: Licence of the figures.
        fitted: Coefficients by (kind, data type), including those taken from another GPU.
        host: Measurements of the machine around it; None if there are none.
        cpu: Measured kernel families if the device is a CPU, else None; for a CPU, `gpu` holds the
            rates that it reached.
    """

    gpu: Gpu
    source: str
    licence: str
    fitted: Mapping[tuple[str, str], Fitted]
    host: MeasuredHost | None = None
    cpu: CpuKernels | None = None

    @property
    def extrapolated(self) -> bool:
        """Whether no kind was measured on this device."""
        return self.cpu is None and all(each.extrapolated for each in self.fitted.values())


def all_profiles(files: Iterable[Path] = ()) -> dict[str, Profile]:
    """Profiles of all GPUs by name; those in the user's `files` add to or replace shipped ones.

    Raises:
        DeviceError: A file cannot be read or is not a profile.
    """
    profiles = dict(_shipped())
    for file in files:
        profile = profile_from_file(file, profiles)
        profiles[profile.gpu.name] = profile
    return profiles


@cache
def _shipped() -> dict[str, Profile]:
    folder, catalogue = resources.files(__package__).joinpath("profiles"), gpu_catalogue()
    found: dict[str, Profile] = {}

    def complete(name: str) -> Profile:
        if name not in found:
            gpu, file = catalogue[name], folder.joinpath(f"{name}.toml")
            table = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
            kinds = _own_kinds(table, name, f"{name}.toml")
            if not gpu.like and not kinds:
                raise DeviceError(
                    f"devices.toml: {name} has no profile of its own, so name in `like` a GPU that"
                    " has one"
                )
            base = complete(catalogue_name(gpu.like, catalogue)) if gpu.like else None
            found[name] = _profile(gpu, table, kinds, base)
        return found[name]

    return {name: complete(name) for name in catalogue}


def _profile(
    gpu: Gpu,
    table: Table,
    kinds: Mapping[tuple[str, str], Fitted],
    base: Profile | None,
    host: MeasuredHost | None = None,
) -> Profile:
    every = dict(kinds)
    for key, fitted in base.fitted.items() if base else ():
        if key not in every and (key[1] not in ("float8", "float32") or gpu.tflops(key[1])):
            wider = 1.0 if fitted.extrapolated else EXTRAPOLATED_BAND
            every[key] = replace(
                fitted, median=wider * fitted.median, p90=wider * fitted.p90, extrapolated=True
            )
    ordered = sorted(every, key=lambda key: (list(COEFFICIENTS).index(key[0]), key[1]))
    source, licence = table.get("source", ""), table.get("licence", "")
    if base and not kinds:
        source, licence = f"extrapolated from {base.gpu.name}: {base.source}", base.licence
    return Profile(gpu, source, licence, {key: every[key] for key in ordered}, host)


def profile_from_file(file: Path, known: Mapping[str, Profile] | None = None) -> Profile:
    """Read a user's profile.

    Args:
        file: TOML as in `profiles/`, with `name`; `[gpu]` has the keys of `devices.toml` and may be
            left out for a GPU of the catalogue.
        known: Profiles that `like` may name; default: the shipped ones.

    Raises:
        DeviceError: It cannot be read, or something in it is missing, unknown or impossible.
    """
    known = _shipped() if known is None else known
    try:
        table = tomllib.loads(read_text(file, SETTINGS_BYTES))
    except OSError as error:
        raise DeviceError(f"cannot read {str(file)!r}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        raise DeviceError(f"{str(file)!r} is not a device profile: {error}") from error
    check_keys(table, _TOP, str(file))
    name: Any = table.get("name")
    is_name = isinstance(name, str) and bool(name) and name == name.lower()
    check_that(is_name, f"{file}: name", "a lower-case string", name)
    for key in ("source", "licence", "system"):
        _text(table, key, str(file))
    if "gpu" not in table and name not in known:
        raise DeviceError(f"{file}: {name} is not in the catalogue, so give a table [gpu]")
    entry = table.get("gpu")
    gpu = known[name].gpu if entry is None else gpu_from_entry(name, entry, f"{file}: gpu")
    if "cpu" in table:
        kernels = _cpu_kernels(table, str(file))
        return Profile(gpu, str(table.get("source", file)), "", {}, cpu=kernels)
    kinds = _own_kinds(table, name, str(file))
    host = _host(table, str(file))
    if name in known and "gpu" not in table:
        kinds = {**known[name].fitted, **kinds}
    base = known[catalogue_name(gpu.like, known)] if gpu.like else None
    if not kinds and base is None:
        raise DeviceError(f"{file}: give coefficients of {', '.join(COEFFICIENTS)}, or gpu.like")
    return _profile(gpu, {"source": str(file), **table}, kinds, base, host)


def _host(table: Table, where: str) -> MeasuredHost | None:
    entry = table.get("host")
    if entry is None:
        return None
    names = [field.name for field in fields(MeasuredHost)]
    if not isinstance(entry, dict):
        raise DeviceError(f"{where}: host must be a table")
    check_keys(entry, names, f"{where}: host", names)
    for name, value in entry.items():
        check_that(is_positive(value), f"{where}: host.{name}", "a positive number", value)
    return MeasuredHost(**{name: float(value) for name, value in entry.items()})


def _cpu_kernels(table: Table, where: str) -> CpuKernels:
    """The kernel families in a CPU's profile; raises DeviceError for wrong entries."""
    cpu = table["cpu"]
    if not isinstance(cpu, dict):
        raise DeviceError(f"{where}: cpu must be a table")
    check_keys(cpu, ("threads", "operator_us"), f"{where}: cpu")
    for key, whole in (("threads", True), ("operator_us", False)):
        value = cpu.get(key)
        is_right = is_positive(value) and (not whole or isinstance(value, int))
        check_that(is_right, f"{where}: cpu.{key}", "a number above 0", value)
    families = {}
    kernels = table.get("kernels", {})
    if not isinstance(kernels, dict) or not all(isinstance(e, dict) for e in kernels.values()):
        raise DeviceError(f"{where}: kernels must be a table of families by data type")
    for family, types in kernels.items():
        for dtype, entry in types.items():
            families[family, dtype] = _family(entry, family, f"{where}: kernels.{family}.{dtype}")
    if not any(family == "product" for family, _ in families):
        raise DeviceError(f"{where}: kernels.product is missing; calibrate again")
    return CpuKernels(cpu["threads"], float(cpu["operator_us"]), families)


def _family(entry: Any, family: str, where: str) -> Family:
    if not isinstance(entry, dict) or not isinstance(entry.get("coefficients"), dict):
        raise DeviceError(f"{where} must be a table with a table of coefficients")
    check_keys(entry, ("coefficients", *_STATED_OF_CPU), where)
    given = entry["coefficients"]
    check_keys(given, names_of(family), f"{where}.coefficients")
    for name, value in given.items():
        is_right = value == 0 or is_positive(value)
        check_that(is_right, f"{where}.coefficients.{name}", "0 or above", value)
    for name in _STATED_OF_CPU:
        value = entry.get(name)
        check_that(value == 0 or is_positive(value), f"{where}.{name}", "a number", value)
    return Family(
        {name: float(value) for name, value in given.items()},
        float(entry["held_out_median"]), float(entry["held_out_p90"]),
        _rows(entry, "held_out_rows", where), _rows(entry, "training_rows", where),
    )  # fmt: skip


def _own_kinds(table: Table, gpu: str, where: str) -> dict[tuple[str, str], Fitted]:
    found = {}
    for kind in COEFFICIENTS:
        entries = table.get(kind, {})
        check_that(isinstance(entries, dict), f"{where}: {kind}", "a table of data types", entries)
        for dtype, entry in entries.items():
            types = _PRODUCT_DTYPES if kind == "gemm" else DTYPES
            if dtype not in types:
                raise DeviceError(f"{where}: unknown type {kind}.{dtype}; use {', '.join(types)}")
            found[kind, dtype] = _fitted(entry, kind, dtype, gpu, where)
    return found


def _fitted(entry: Any, kind: str, dtype: str, gpu: str, where: str) -> Fitted:
    where = f"{where}: {kind}.{dtype}"
    if not isinstance(entry, dict) or not isinstance(entry.get("coefficients"), dict):
        raise DeviceError(f"{where} must be a table with a table of coefficients")
    check_keys(entry, ("coefficients", *_STATED), where)
    record = coefficients_of(kind, dtype)
    types = {field.name: str(field.type) for field in fields(record)}
    given = entry["coefficients"]
    check_keys(given, types, f"{where}.coefficients", types)
    for name, value in given.items():
        right, is_right = "above 0", is_positive(value)
        if types[name] == "int":
            right, is_right = "a whole number", type(value) is int and value >= 0
        check_that(is_right, f"{where}.coefficients.{name}", right, value)
    (median, p90), assumed = _errors(entry, where)
    return Fitted(
        record(**given), gpu, _text(entry, "framework", where), median, p90,
        _rows(entry, "held_out_rows", where), _rows(entry, "held_out_groups", where),
        _rows(entry, "training_rows", where),
        derived=entry.get("derived", ""), assumed=assumed,
    )  # fmt: skip


def _errors(entry: Table, where: str) -> tuple[tuple[float, float], bool]:
    """Median and 90th percentile of a kind's error, and whether they are assumed."""
    names = ("held_out_median", "held_out_p90")
    derived = entry.get("derived")
    is_right = derived is None or (isinstance(derived, str) and bool(derived))
    check_that(is_right, f"{where}.derived", "a string naming the origin", derived)
    missing = [name for name in names if name not in entry]
    if derived is not None and len(missing) == len(names):
        return _DERIVED_ERROR, True
    if missing:
        raise DeviceError(
            f"{where} lacks {', '.join(missing)}: errors measured on sizes held out of the fit; for"
            ' coefficients that were not fitted, name their origin instead: derived = "..."'
        )
    for name in names:
        check_that(is_positive(entry[name]), f"{where}.{name}", "a number above 0", entry[name])
    return (float(entry[names[0]]), float(entry[names[1]])), False


def _text(entry: Table, key: str, where: str) -> str:
    value: str = entry.get(key, "")
    check_that(isinstance(value, str), f"{where}: {key}", "a string", value)
    return value


def _rows(entry: Table, key: str, where: str) -> int:
    """How many sizes were measured."""
    value: int = entry.get(key, 0)
    is_right = type(value) is int and 0 <= value < 1e30
    check_that(is_right, f"{where}.{key}", "a whole number", value)
    return value


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
    """The tables of a kernel kind in a data type.

    Args:
        kind: The kernel kind.
        dtype: Data type.
        coefficients: The fitted coefficients.
        errors: The errors of the fit.
        framework: What launched the kernels, with its version.
        left_out: For experts: median and 90th percentile of the error on each training group under
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


def cpu_profile_text(profile: Profile) -> str:
    """The whole profile of a CPU."""
    cpu = profile.cpu
    assert cpu is not None, "it is a CPU's"
    tables = [
        top_text(name=profile.gpu.name, source=profile.source),
        gpu_text(profile.gpu),
        f"[cpu]\nthreads = {cpu.threads}\noperator_us = {_number(cpu.operator_us)}\n",
    ]
    for (family, dtype), entry in cpu.families.items():
        lines = [
            f"[kernels.{family}.{dtype}]",
            f"training_rows = {entry.training_rows}",
            f"held_out_rows = {entry.held_out_rows}",
            f"held_out_median = {_number(entry.median)}",
            f"held_out_p90 = {_number(entry.p90)}",
            "",
            f"[kernels.{family}.{dtype}.coefficients]",
            *(f'"{name}" = {_number(value)}' for name, value in entry.coefficients.items()),
        ]
        tables.append("\n".join(lines) + "\n")
    return "\n".join(tables)


def _number(value: float) -> str:
    """A number to six significant digits; integers without a decimal point."""
    return f"{value:.6g}"
