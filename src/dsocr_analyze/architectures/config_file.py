"""A `config.json` key by key: checked reads, what each key does to the figures, and findings.

An architecture classifies every key it knows in a `KeyTable`, against which `findings_of` checks a
file, so that no key is ignored silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Final, Literal, TypeAlias

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.escaping import shown

# --- reads -----------------------------------------------------------------------------------

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)
"""What JSON can say."""

Config: TypeAlias = Mapping[str, JsonValue]
"""A `config.json`, or an object within it."""

LARGEST_WIDTH: Final = 1_048_576
"""Most features per token."""

MOST_LAYERS: Final = 1_024

_LARGEST_INTEGER: Final = 2**31 - 1


class ConfigKeys:
    """A JSON object of a `config.json`, read key by key; a default of `...` is none.

    ConfigError is raised for what is no object, and for an absent or wrong value.

    Args:
        values: The object.
        where: Its dotted path in the file.
        since: Why its keys are read, if that depends on another key.
    """

    def __init__(self, values: JsonValue, where: str = "", since: str = "") -> None:
        if not isinstance(values, Mapping):
            name = f"'{where}'" if where else "the top level"
            raise ConfigError(f"config.json: {name} is {shown(values)}; give a JSON object")
        self._values: Config = values
        self._prefix = f"{where}." if where else ""
        self._since = f", since {since}" if since else ""

    def check(self, holds: bool, key: str, right: str) -> None:
        """Raises the `refusal` of a key unless something holds."""
        if not holds:
            raise self.refusal(key, right)

    def refusal(self, key: str, right: str) -> ConfigError:
        """The error that names a key, its value and the `right` ones."""
        return ConfigError(
            f"config.json: '{self._prefix}{key}' is {shown(self._values.get(key))}; give {right}"
            f"{self._since}"
        )

    def value(self, key: str, default: JsonValue | EllipsisType = ...) -> JsonValue:
        """Value at `key`, unchecked."""
        value = self._values.get(key, default)
        if value is ...:
            raise ConfigError(f"config.json lacks '{self._prefix}{key}'{self._since}")
        return value

    def section(self, path: str, default: Config | None = None) -> ConfigKeys:
        """The object at a dotted path, or a default for one that is absent or null."""
        found = self
        for key in path.split("."):
            value = found.value(key, ... if default is None else None)
            found = ConfigKeys(default if value is None else value, f"{found._prefix}{key}")
        return found

    def integer(
        self,
        key: str,
        default: int | EllipsisType = ...,
        *,
        least: int = 1,
        most: int = _LARGEST_INTEGER,
    ) -> int:
        """A whole number from `least` to `most`; booleans and floats are rejected."""
        value = self.value(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self.refusal(key, f"a whole number from {least} to {most}")
        return value

    def integer_or_null(self, key: str, *, most: int = _LARGEST_INTEGER) -> int | None:
        """A whole number from 1 to `most`, or None for null."""
        return None if self.value(key) is None else self.integer(key, most=most)

    def integers(
        self,
        key: str,
        default: tuple[int, ...] | EllipsisType = ...,
        *,
        least: int = 1,
        most: int = _LARGEST_INTEGER,
    ) -> tuple[int, ...]:
        """A list of whole numbers from `least` to `most`."""
        values = self.value(key, default)
        checked: list[int] = []
        for value in values if isinstance(values, list | tuple) else (None,):
            if type(value) is not int or not least <= value <= most:
                raise self.refusal(key, f"a list of whole numbers from {least} to {most}")
            checked.append(value)
        return tuple(checked)

    def number(self, key: str, default: float | EllipsisType = ..., *, least: float) -> float:
        """A finite number of at least `least`, or above 0 if that is 0."""
        value = self.value(key, default)
        number = float("nan") if isinstance(value, bool) else value
        if not isinstance(number, int | float) or not least <= number < float("inf") or not number:
            raise self.refusal(key, f"a number {f'of at least {least}' if least else 'above 0'}")
        return float(number)

    def boolean(self, key: str, default: bool | EllipsisType = ...) -> bool:
        """True or false."""
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.refusal(key, "true or false")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | EllipsisType = ...) -> str:
        """One of the strings in `choices`."""
        value = self.value(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.refusal(key, f"one of {', '.join(choices)}")
        return value


# --- rules -----------------------------------------------------------------------------------

Code = Literal["reference", "published", "other"]
"""Whose code reads a config; what other code reads, only a trace can tell."""

KeyPath = tuple[str, ...]
"""Names of the objects around a key, from the top, and the key's own."""

_MOST_NAMED: Final = 20
"""Most unknown keys that are named individually."""

USED: Final = "used"
"""The rule of a key on which figures depend."""


@dataclass(frozen=True, slots=True)
class Harmless:
    """No figure depends on the key; if `everywhere`, in any object of the file."""

    reason: str
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class Unread:
    """Nothing reads the key.

    Attributes:
        of: The key that is read instead; empty for none.
        default: What counts without that key, or is built whatever the file says; `...` for none.
    """

    of: KeyPath
    default: JsonValue | EllipsisType = ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Any value other than `values` changes the computation in a way that is not modelled.

    Attributes:
        values: Null also means an absent key.
        reason: What another value would do, as in "it ...".
        ignored_by_published: Whether the published code ignores the key.
        counted_by_trace: Whether a trace of other code counts what it does.
    """

    values: tuple[JsonValue, ...]
    reason: str
    ignored_by_published: bool = True
    counted_by_trace: bool = True


KeyRule: TypeAlias = "Literal['used'] | Harmless | Unread | Fixed | Conditional"


@dataclass(frozen=True, slots=True)
class Conditional:
    """A key whose rule depends on one of the table's `conditions`."""

    condition: str
    then: KeyRule
    otherwise: KeyRule


@dataclass(frozen=True)
class KeyTable:
    """Every key an architecture knows.

    Attributes:
        rules: What a key does, by its path.
        sections: Paths of objects whose keys have rules of their own.
        conditions: Which conditions hold for a file.
        defaults: Values of missing top-level keys.
        copy: Name of the section that repeats the top level; nothing reads it.
        built: What the published code builds regardless of the file, by section.
    """

    rules: Mapping[KeyPath, KeyRule]
    sections: Set[KeyPath]
    conditions: Callable[[Config], Mapping[str, bool]]
    defaults: Config
    copy: str
    built: Mapping[str, Config]

    def is_section(self, path: KeyPath) -> bool:
        """Whether the keys of the object at `path` have rules of their own."""
        own = path[1:] if path[0] == self.copy else path
        return not own or own in self.sections

    def rule(self, path: KeyPath, config: Config, code: Code) -> KeyRule | None:
        """The rule for a key of a whole file, read by `code`; None if it is unknown."""
        if path[0] == self.copy:
            path = path[1:]
            repeated = self.rule(path, config, code) if path else None
            if isinstance(repeated, Fixed):
                is_read = code != "published" or not repeated.ignored_by_published
                if not is_read or _value_at(path, config) is ...:
                    return replace(repeated, ignored_by_published=True)
            elif repeated != USED:
                return repeated
            return Unread(path, ... if path[1:] else self.defaults.get(path[0], ...))
        rule = self.rules.get(path, self.rules.get(path[-1:]))
        if path not in self.rules and not (isinstance(rule, Harmless) and rule.everywhere):
            return None
        while isinstance(rule, Conditional):
            rule = rule.then if self.conditions(config)[rule.condition] else rule.otherwise
        if code == "published" and path[0] in self.built and not isinstance(rule, Harmless):
            return Unread((), _value_at(path, self.built))
        return rule


@dataclass(frozen=True, slots=True)
class ConfigFindings:
    """What is wrong with the keys of a config.

    Attributes:
        warnings: Keys that do nothing.
        refusals: Keys whose effect is not modelled: messages, and whether a trace of other code
            counts it anyway.
    """

    warnings: tuple[str, ...]
    refusals: tuple[tuple[str, bool], ...]

    def check_traced(self, code: Code) -> None:
        """Raises ConfigError for a key that a trace of `code` does not count."""
        for message, is_counted in self.refusals:
            if code == "reference" or not is_counted:
                raise ConfigError(message)


def findings_of(config: Config, table: KeyTable, code: Code) -> ConfigFindings:
    """Checks every key of a whole config, read by `code`, against the table."""
    warnings: list[str] = []
    refusals: list[tuple[str, bool]] = []
    unknown: list[KeyPath] = []
    for path, value in leaves_of(config, table.is_section):
        rule = table.rule(path, config, code)
        if isinstance(rule, Fixed) and not any(map(partial(_is_same, value), rule.values)):
            if code == "published" and rule.ignored_by_published:
                rule = Unread(())
            else:
                message = (
                    f"{_said(path, value)}: {rule.reason}, and that is not modelled; give"
                    f" {' or '.join(map(shown, rule.values))}"
                )
                refusals.append((message, rule.counted_by_trace))
        if isinstance(rule, Unread):
            warnings += _of_unread(path, value, rule, config)
        elif rule is None and table.is_section(path):
            # If the section is read, the reader of its dimensions rejects this.
            if value is not None and (path == (table.copy,) or path[0] in table.built):
                warnings.append(f"{_said(path, value)}, which is not a JSON object and is not read")
        elif rule is None:
            unknown.append(path)
    left_out = "no closed form includes it" if code == "other" else "no figure includes it"
    for path in unknown[:_MOST_NAMED]:
        warnings.append(f"config.json: {shown('.'.join(path))} is unknown; {left_out}")
    if len(unknown) > _MOST_NAMED:
        warnings.append(f"config.json: {len(unknown) - _MOST_NAMED:,} more keys are unknown")
    return ConfigFindings(tuple(warnings), tuple(refusals))


def leaves_of(
    section: Config, is_section: Callable[[KeyPath], bool], where: KeyPath = ()
) -> Iterator[tuple[KeyPath, JsonValue]]:
    """Every key in a section that is no section itself, with its value."""
    for key, value in section.items():
        path = (*where, key)
        if isinstance(value, Mapping) and is_section(path):
            yield from leaves_of(value, is_section, path)
        else:
            yield path, value


def _of_unread(path: KeyPath, value: JsonValue, rule: Unread, config: Config) -> Iterator[str]:
    """A warning unless the value is what counts anyway."""
    default = rule.default
    counts = _value_at(rule.of, config) if rule.of else ...
    if _is_same(value, default if counts is ... else counts):
        return
    if counts is not ...:
        yield (
            f"{_said(path, value)}, but {shown('.'.join(rule.of))}, which is read, is"
            f" {shown(counts)}; {shown(counts)} counts"
        )
    elif rule.of and value is not None:
        missing = "" if default is ... else f" and counts as {shown(default)}"
        yield (
            f"{_said(path, value)}, which nothing reads: {shown('.'.join(rule.of))} is read"
            f" instead, but is missing{missing}"
        )
    elif not rule.of and default is ...:
        yield (
            f"{_said(path, value)}, which the directory's code does not read; no figure includes it"
        )
    elif not rule.of:
        yield (
            f"{_said(path, value)}, but the directory's code does not read it and builds"
            f" {shown(default)}; {shown(default)} counts"
        )


def _said(path: KeyPath, value: JsonValue) -> str:
    return f"config.json: {shown('.'.join(path))} is {shown(value)}"


def _value_at(path: KeyPath, config: Config) -> JsonValue | EllipsisType:
    """The value of a key; `...` if it is absent."""
    value: JsonValue = config
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return ...
        value = value[key]
    return value


def _is_same(one: JsonValue, other: JsonValue | EllipsisType) -> bool:
    """Whether two JSON values are equal, distinguishing true from 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
