"""Device profiles in TOML, read and written: fitted coefficients per kernel kind and data type.

`[gemm.bfloat16]` has vLLM's kernels, `[sglang.gemm.bfloat16]` SGLang's. A kind without coefficients
has those of the other engine, or else of the GPU named by `like`, with this GPU's peaks. A kind
states errors on held-out sizes, or as `derived` the origin of coefficients that were not fitted.

A user's file also has `[gpu]` if the GPU is not in the catalogue, and falls back to the shipped
one. What no engine launched holds under all.
"""

import json
import re
import tomllib
from collections import ChainMap, UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, fields, replace
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from dsocr_analyze.errors import DeviceError, did_you_mean
from dsocr_analyze.escaping import shown
from dsocr_analyze.hardware.coefficients import (
    COEFFICIENTS,
    Coefficients,
    ExpertsCoefficients,
    Fitted,
    ScaledGemmCoefficients,
    coefficients_of,
)
from dsocr_analyze.hardware.devices import BFLOAT16_CAPABILITY, Gpu, catalogue_name, gpu_catalogue
from dsocr_analyze.hardware.timed_device import (
    ENGINES,
    EXTRAPOLATED_BAND,
    CpuKernels,
    Device,
    Engine,
    names_of,
)
from dsocr_analyze.toml_table import Table, toml_of_file

_HALVES: Final = ("bfloat16", "float16")
_DTYPES: Final = (*_HALVES, "float8")
_ERRORS: Final = {"held_out_median": 0.15, "held_out_p90": 0.4}
"""Median and 90th percentile of the error, as assumed for kinds that were not fitted."""
_COUNTS: Final = ("held_out_rows", "held_out_groups", "training_rows")
_STATED: Final = ("framework", "derived", "training_rows", "training_median", "held_out_rows",
                  "held_out_groups", "held_out_median", "held_out_p90", "left_out_median",
                  "left_out_p90")  # fmt: skip
_STATED_OF_CPU: Final = ("training_rows", "held_out_rows", *_ERRORS)
_TOP: Final = ("name", "source", "licence", "system", "gpu", "cpu", "kernels",
               *ENGINES[1:], *COEFFICIENTS)  # fmt: skip
_SHARED: Final = ("encoder_attention", "movement")
"""Kinds alike under all engines: encoders run the model's own code, and what only moves bytes has
few ways to do it."""
_OF_GPU: Final = (
    "title", "tensor_tflops", "bandwidth_gb_s", "memory_gb", "source", "sms", "l2_mb",
)  # fmt: skip
"""Keys of every GPU's table."""
_MAY_BE_ZERO: Final = (
    "tiles", "splits", "few_heads", "slow_columns", "slow_depth", "packed_queries",
)  # fmt: skip
_MOST_TILES: Final = {ScaledGemmCoefficients: 7, ExpertsCoefficients: 6}
"""The largest constant of `kernel_times` for what a library chooses."""
_NAME: Final = re.compile(r"[^\W_][\w.+-]{0,99}")  # in a table of CSV, no formula
_LEAST: Final = 1e-9
_MOST: Final = 1e9
"""Beyond any GPU's figures and coefficients, seconds and counts would not be finite."""


def device(name: str, *, profiles: Iterable[Path] = ()) -> Device:
    """The GPU with this name, alias, or name that torch reports; `profiles` are the user's files.

    Raises:
        DeviceError: There is no such GPU, or a file is wrong.
    """
    known = all_profiles(profiles)
    return known[catalogue_name(name, known)]


class _Profiles(UserDict[str, Any]):
    """Devices by name; None is the shipped one, which is read when it is asked for."""

    def __getitem__(self, name: str) -> Device:
        found: Device | None = self.data[name]
        return found or _shipped(name)


def all_profiles(files: Iterable[Path] = ()) -> Mapping[str, Device]:
    """All GPUs by name; a user's `files` add to them or replace them.

    Raises:
        DeviceError: A file is wrong.
    """
    profiles = _Profiles(dict.fromkeys(gpu_catalogue()))
    for file in files:
        profile = profile_from_file(file, profiles)
        profiles[profile.gpu.name] = profile
    return profiles


@cache
def _shipped(name: str) -> Device:
    catalogue = gpu_catalogue()
    gpu, file = catalogue[name], resources.files(__package__).joinpath(f"profiles/{name}.toml")
    table = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    # NVIDIA's kernels tell nothing of another maker's GPU that was not measured at all.
    like = gpu.like if gpu.compute_capability else ""
    base = _shipped(catalogue_name(like, catalogue)) if like else None
    return _profile(gpu, table, _own_kinds(table, name), base)


Kinds: TypeAlias = dict[tuple[str, str], Fitted]


def _own_kinds(table: Table, gpu: str) -> dict[Engine, Kinds]:
    """Coefficients in a profile by serving engine; what no engine launched is every engine's."""
    every = _kinds_in(table, gpu)
    found = {ENGINES[0]: every}
    for engine in ENGINES[1:]:
        kinds, others = _kinds_in(table.get(engine, {}), gpu), {*ENGINES} - {engine}
        for key, fitted in every.items():
            if key[0] in _SHARED or fitted.framework.partition(" ")[0] not in others:
                kinds.setdefault(key, fitted)
        found[engine] = kinds
    return found


def _kinds_in(table: Table, gpu: str) -> Kinds:
    found = {}
    for kind in COEFFICIENTS:
        for dtype, entry in table.get(kind, {}).items():
            stated = {**_ERRORS, **entry}
            found[kind, dtype] = Fitted(
                coefficients_of(kind, dtype)(**entry["coefficients"]),
                float(stated["held_out_median"]), float(stated["held_out_p90"]),
                entry.get("held_out_rows", 0), entry.get("training_rows", 0), gpu,
                entry.get("framework", ""), entry.get("held_out_groups", 0),
                derived=entry.get("derived", ""), assumed="held_out_median" not in entry,
            )  # fmt: skip
    return found


def _profile(gpu: Gpu, table: Table, own: dict[Engine, Kinds], base: Device | None) -> Device:
    """A GPU with its own kinds by engine, and others as on the one that it is like."""
    kinds, anyones = dict(zip(own, map(dict, own.values()), strict=True)), ChainMap(*own.values())
    for engine, dtype, kind in product(ENGINES, sorted(_DTYPES), COEFFICIENTS):
        key, found = (kind, dtype), kinds[engine]
        lent = anyones.get(key)
        if key not in found and not lent and base and (dtype in _HALVES or gpu.tflops(dtype)):
            lent = base.under(engine).kinds.get(key)
        if key not in found and lent:
            wider = 1.0 if lent.extrapolated else EXTRAPOLATED_BAND
            found[key] = replace(
                lent, median=wider * lent.median, p90=wider * lent.p90, extrapolated=True
            )
    source, licence = table.get("source", ""), table.get("licence", "")
    if base and not any(own.values()):
        source, licence = f"extrapolated from {base.gpu.name}: {base.source}", base.licence
    return Device(gpu, source, licence, kinds.pop(ENGINES[0]), others=kinds)


# --- a user's file ---------------------------------------------------------------------------


def profile_from_file(file: Path, known: Mapping[str, Device] | None = None) -> Device:
    """Read a user's profile, like the files in `profiles/`, with `name`.

    A GPU that is not in the catalogue has its figures in `[gpu]`; `like` names one of `known`, by
    default the shipped ones.

    Raises:
        DeviceError: It cannot be read, or something in it is missing, unknown or impossible.
    """
    known = all_profiles() if known is None else known
    table = toml_of_file(file, "a device profile", DeviceError)
    _check_keys(table, _TOP, str(file))
    _check(table, ["name"], f"{file}: ", (
        "lower-case letters, digits, '.', '+', '-' and '_', of which the first two come first",
        lambda name: isinstance(name, str) and name == name.lower() and _NAME.fullmatch(name),
    ))  # fmt: skip
    _check(table, ["source", "licence", "system"], f"{file}: ", _TEXT, "")
    name: str = table["name"]
    if "gpu" not in table and (name not in known or not known[name].gpu.has_rates):
        lacking = "has no rates" if name in known else "is not"
        raise DeviceError(f"{file}: {name} {lacking} in the catalogue, so give a table [gpu]")
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
    if name in known and "gpu" not in table:
        kinds = {each: {**known[name].under(each).kinds, **kinds[each]} for each in ENGINES}
    like = f"{file}: gpu.like: "
    base = known[catalogue_name(gpu.like, known, like)] if gpu.like else None
    if not any(kinds.values()) and (base is None or "gpu" not in table):
        raise DeviceError(f"{file}: give coefficients of {', '.join(COEFFICIENTS)}, or gpu.like")
    if base is not None and not base.kinds:
        raise DeviceError(f"{like}{gpu.like} has no kernel times; name a GPU that has")
    return _profile(gpu, {"source": str(file), **table}, kinds, base)


def check_gpu(entry: Any, where: str) -> None:
    """Raise DeviceError for what is wrong in the table of a GPU; messages name `where`."""
    types = {field.name: str(field.type) for field in fields(Gpu) if field.name != "name"}
    if not isinstance(entry, dict):
        raise DeviceError(f"{where} must be a table")
    _check_keys(entry, types, where, _OF_GPU)
    for key in entry:
        _check(entry, [key], f"{where}.", _FIELDS[types[key]])
    if (tensor_dtype := entry.get("tensor_dtype", "bfloat16")) not in ("bfloat16", "float16"):
        raise DeviceError(f"{where}.tensor_dtype must be bfloat16 or float16")
    capability = entry.get("compute_capability", BFLOAT16_CAPABILITY)
    if capability < BFLOAT16_CAPABILITY and tensor_dtype == "bfloat16":
        raise DeviceError(
            f"{where}.tensor_dtype must be float16: compute_capability {capability} has no bfloat16"
        )


def check_kinds(table: Table, where: str) -> None:
    """Raise DeviceError for what is wrong in a profile's kinds; messages name `where`."""
    for engine in ENGINES[1:]:
        if engine in table:
            _check(table, [engine], f"{where}: ", ("a table of kinds", _is_table))
            _check_keys(table[engine], COEFFICIENTS, f"{where}: {engine}")
            check_kinds(table[engine], f"{where}: {engine}")
    for kind in COEFFICIENTS:
        _check(table, [kind], f"{where}: ", ("a table of data types", _is_table), {})
        for dtype, entry in table.get(kind, {}).items():
            if dtype not in _DTYPES:
                raise DeviceError(f"{where}: unknown type {kind}.{dtype}; use {', '.join(_DTYPES)}")
            _check_kind(entry, coefficients_of(kind, dtype), f"{where}: {kind}.{dtype}")


def _check_kind(entry: Any, record: type[Coefficients], where: str) -> None:
    types = {field.name: str(field.type) for field in fields(record)}
    given = _given_coefficients(
        entry, _STATED, types, where,
        needed=[field.name for field in fields(record) if field.default is MISSING],
    )  # fmt: skip
    for name in given:
        rule = _COUNT if name in _MAY_BE_ZERO else _FIELDS[types[name]]
        _check(given, [name], f"{where}.coefficients.", rule)
    if (most := _MOST_TILES.get(record)) is not None:
        right = f"a whole number from 0 to {most}", lambda tiles: tiles <= most
        _check(given, ["tiles"], f"{where}.coefficients.", right)
    _check(entry, ["derived"], f"{where}.", (
        "a string naming the origin",
        lambda origin: origin is None or (isinstance(origin, str) and origin != ""),
    ))  # fmt: skip
    missing = [name for name in _ERRORS if name not in entry]
    if missing and ("derived" not in entry or len(missing) < len(_ERRORS)):
        raise DeviceError(
            f"{where} lacks {', '.join(missing)}: errors measured on sizes held out of the fit; for"
            ' coefficients that were not fitted, name their origin instead: derived = "..."'
        )
    _check(entry, () if missing else _ERRORS, f"{where}.", _FIELDS["float"])
    _check(entry, ["framework"], f"{where}: ", _TEXT, "")
    _check(entry, _COUNTS, f"{where}.", _COUNT, 0)


def _cpu_kernels(table: Table, where: str) -> CpuKernels:
    cpu, kernels, families = table["cpu"], table.get("kernels", {}), {}
    if not isinstance(cpu, dict):
        raise DeviceError(f"{where}: cpu must be a table")
    _check_keys(cpu, ("threads", "operator_us"), f"{where}: cpu")
    _check(cpu, ["threads"], f"{where}: cpu.", _FIELDS["int"])
    _check(cpu, ["operator_us"], f"{where}: cpu.", _FIELDS["float"])
    if not isinstance(kernels, dict) or not all(isinstance(e, dict) for e in kernels.values()):
        raise DeviceError(f"{where}: kernels must be a table of families by data type")
    for family, dtype, entry in ((f, d, e) for f, each in kernels.items() for d, e in each.items()):
        place = f"{where}: kernels.{family}.{dtype}"
        given = _given_coefficients(entry, _STATED_OF_CPU, names_of(family), place)
        _check(given, given, f"{place}.coefficients.", ("0 or above", _is_amount))
        _check(entry, _STATED_OF_CPU, f"{place}.", ("a number, 0 or above", _is_amount))
        _check(entry, ["held_out_rows", "training_rows"], f"{place}.", _COUNT)
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
    """The coefficients in an entry, whose values are not checked yet."""
    if not isinstance(entry, dict) or not isinstance(entry.get("coefficients"), dict):
        raise DeviceError(f"{where} must be a table with a table of coefficients")
    _check_keys(entry, ("coefficients", *stated), where)
    given: Table = entry["coefficients"]
    _check_keys(given, known, f"{where}.coefficients", needed)
    return given


def _check_keys(table: Table, known: Iterable[str], where: str, needed: Iterable[str] = ()) -> None:
    if unknown := [name for name in table if name not in set(known)]:
        near = did_you_mean(unknown[0], known)
        raise DeviceError(
            f"{where}: unknown {', '.join(unknown)}; {near}known are {', '.join(known)}"
        )
    if missing := [name for name in needed if name not in table]:
        raise DeviceError(f"{where} lacks {', '.join(missing)}")


_Rule: TypeAlias = tuple[str, Callable[[Any], object]]
"""What a value has to be, in words, and whether it is."""


def _check(
    table: Table, keys: Iterable[str], where: str, rule: _Rule, default: object = None
) -> None:
    right, is_right = rule
    for key in keys:
        value = table.get(key, default)
        if not is_right(value):
            wrong = f"not {shown(value)}" if key in table else "and is missing"
            raise DeviceError(f"{where}{key} must be {right}, {wrong}")


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return _LEAST <= value <= _MOST


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= _MOST


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


_TEXT: Final[_Rule] = ("a string", lambda value: isinstance(value, str))
_COUNT: Final[_Rule] = ("a whole number", lambda value: type(value) is int and 0 <= value <= _MOST)
_FIELDS: Final[dict[str, _Rule]] = {
    "str": _TEXT,
    "int": (
        f"a whole number from 1 to {_MOST:g}",
        lambda value: isinstance(value, int) and _is_positive(value),
    ),
    "float": (f"a number from {_LEAST:g} to {_MOST:g}", _is_positive),
}
"""What the fields of a record have to be, by type."""


# --- writing ---------------------------------------------------------------------------------


def _table(header: str, values: Mapping[str, str | float]) -> str:
    """A table, or the keys before the first one if the header is empty."""
    lines = [f"[{header}]"] if header else []
    for key, value in values.items():
        text = json.dumps(value) if isinstance(value, str | int) else f"{value:.6g}"
        lines.append(f"{key} = {text}")
    return "\n".join(lines) + "\n"


def cpu_profile_text(device: Device) -> str:
    """The whole profile of a CPU."""
    cpu = device.cpu
    assert cpu is not None, "it is a CPU's"
    defaults = {field.name: field.default for field in fields(Gpu)}
    gpu = {key: value for key, value in asdict(device.gpu).items() if value != defaults[key]}
    tables = [
        _table("", {"name": gpu.pop("name"), "source": device.source}),
        _table("gpu", gpu),
        _table("cpu", {"threads": cpu.threads, "operator_us": cpu.operator_us}),
    ]
    for (family, dtype), entry in cpu.families.items():
        coefficients = cast("Mapping[str, float]", entry.coefficients)
        stated = entry.training_rows, entry.held_out_rows, entry.median, entry.p90
        tables += [
            _table(f"kernels.{family}.{dtype}", dict(zip(_STATED_OF_CPU, stated, strict=True))),
            _table(
                f"kernels.{family}.{dtype}.coefficients",
                {f'"{name}"': value for name, value in coefficients.items()},
            ),
        ]
    return "\n".join(tables)
