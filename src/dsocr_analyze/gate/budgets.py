"""Budgets from a TOML file, with the workloads they apply to."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Final

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.gate.document import Level
from dsocr_analyze.report.reading import LARGEST_NUMBER
from dsocr_analyze.toml_table import REQUIRED, TomlTable

__all__ = [
    "LEVELS",
    "NEW_FILE",
    "PYPROJECT",
    "PYPROJECT_TABLE",
    "Allowance",
    "Budget",
    "Budgets",
    "Options",
    "Workload",
    "budgets_in",
    "parse_allowance",
]

PYPROJECT: Final = "pyproject.toml"
"""The file that has budgets in a table of their own; in any other file they are at the top."""

PYPROJECT_TABLE: Final = ("tool", "dsocr-analyze", "check")

NEW_FILE: Final = """\
# Limits on the cost of these workloads. `dsocr-analyze check` compares them with what the
# workloads cost now, and can update them.

[workloads.default]
page = "a4"
max_new_tokens = 1024

"""
"""A first file of budgets: the built-in reference on one page."""

LEVELS: Final[tuple[Level, ...]] = ("warn", "error")

_ALLOWANCE: Final = re.compile(r"(?P<amount>\d+(?:\.\d+)?)\s*(?P<percent>%?)", re.ASCII)
_LONGEST_ALLOWANCE: Final = 40
_RIGHT_ALLOWANCE: Final = 'a percentage of the baseline like "2 %", or an amount from 0'


@dataclass(frozen=True)
class Allowance:
    """By how much a figure may differ from the baseline's.

    Attributes:
        amount: An absolute amount, or a fraction of the baseline's figure.
        is_relative: Whether it is a fraction.
        text: The text in the file.
    """

    amount: Fraction
    is_relative: bool
    text: str

    def of(self, baseline: int | float) -> Fraction:
        """The absolute amount for a figure whose baseline value is `baseline`."""
        return self.amount * abs(Fraction(baseline)) if self.is_relative else self.amount


def _digits(value: int | float | str) -> str:
    """A number for readers: 9000000000000.0 is 9,000,000,000,000."""
    return value if isinstance(value, str) else f"{value:,}".removesuffix(".0")


_NOTHING: Final = Allowance(Fraction(0), False, "0")


@dataclass(frozen=True)
class Budget:
    """Limits on the figures that a report key names.

    Attributes:
        key: Dotted path in the report; `*` matches any one name.
        level: Severity of exceeding a limit.
        max: Largest value allowed.
        min: Smallest value allowed.
        max_increase: How much it may exceed the baseline's value.
        max_decrease: How much it may fall below the baseline's value.
    """

    key: str
    level: Level = "error"
    max: int | float | None = None
    min: int | float | None = None
    max_increase: Allowance | None = None
    max_decrease: Allowance | None = None

    def limits(self) -> Mapping[str, str]:
        """Every limit as text, by name."""
        named = {
            "max": self.max,
            "min": self.min,
            "max_increase": None if self.max_increase is None else self.max_increase.text,
            "max_decrease": None if self.max_decrease is None else self.max_decrease.text,
        }
        return {name: _digits(value) for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Options:
    """What a workload counts, named like the command line's options.

    Paths are as written in the file, relative to its folder.
    """

    model: str | None = None
    arch: str | None = None
    config: str | None = None
    stages: str | None = None
    hf_config: str | None = None
    sliding_window: bool | None = None
    dtype: str = "bfloat16"
    use_flash_attn: bool = False
    mode: str | None = None
    base_size: int | None = None
    image_size: int | None = None
    crop_mode: bool | None = None
    page: str | None = None
    seq_len: int | None = None
    text_tokens: int | None = None
    max_new_tokens: int = 1024
    batch_size: int = 1
    prompt_pages: int = 1
    engine: str | None = None
    gpu: tuple[str, ...] = ()
    runtime: str = "eager"
    server: str = "vllm"
    concurrency: str = "1"
    preprocess_ms: float | None = None
    workers: int = 1
    price: float | None = None
    weights_dtype: str | None = None
    kv_dtype: str | None = None

    def paths(self) -> tuple[str, ...]:
        """The files and the directory that it names."""
        named = (self.config, self.stages, self.hf_config, self.directory)
        return tuple(path for path in named if path is not None)

    @property
    def directory(self) -> str | None:
        """The model directory that it names; None for the built-in reference."""
        return None if self.model == "reference" else self.model


@dataclass(frozen=True)
class Workload:
    """One workload and its budgets.

    Attributes:
        name: Its name in the file.
        options: What is counted.
        tolerance: How much a figure without a budget may differ from the baseline's.
        budgets: The budgets, in file order.
    """

    name: str
    options: Options = Options()
    tolerance: Allowance = _NOTHING
    budgets: tuple[Budget, ...] = ()


@dataclass(frozen=True)
class Budgets:
    """A file of budgets.

    Attributes:
        workloads: By name, in file order.
    """

    workloads: Mapping[str, Workload]


def budgets_in(text: str, file: str, *, is_pyproject: bool) -> Budgets | None:
    """The budgets in a file's text; None for a `pyproject.toml` without any.

    Args:
        text: The file's text.
        file: Its name, for messages.
        is_pyproject: Whether they are in `[tool.dsocr-analyze.check]` rather than at the top.

    Raises:
        ConfigError: The text is not TOML, or contains something that is not a valid budget.
    """
    try:
        values: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file!r} is not TOML: {error}") from error
    where = ""
    if is_pyproject:
        for depth, name in enumerate(PYPROJECT_TABLE, 1):
            path = ".".join(PYPROJECT_TABLE[:depth])
            if name == PYPROJECT_TABLE[-1]:
                _refuse_other_tables(file, where, values)
            if name not in values:
                return None
            values, where = values[name], path
            if not isinstance(values, dict):
                raise ConfigError(f"{file}: '{where}' must be a table")
    return _budgets(TomlTable(file, where, values))


def _refuse_other_tables(file: str, where: str, values: Mapping[str, Any]) -> None:
    table = TomlTable(file, where, values)
    table.table(PYPROJECT_TABLE[-1])
    table.done()


def _budgets(table: TomlTable) -> Budgets:
    found = table.table("workloads")
    table.done()
    workloads = {}
    for name, _ in found.items() if found is not None else ():
        each = found.table(name) if found is not None else None
        if each is None or not name.strip():
            raise ConfigError(f"{table.file}: a workload needs a name")
        workloads[name] = _workload(name, each)
    if not workloads:
        raise ConfigError(
            f"{table.file}: there is no workload; add one, such as"
            f' [{table.path("workloads.gundam")}] with mode = "gundam"'
        )
    return Budgets(workloads)


def _workload(name: str, table: TomlTable) -> Workload:
    options = _options(table)
    tolerance = _allowance(table, "tolerance") or _NOTHING
    budgets = tuple(map(_budget, table.tables("budgets", [])))
    table.done()
    return Workload(name, options, tolerance, budgets)


_TEXTS: Final = ("model", "arch", "config", "stages", "hf_config", "mode", "page", "engine",
                 "weights_dtype", "kv_dtype", "dtype", "runtime", "server")  # fmt: skip
_SIZES: Final = ("base_size", "image_size", "seq_len", "text_tokens", "max_new_tokens",
                 "batch_size", "prompt_pages", "workers")  # fmt: skip
_SWITCHES: Final = ("sliding_window", "use_flash_attn", "crop_mode")


def _options(table: TomlTable) -> Options:
    default = {field.name: field.default for field in fields(Options)}
    found: dict[str, Any] = {name: table.text(name, default[name]) for name in _TEXTS}
    for name in _SIZES:
        found[name] = table.value(name, default[name], int, "a whole number from 0")
        if table.has(name):
            table.whole(name)
    for name in _SWITCHES:
        # `true` as in TOML, or 1 as on the command line.
        value = table.value(name, default[name], (bool, int), "true or false")
        if value not in (0, 1, None):
            raise table.refusal(name, "true or false")
        found[name] = None if value is None else bool(value)
    for name in ("preprocess_ms", "price"):
        found[name] = _number(table, name)
    concurrency = table.value("concurrency", "1", (str, int), 'a list like "1,4,16", or a number')
    gpu = table.value("gpu", [], (str, list), 'a name, or a list like ["a100", "h100"]')
    if not all(isinstance(each, str) for each in gpu):
        raise table.refusal("gpu", 'a name, or a list like ["a100", "h100"]')
    found["concurrency"] = str(concurrency)
    found["gpu"] = (gpu,) if isinstance(gpu, str) else tuple(gpu)
    return Options(**found)


def _budget(table: TomlTable) -> Budget:
    key = table.text("key", REQUIRED)
    level = table.choice("level", LEVELS, "error")
    largest, smallest = _number(table, "max"), _number(table, "min")
    budget = Budget(
        key, level, largest, smallest,
        _allowance(table, "max_increase"), _allowance(table, "max_decrease"),
    )  # fmt: skip
    table.done()
    if not budget.limits():
        raise ConfigError(
            f"{table.file}: '{table.path('key')}' = {key!r} has no limit; give max, min,"
            " max_increase or max_decrease"
        )
    if largest is not None and smallest is not None and smallest > largest:
        raise table.refusal("min", f"at most {largest}, its max")
    return budget


def _number(table: TomlTable, key: str) -> int | float | None:
    found: int | float | None = table.value(key, None, (int, float), "a number")
    if found is not None and not abs(found) <= LARGEST_NUMBER:  # rejects nan too
        raise table.refusal(key, f"a number up to {LARGEST_NUMBER:.0e}")
    return found


def _allowance(table: TomlTable, key: str) -> Allowance | None:
    found = table.value(key, None, (str, int, float), _RIGHT_ALLOWANCE)
    if found is None:
        return None
    parsed = parse_allowance(found)
    if parsed is None:
        raise table.refusal(key, _RIGHT_ALLOWANCE)
    return parsed


def parse_allowance(value: str | int | float) -> Allowance | None:
    """The allowance for `"2 %"`, `"1000"` or 1000; None for anything else and if negative."""
    if isinstance(value, str):
        found = _ALLOWANCE.fullmatch(value.strip()) if len(value) <= _LONGEST_ALLOWANCE else None
        if found is None:
            return None
        amount = Fraction(found["amount"])
        is_relative = bool(found["percent"])
        return Allowance(amount / 100 if is_relative else amount, is_relative, value.strip())
    if not 0 <= value <= LARGEST_NUMBER:
        return None
    return Allowance(Fraction(value), False, str(value))
