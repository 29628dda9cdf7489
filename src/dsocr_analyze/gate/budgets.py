"""Budgets in a TOML file, read and written with new limits; and the report keys that they name."""

import itertools
import json
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from fractions import Fraction
from functools import reduce
from itertools import takewhile
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import tomlkit
from tomlkit import exceptions, items

from dsocr_analyze.errors import ConfigError, DeviceError
from dsocr_analyze.hardware.devices import catalogue_name
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.measured import Measurement
from dsocr_analyze.report.reading import LARGEST_NUMBER
from dsocr_analyze.toml_table import REQUIRED, TomlTable, parse_toml

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

MEASURED: Final = "measured"
"""The key of a workload's measurement, beside those of its report."""

LEVELS: Final = ("warn", "error")
"""What exceeding a budget may be."""

OF_VALUES, _OF_CHANGES = ("max", "min"), ("max_increase", "max_decrease")
"""Limits of a figure's value, and of its change against the baseline."""

_CHANGE: Final = re.compile(r"(?P<amount>\d+(?:\.\d+)?)\s*(?P<percent>%?)", re.ASCII)
_LONGEST_CHANGE: Final = 40
_RIGHT_CHANGE: Final = 'a percentage of the baseline like "2 %", or an amount from 0'


@dataclass(frozen=True)
class Limit:
    """A limit on a figure or its change."""

    name: str
    """`max` or `min` of a value, `max_increase` or `max_decrease` of a change, or `tolerance`."""
    amount: int | float | Fraction
    """The value, or the change: an amount or a fraction."""
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
    "engine": None, "gpu": (), "runtime": "serving", "server": "vllm", "concurrency": "1",
    "preprocess_ms": None, "workers": None, "price": None, "weights_dtype": None, "kv_dtype": None,
    "measurement": None, "measured_on": None,
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
    """The budgets in a file's text, None for a `pyproject.toml` without any; or ConfigError."""
    try:
        values: Any = parse_toml(text)
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
    if not [*workloads.items()]:
        raise ConfigError(
            f"{file}: there is no workload; add one, such as"
            f' [{table.path("workloads.gundam")}] with mode = "gundam"'
        )
    return {name: _workload(name, workloads) for name, _ in workloads.items()}


def _workload(name: str, workloads: TomlTable) -> BudgetedWorkload:
    table = workloads.table(name)
    if not name.strip():
        raise ConfigError(f"{workloads.file}: a workload needs a name")
    options = _options(table)
    workload = BudgetedWorkload(
        name, options, _change(table, "tolerance") or Limit("tolerance", Fraction(0), "0"),
        tuple(map(_budget, table.tables("budgets", []))),
    )  # fmt: skip
    table.done()
    if not options["measurement"] and any(_begins(each.key, MEASURED) for each in workload.budgets):
        raise ConfigError(
            f"{table.file}: '{table.path('measurement')}' is missing; budgets of {MEASURED} seconds"
            " need the file that `dsocr-analyze measure` writes as JSON"
        )
    return workload


_TEXTS: Final = ("model", "arch", "config", "stages", "hf_config", "mode", "page", "engine",
                 "weights_dtype", "kv_dtype", "dtype", "runtime", "server", "measurement",
                 "measured_on")  # fmt: skip


def _options(table: TomlTable) -> Options:
    found: dict[str, Any] = {name: table.text(name, None) for name in _TEXTS}
    found |= {name: table.whole(name, 0) for name in (
        "base_size", "image_size", "seq_len", "text_tokens", "max_new_tokens", "batch_size",
        "prompt_pages", "workers",
    )}  # fmt: skip
    # `true` as in TOML, or 1 as on the command line.
    found |= {
        name: bool(table.value(name, False, (bool, int), "true or false", (0, 1).__contains__))
        for name in ("sliding_window", "use_flash_attn", "crop_mode")
    }
    found |= {name: _number(table, name) for name in ("preprocess_ms", "price")}
    for name, other in itertools.permutations(("measurement", "measured_on")):
        if found[name] and not found[other]:
            raise ConfigError(
                f"{table.file}: '{table.path(name)}' needs {other}; give both, the file of a"
                " measurement and the device that is the title of its seconds"
            )
    concurrency = table.value("concurrency", "1", (str, int), 'a list like "1,4,16", or a number')
    gpu = table.value(
        "gpu", [], (str, list), 'a name, or a list like ["a100", "h100"]',
        lambda names: all(isinstance(each, str) for each in names),
    )  # fmt: skip
    found |= {
        "concurrency": str(concurrency), "gpu": (gpu,) if isinstance(gpu, str) else tuple(gpu)
    }  # fmt: skip
    return {name: found[name] if table.has(name) else value for name, value in DEFAULTS.items()}


def _budget(table: TomlTable) -> Budget:
    key, level = table.text("key", REQUIRED), table.choice("level", LEVELS, "error")
    most, least = (_number(table, name) for name in OF_VALUES)
    changes = [_change(table, name) for name in _OF_CHANGES]
    table.done()
    if _begins(key, MEASURED) and (change := next(filter(None, changes), None)):
        raise ConfigError(
            f"{table.file}: '{table.path(change.name)}' limits a change of {key!r}, and a baseline"
            " has no measured seconds to compare with; give max or min"
        )
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
    if (found := _CHANGE.fullmatch(text)) is None:
        raise table.refusal(key, _RIGHT_CHANGE)
    amount = Fraction(found["amount"]) / (100 if found["percent"] else 1)
    return Limit(key, amount, text, bool(found["percent"]))


# --- new limits ----------------------------------------------------------------------------------


class Edit(NamedTuple):
    """The `max` and `min` of a budget that change."""

    key: str
    limits: Mapping[str, int | float]


def edited(text: str, file: str, edits: Mapping[str, Sequence[Edit]], *, is_pyproject: bool) -> str:
    """The file's text with the edits of each workload, or ConfigError if it can't be edited."""
    has_returns = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    lines = text.replace("\r\n", "\n") if has_returns else text
    lines += "" if lines.endswith("\n") else "\n"
    path = (*(_PYPROJECT_TABLE if is_pyproject else ()), "workloads")
    try:
        document, expected = tomlkit.parse(lines), parse_toml(lines)
        for name, found in edits.items():
            for each in (document, expected):
                _apply(reduce(operator.getitem, (*path, name), each), found)
        written = tomlkit.dumps(document)
        if parse_toml(written) != expected:
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


# --- report keys ---------------------------------------------------------------------------------

_MOST_NAMED: Final = 12
"""Most names listed in an error."""


class ReportKeys:
    """The keys of one report: dotted paths such as `total.flops`; and of a measurement.

    An entry has an index or a value in it (`workload.page[0]`, `time[gpu=a100].page_seconds`);
    `*` is any one name or entry.
    """

    def __init__(self, report: Report | None, measured: Measurement | None = None) -> None:
        self._document = msgspec.to_builtins(report)
        if measured is not None:
            self._document = {**self._document, MEASURED: msgspec.to_builtins(measured)}

    def values(self, key: str) -> dict[str, Any]:
        """What a key names, by path; empty if nothing, or ambiguous."""
        try:
            return dict(_walk(self._document, key, "", []))
        except ConfigError:
            return {}

    def figures(self, key: str) -> dict[str, int | float | None]:
        """The numbers that a key names by path, None for null; several only with `*`.

        Raises ConfigError if the report has no such key, or its value is not a number.
        """
        failures: list[_Failure] = []
        found = dict(_walk(self._document, key, "", failures))
        if not found:
            raise _unknown(key, failures)
        numbers = {path: each for path, each in found.items() if each is None or is_number(each)}
        if not numbers or (len(numbers) < len(found) and "*" not in key):
            path, value = next(iter(found.items()))
            raise ConfigError(f"report key {key!r} is not a number: {path!r} is {_kind(value)}")
        return numbers


def is_number(value: object) -> bool:
    """Whether a value of a report is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def entry_labels(entries: Sequence[Any]) -> list[str]:
    """What distinguishes each entry of a list, else its index."""
    labels = [*map(_label, entries)]
    return [
        label if label and labels.count(label) == 1 else str(index)
        for index, label in enumerate(labels)
    ]


def _label(entry: Any) -> str:
    """An object's leading texts, else its first value."""
    items = list(entry.items()) if isinstance(entry, Mapping) else []
    texts = list(takewhile(lambda each: isinstance(each[1], str), items))
    return ", ".join(f"{name}={value}" for name, value in texts or items[:1])


# --- where a key leads -------------------------------------------------------------------------


_Failure: TypeAlias = tuple[str, Any, str, bool]
"""A path that leads nowhere, the value there, the rest of the key, whether parts match."""


def _walk(value: Any, rest: str, place: str, failures: list[_Failure]) -> list[tuple[str, Any]]:
    """What the rest of a key names below `value`, with full paths."""
    if not rest:
        return [(place, value)]
    step = rest.removeprefix(".") if place else rest
    found: list[tuple[str, Any]] = []
    parts = _parts(value, rest, step, place)
    for path, part, following in parts:
        found += _walk(part, following, path, failures)
        if found and step[:1] not in ("*", "["):
            break  # of names that begin alike, the longest that leads wins
    if not found:
        failures.append((place, value, rest.lstrip("."), bool(parts)))
    return found


def _parts(value: Any, rest: str, step: str, place: str) -> list[tuple[str, Any, str]]:
    """What the next step of a key may name: paths, parts and the rest of the key."""
    if rest.startswith("["):
        return _entries(value, rest, place) if isinstance(value, list | tuple) else []
    if not isinstance(value, Mapping) or (place and rest == step):
        return []
    if step == "*" or step[:2] in ("*.", "*["):
        names = [(each, step[1:]) for each in value]
    else:
        names = [
            (each, step[len(each) :])
            for each in sorted(value, key=len, reverse=True)
            if _begins(step, each)
        ]
    return [(f"{place}.{each}" if place else each, value[each], after) for each, after in names]


def _begins(rest: str, name: str) -> bool:
    return rest.startswith(name) and rest[len(name) : len(name) + 1] in ("", ".", "[")


def _entries(values: Sequence[Any], rest: str, place: str) -> list[tuple[str, Any, str]]:
    selector, bracket, after = rest[1:].partition("]")
    found = [
        (f"{place}[{label}]", entry, after)
        for index, (label, entry) in enumerate(zip(entry_labels(values), values, strict=True))
        if bracket and _is_selected(entry, index, selector.strip())
    ]
    if len(found) > 1 and selector.strip() != "*":
        raise ConfigError(
            f"report key: {place}[{selector}] matches {len(found)} entries; be more specific, or"
            f" use [*]: {_said_of_entries(repr(place), values)}"
        )
    return found


def _is_selected(entry: Any, index: int, selector: str) -> bool:
    if not isinstance(entry, Mapping) or "=" not in selector:
        return selector in ("*", str(index))
    parts = (map(str.strip, part.partition("=")) for part in selector.split(","))
    return all(_is_said(entry.get(name), name, text) for name, _, text in parts)


def _is_said(value: Any, name: str, text: str) -> bool:
    """Whether a text is the value of that name, or any name of a GPU."""
    if name == "gpu" and isinstance(value, str) and text != value:
        try:
            return catalogue_name(text, {value: value}) == value
        except DeviceError:
            return False
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    return not isinstance(value, Mapping | None) and str(value) == text


# --- what is wrong with a key --------------------------------------------------------------------


def _unknown(key: str, failures: Sequence[_Failure]) -> ConfigError:
    """What there is at the failure most similar or furthest along."""
    ranked = [(*_closest(*each[1:]), each) for each in reversed(failures)]
    _, close, (place, value, rest, _) = max(ranked, key=lambda each: (each[0], len(each[2][0])))
    where = repr(place) if place else "the report"
    if isinstance(value, Mapping):
        near = f"did you mean {close!r}? " if close else ""
        listed = ", ".join([*list(value)[:_MOST_NAMED], *["..."] * (len(value) > _MOST_NAMED)])
        asked = rest if "." in close else _first_name(rest) or rest
        said = f"{where} has no {asked!r}; {near}it has {listed or 'nothing'}"
    elif isinstance(value, list | tuple):
        said = _said_of_entries(where, value)
    else:
        said = f"{where} is {_kind(value)}, which has no {rest!r}"
    return ConfigError(f"report key {key!r} is unknown: {said}")


def _closest(value: Any, rest: str, is_begun: bool) -> tuple[float, str]:
    known = value if isinstance(value, Mapping) else ()
    names = [name for name in known if not _begins(rest, name)]
    found = [
        (SequenceMatcher(None, asked, name).ratio(), name)
        for asked in ([] if is_begun else [_first_name(rest)]) + [rest]
        for name in get_close_matches(asked, names, n=1)
    ]
    return max(found, default=(0.0, ""))


def _first_name(rest: str) -> str:
    return re.split(r"[.[]", rest, maxsplit=1)[0]


def _said_of_entries(where: str, entries: Sequence[Any]) -> str:
    if not entries:
        needs = " (a workload with gpu = ... has some)" if where == "'time'" else ""
        return f"{where} is an empty list{needs}"
    labels = [
        f"[{_label(each) if isinstance(each, Mapping) else index}]"
        for index, each in enumerate(entries[:_MOST_NAMED])
    ]
    return f"{where} is a list; name one of its entries: {' or '.join(labels)}"


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"an object ({', '.join(list(value)[:_MOST_NAMED])})"
    if isinstance(value, str | list | tuple):
        return "a text" if isinstance(value, str) else "a list"
    return json.dumps(value)
