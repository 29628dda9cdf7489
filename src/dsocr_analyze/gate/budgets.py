"""Budgets and their workloads in a TOML file: read, and written with new limits."""

from __future__ import annotations

import operator
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any, Final, NamedTuple, TypeAlias

import tomlkit
from tomlkit import exceptions, items

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.report.reading import LARGEST_NUMBER
from dsocr_analyze.toml_table import REQUIRED, TomlTable

__all__ = [
    "DEFAULTS",
    "LEVELS",
    "NEW_FILE",
    "OF_VALUES",
    "PYPROJECT",
    "Budget",
    "BudgetedWorkload",
    "Budgets",
    "Edit",
    "Limit",
    "Options",
    "budgets_in",
    "edited",
    "files_of",
]

PYPROJECT: Final = "pyproject.toml"
"""The file with budgets in a table of their own; in others they are at the top."""

_PYPROJECT_TABLE: Final = ("tool", "dsocr-analyze", "check")

NEW_FILE: Final = """\
# Limits on the cost of these workloads. `dsocr-analyze check` compares them with what the
# workloads cost now, and can update them.

[workloads.default]
page = "a4"
max_new_tokens = 1024

"""
"""First budgets: the built-in reference on one page."""

LEVELS: Final = ("warn", "error")
"""What exceeding a budget may be."""

OF_VALUES, _OF_CHANGES = ("max", "min"), ("max_increase", "max_decrease")
"""Limits of a figure's value, and of its change against the baseline."""

_CHANGE: Final = re.compile(r"(?P<amount>\d+(?:\.\d+)?)\s*(?P<percent>%?)", re.ASCII)
_LONGEST_CHANGE: Final = 40
_RIGHT_CHANGE: Final = 'a percentage of the baseline like "2 %", or an amount from 0'


@dataclass(frozen=True)
class Limit:
    """A limit on a figure or its change.

    Attributes:
        name: `max` or `min` of a value, `max_increase` or `max_decrease` of a change, `tolerance`
            of either.
        amount: The value, or the change, absolute or a fraction.
        amount_text: The same in words.
    """

    name: str
    amount: int | float | Fraction
    amount_text: str
    is_relative: bool = False

    @property
    def text(self) -> str:
        """`max 9,000,000,000,000`."""
        return f"{self.name} {self.amount_text}"

    @property
    def is_upper(self) -> bool:
        """Whether what is above it exceeds it."""
        return self.name in ("max", "max_increase")

    def value(self, baseline: int | float | None) -> int | float | Fraction | None:
        """The last allowed value; None without the baseline that it depends on."""
        if self.name in OF_VALUES:
            return self.amount
        if baseline is None:
            return None
        room = Fraction(self.amount) * (abs(Fraction(baseline)) if self.is_relative else 1)
        return Fraction(baseline) + (room if self.is_upper else -room)

    def keeps(self, figure: int | float, value: int | float | Fraction) -> bool:
        """Whether a figure is within the last allowed value."""
        return figure <= value if self.is_upper else figure >= value


@dataclass(frozen=True)
class Budget:
    """Limits on the figures of a report key, in which `*` is any name."""

    key: str
    level: str
    limits: tuple[Limit, ...]


Options: TypeAlias = Mapping[str, Any]
"""A workload's options by their names on the command line, paths relative to the file."""

DEFAULTS: Final[Options] = {
    "model": None, "arch": None, "config": None, "stages": None, "hf_config": None,
    "sliding_window": None, "dtype": "bfloat16", "use_flash_attn": False, "mode": None,
    "base_size": None, "image_size": None, "crop_mode": None, "page": None, "seq_len": None,
    "text_tokens": None, "max_new_tokens": 1024, "batch_size": 1, "prompt_pages": 1,
    "engine": None, "gpu": (), "runtime": "eager", "server": "vllm", "concurrency": "1",
    "preprocess_ms": None, "workers": 1, "price": None, "weights_dtype": None, "kv_dtype": None,
}  # fmt: skip
"""Every option; what is None follows from the model and the others."""


def files_of(options: Options) -> list[str | None]:
    """The files that options name and the model's directory; None for the built-in."""
    model = None if options["model"] == "reference" else options["model"]
    return [options["config"], options["stages"], options["hf_config"], model]


@dataclass(frozen=True)
class BudgetedWorkload:
    """One workload, its budgets, and the tolerance of its other figures."""

    name: str
    options: Options
    tolerance: Limit
    budgets: tuple[Budget, ...] = ()

    @property
    def default(self) -> Budget:
        """The budget of all other figures."""
        limits = tuple(replace(self.tolerance, name=name) for name in _OF_CHANGES)
        return Budget("", "error", limits)


Budgets: TypeAlias = Mapping[str, BudgetedWorkload]
"""Workloads by name, in file order."""


def budgets_in(text: str, file: str, *, is_pyproject: bool) -> Budgets | None:
    """The budgets in a file's text; None for a `pyproject.toml` without any.

    Raises:
        ConfigError: It is not TOML, or something in it is not a valid budget.
    """
    try:
        values: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file!r} is not TOML: {error}") from error
    table = TomlTable(file, "", values)
    for name in _PYPROJECT_TABLE if is_pyproject else ():
        if name == _PYPROJECT_TABLE[-1]:
            table.table(name)
            table.done()
        if not table.has(name):
            return None
        values = values[name]
        if not isinstance(values, dict):
            raise ConfigError(f"{file}: '{table.path(name)}' must be a table")
        table = TomlTable(file, table.path(name), values)
    workloads = table.table("workloads")
    table.done()
    if workloads is None or not [*workloads.items()]:
        raise ConfigError(
            f"{file}: there is no workload; add one, such as"
            f' [{table.path("workloads.gundam")}] with mode = "gundam"'
        )
    return {name: _workload(name, workloads) for name, _ in workloads.items()}


def _workload(name: str, workloads: TomlTable) -> BudgetedWorkload:
    table = workloads.table(name)
    if table is None or not name.strip():
        raise ConfigError(f"{workloads.file}: a workload needs a name")
    workload = BudgetedWorkload(
        name, _options(table), _change(table, "tolerance") or Limit("tolerance", Fraction(0), "0"),
        tuple(map(_budget, table.tables("budgets", []))),
    )  # fmt: skip
    table.done()
    return workload


_TEXTS: Final = ("model", "arch", "config", "stages", "hf_config", "mode", "page", "engine",
                 "weights_dtype", "kv_dtype", "dtype", "runtime", "server")  # fmt: skip
_SIZES: Final = ("base_size", "image_size", "seq_len", "text_tokens", "max_new_tokens",
                 "batch_size", "prompt_pages", "workers")  # fmt: skip
_SWITCHES: Final = ("sliding_window", "use_flash_attn", "crop_mode")
_GPUS: Final = 'a name, or a list like ["a100", "h100"]'


def _options(table: TomlTable) -> Options:
    found: dict[str, Any] = {name: table.text(name, None) for name in _TEXTS}
    found |= {name: table.whole(name, 0) for name in _SIZES}
    for name in _SWITCHES:
        # `true` as in TOML, or 1 as on the command line.
        value = table.value(name, False, (bool, int), "true or false")
        if value not in (0, 1):
            raise table.refusal(name, "true or false")
        found[name] = bool(value)
    found |= {name: _number(table, name) for name in ("preprocess_ms", "price")}
    concurrency = table.value("concurrency", "1", (str, int), 'a list like "1,4,16", or a number')
    gpu = table.value("gpu", [], (str, list), _GPUS)
    if not all(isinstance(each, str) for each in gpu):
        raise table.refusal("gpu", _GPUS)
    found |= {
        "concurrency": str(concurrency), "gpu": (gpu,) if isinstance(gpu, str) else tuple(gpu)
    }  # fmt: skip
    return {name: found[name] if table.has(name) else value for name, value in DEFAULTS.items()}


def _budget(table: TomlTable) -> Budget:
    key, level = table.text("key", REQUIRED), table.choice("level", LEVELS, "error")
    most, least = (_number(table, name) for name in OF_VALUES)
    changes = [_change(table, name) for name in _OF_CHANGES]
    table.done()
    limits = [
        Limit(name, value, f"{value:,}".removesuffix(".0"))
        for name, value in zip(OF_VALUES, (most, least), strict=True) if value is not None
    ] + [*filter(None, changes)]  # fmt: skip
    if not limits:
        raise ConfigError(
            f"{table.file}: '{table.path('key')}' = {key!r} has no limit; give max, min,"
            " max_increase or max_decrease"
        )
    if least is not None and most is not None and least > most:
        raise table.refusal("min", f"at most {most}, its max")
    return Budget(key, level, tuple(limits))


def _number(table: TomlTable, key: str) -> int | float | None:
    found: int | float | None = table.value(key, None, (int, float), "a number")
    if found is not None and not abs(found) <= LARGEST_NUMBER:  # rejects nan too
        raise table.refusal(key, f"a number up to {LARGEST_NUMBER:.0e}")
    return found


def _change(table: TomlTable, key: str) -> Limit | None:
    """`"2 %"`, `"1000"` or 1000 as a limit."""
    value = table.value(key, None, (str, int, float), _RIGHT_CHANGE)
    if value is None:
        return None
    if not isinstance(value, str) and 0 <= value <= LARGEST_NUMBER:
        return Limit(key, Fraction(value), str(value))
    text = value.strip() if isinstance(value, str) and len(value) <= _LONGEST_CHANGE else ""
    found = _CHANGE.fullmatch(text)
    if found is None:
        raise table.refusal(key, _RIGHT_CHANGE)
    amount = Fraction(found["amount"]) / (100 if found["percent"] else 1)
    return Limit(key, amount, text, bool(found["percent"]))


# --- new limits ----------------------------------------------------------------------------------


class Edit(NamedTuple):
    """The `max` and `min` of a budget that change."""

    key: str
    limits: Mapping[str, int | float]


def edited(text: str, file: str, edits: Mapping[str, Sequence[Edit]], *, is_pyproject: bool) -> str:
    """The file's text with the edits of each workload: of its budgets, then of new ones.

    Raises:
        ConfigError: The file is written in a way that cannot be edited.
    """
    has_returns = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    lines = text.replace("\r\n", "\n") if has_returns else text
    lines += "" if lines.endswith("\n") else "\n"
    path = (*(_PYPROJECT_TABLE if is_pyproject else ()), "workloads")
    try:
        document, expected = tomlkit.parse(lines), tomllib.loads(lines)
        for name, found in edits.items():
            for each in (document, expected):
                _apply(reduce(operator.getitem, (*path, name), each), found)
        written = tomlkit.dumps(document)
        if tomllib.loads(written) != expected:
            raise ValueError("something else was written")
    except (exceptions.TOMLKitError, ValueError, KeyError, TypeError) as error:
        said = (
            f"{name}: {key} {', '.join(f'{each} = {value}' for each, value in limits.items())}"
            for name, found in edits.items()
            for key, limits in found
            if limits
        )
        raise ConfigError(
            f"{file!r} cannot be edited as it is written; edit by hand: {'; '.join(said)}"
        ) from error
    return written.replace("\n", "\r\n") if has_returns else written


def _apply(workload: Any, edits: Sequence[Edit]) -> None:
    """Edits a workload of tomlkit, which keeps a file's layout, or of plain values."""
    is_begun = "budgets" not in workload
    if is_begun:
        workload["budgets"] = [] if type(workload) in (dict, items.InlineTable) else tomlkit.aot()
    budgets = workload["budgets"]
    for index, (key, limits) in enumerate(edits):
        if index < len(budgets):
            budgets[index].update(limits)
            continue
        if isinstance(budgets, items.AoT):
            if not budgets:
                workload.add(tomlkit.nl())
            elif not is_begun:  # tomlkit separates tables itself in lists it created
                budgets[-1].add(tomlkit.nl())
        added: Any = tomlkit.inline_table() if isinstance(budgets, items.Array) else {}
        added.update({"key": key, **limits})
        budgets.append(added)
