"""Budgets from a TOML file, with the workloads they apply to."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeAlias

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
    "Limit",
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


@dataclass(frozen=True)
class Limit:
    """A limit on a figure.

    Attributes:
        name: `max` or `min` for a value, `max_increase` or `max_decrease` for a change.
        amount: Its amount.
    """

    name: str
    amount: int | float | Allowance

    @property
    def text(self) -> str:
        """It in words, with a number's digits grouped: `max 9,000,000,000,000`."""
        if isinstance(self.amount, Allowance):
            return f"{self.name} {self.amount.text}"
        return f"{self.name} {self.amount:,}".removesuffix(".0")

    @property
    def is_upper(self) -> bool:
        """Whether it limits what is above it."""
        return self.name in ("max", "max_increase")

    def value(self, baseline: int | float | None) -> int | float | Fraction | None:
        """The last allowed value; None if it depends on a baseline's value and there is none."""
        allowance = self.amount
        if not isinstance(allowance, Allowance):
            return allowance
        if baseline is None:
            return None
        room = allowance.amount * (abs(Fraction(baseline)) if allowance.is_relative else 1)
        return Fraction(baseline) + (room if self.is_upper else -room)

    def keeps(self, figure: int | float, value: int | float | Fraction) -> bool:
        """Whether a figure is within a value of this limit."""
        return figure <= value if self.is_upper else figure >= value


_LIMITS: Final = ("max", "min", "max_increase", "max_decrease")
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

    def limits(self) -> list[Limit]:
        """Every limit that it sets."""
        named = {name: getattr(self, name) for name in _LIMITS}
        return [Limit(name, amount) for name, amount in named.items() if amount is not None]


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
        return tuple(filter(None, (self.config, self.stages, self.hf_config, self.directory)))

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

    @property
    def default(self) -> Budget:
        """The budget of the figures that no other names."""
        return Budget("", max_increase=self.tolerance, max_decrease=self.tolerance)


Budgets: TypeAlias = Mapping[str, Workload]
"""The workloads of a file by name, in file order."""


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
    table = TomlTable(file, "", values)
    for name in PYPROJECT_TABLE if is_pyproject else ():
        if name == PYPROJECT_TABLE[-1]:
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


def _workload(name: str, workloads: TomlTable) -> Workload:
    table = workloads.table(name)
    if table is None or not name.strip():
        raise ConfigError(f"{workloads.file}: a workload needs a name")
    workload = Workload(
        name, _options(table), _allowance(table, "tolerance") or _NOTHING,
        tuple(map(_budget, table.tables("budgets", []))),
    )  # fmt: skip
    table.done()
    return workload


_TEXTS: Final = ("model", "arch", "config", "stages", "hf_config", "mode", "page", "engine",
                 "weights_dtype", "kv_dtype", "dtype", "runtime", "server")  # fmt: skip
_SIZES: Final = ("base_size", "image_size", "seq_len", "text_tokens", "max_new_tokens",
                 "batch_size", "prompt_pages", "workers")  # fmt: skip
_SWITCHES: Final = ("sliding_window", "use_flash_attn", "crop_mode")


def _options(table: TomlTable) -> Options:
    found: dict[str, Any] = {name: table.text(name, None) for name in _TEXTS}
    found |= {name: table.whole(name, 0) for name in _SIZES}
    for name in _SWITCHES:
        # `true` as in TOML, or 1 as on the command line.
        value = table.value(name, False, (bool, int), "true or false")
        found[name] = bool(value)
        if value not in (0, 1):
            raise table.refusal(name, "true or false")
    found |= {name: _number(table, name) for name in ("preprocess_ms", "price")}
    concurrency = table.value("concurrency", "1", (str, int), 'a list like "1,4,16", or a number')
    gpu = table.value("gpu", [], (str, list), 'a name, or a list like ["a100", "h100"]')
    if not all(isinstance(each, str) for each in gpu):
        raise table.refusal("gpu", 'a name, or a list like ["a100", "h100"]')
    gpus = (gpu,) if isinstance(gpu, str) else tuple(gpu)
    found |= {"concurrency": str(concurrency), "gpu": gpus}
    return Options(**{name: value for name, value in found.items() if table.has(name)})


def _budget(table: TomlTable) -> Budget:
    budget = Budget(
        table.text("key", REQUIRED), table.choice("level", LEVELS, "error"),
        _number(table, "max"), _number(table, "min"),
        _allowance(table, "max_increase"), _allowance(table, "max_decrease"),
    )  # fmt: skip
    table.done()
    if not budget.limits():
        raise ConfigError(
            f"{table.file}: '{table.path('key')}' = {budget.key!r} has no limit; give max, min,"
            " max_increase or max_decrease"
        )
    if budget.max is not None and budget.min is not None and budget.min > budget.max:
        raise table.refusal("min", f"at most {budget.max}, its max")
    return budget


def _number(table: TomlTable, key: str) -> int | float | None:
    found: int | float | None = table.value(key, None, (int, float), "a number")
    if found is not None and not abs(found) <= LARGEST_NUMBER:  # rejects nan too
        raise table.refusal(key, f"a number up to {LARGEST_NUMBER:.0e}")
    return found


def _allowance(table: TomlTable, key: str) -> Allowance | None:
    found = table.value(key, None, (str, int, float), _RIGHT_ALLOWANCE)
    parsed = None if found is None else parse_allowance(found)
    if parsed is None and found is not None:
        raise table.refusal(key, _RIGHT_ALLOWANCE)
    return parsed


def parse_allowance(value: str | int | float) -> Allowance | None:
    """The allowance for `"2 %"`, `"1000"` or 1000; None for anything else and if negative."""
    if not isinstance(value, str):
        is_right = 0 <= value <= LARGEST_NUMBER
        return Allowance(Fraction(value), False, str(value)) if is_right else None
    found = _ALLOWANCE.fullmatch(value.strip()) if len(value) <= _LONGEST_ALLOWANCE else None
    if found is None:
        return None
    amount = Fraction(found["amount"]) / (100 if found["percent"] else 1)
    return Allowance(amount, bool(found["percent"]), value.strip())
