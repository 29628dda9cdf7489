"""A `config.json` key by key: checked reads, what each key does to the figures, and findings.

Every error names the key, its value and the right values. An architecture classifies every key it
knows, once, in a `KeyTable`. `findings_of` checks a file against it, so that no key is silently
ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, TypeAlias, TypeGuard

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.escaping import shown

__all__ = [
    "LARGEST_WIDTH",
    "MOST_LAYERS",
    "Code",
    "Conditional",
    "Config",
    "ConfigFindings",
    "ConfigKeys",
    "Duplicate",
    "Fixed",
    "Harmless",
    "JsonValue",
    "KeyPath",
    "KeyRule",
    "KeyTable",
    "Refusal",
    "Used",
    "findings_of",
    "leaves_of",
]

# --- reads -----------------------------------------------------------------------------------

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)
"""What JSON can say."""

Config: TypeAlias = Mapping[str, JsonValue]
"""A `config.json`, or an object within it."""

LARGEST_WIDTH: Final = 1_048_576
"""Most features per token accepted."""

MOST_LAYERS: Final = 1_024
"""Most layers accepted."""


class _Missing:
    """Marks an absent key, or a default that there is not."""


_MISSING: Final = _Missing()

_LARGEST_INTEGER: Final = 2**31 - 1


class ConfigKeys:
    """One JSON object of a `config.json`, read key by key.

    Args:
        values: The object.
        where: Dotted path of the object in the file, empty for the top level.
        since: Why its keys are read, if that depends on another key.

    Raises:
        ConfigError: `values` is not a JSON object.
    """

    def __init__(self, values: JsonValue, where: str = "", since: str = "") -> None:
        if not isinstance(values, Mapping):
            name = f"'{where}'" if where else "the top level"
            raise ConfigError(f"config.json: {name} is {shown(values)}; give a JSON object")
        self._values: Config = values
        self._where = where
        self._since = f", since {since}" if since else ""

    def check_divides(self, part: str, parts: int, whole: str, size: int) -> None:
        """Raises unless `part`, of value `parts`, divides `whole`, of value `size`.

        Raises:
            ConfigError: It does not divide.
        """
        if size % parts:
            raise self.refusal(part, f"a divisor of '{self.path(whole)}', {size}")

    def path(self, key: str) -> str:
        """Dotted path of `key` from the top of the file."""
        return f"{self._where}.{key}" if self._where else key

    def refusal(self, key: str, right: str) -> ConfigError:
        """The error that names `key`, its value and the `right` ones."""
        return ConfigError(
            f"config.json: '{self.path(key)}' is {shown(self._values.get(key))}; give {right}"
            f"{self._since}"
        )

    def has(self, key: str) -> bool:
        """Whether `key` is present with a value other than null."""
        return self._values.get(key) is not None

    def value(self, key: str, default: JsonValue | _Missing = _MISSING) -> JsonValue:
        """Value at `key`, unchecked.

        Raises:
            ConfigError: The key is absent and has no default.
        """
        if key in self._values:
            return self._values[key]
        if isinstance(default, _Missing):
            raise ConfigError(f"config.json lacks '{self.path(key)}'{self._since}")
        return default

    def section(self, key: str) -> ConfigKeys:
        """The object at `key`.

        Raises:
            ConfigError: The key is absent or holds no JSON object.
        """
        return ConfigKeys(self.value(key), self.path(key))

    def integer(
        self,
        key: str,
        default: int | _Missing = _MISSING,
        *,
        least: int = 1,
        most: int = _LARGEST_INTEGER,
    ) -> int:
        """A whole number from `least` to `most`; booleans and floats are rejected.

        Raises:
            ConfigError: The key is absent without a default, or has any other value.
        """
        value = self.value(key, default)
        if not _is_whole(value, least, most):
            raise self.refusal(key, f"a whole number from {least} to {most}")
        return value

    def integer_or_null(
        self, key: str, *, least: int = 1, most: int = _LARGEST_INTEGER
    ) -> int | None:
        """A whole number from `least` to `most`, or None for null.

        Raises:
            ConfigError: The key is absent, or has any other value.
        """
        if self.value(key) is None:
            return None
        return self.integer(key, least=least, most=most)

    def integers(
        self,
        key: str,
        default: tuple[int, ...] | _Missing = _MISSING,
        *,
        least: int = 1,
        most: int = _LARGEST_INTEGER,
    ) -> tuple[int, ...]:
        """A list of whole numbers from `least` to `most`.

        Raises:
            ConfigError: The key is absent without a default, or holds anything else.
        """
        values = self.value(key, default)
        if isinstance(values, list | tuple):
            whole = tuple(value for value in values if _is_whole(value, least, most))
            if len(whole) == len(values):
                return whole
        raise self.refusal(key, f"a list of whole numbers from {least} to {most}")

    def number(self, key: str, default: float | _Missing = _MISSING, *, least: float) -> float:
        """A finite number of at least `least`, or above 0 if that is 0.

        Raises:
            ConfigError: The key is absent without a default, or has any other value.
        """
        value = self.value(key, default)
        number = float("nan") if isinstance(value, bool) else value
        if not isinstance(number, int | float) or not least <= number < float("inf") or not number:
            right = f"a number of at least {least}" if least else "a number above 0"
            raise self.refusal(key, right)
        return float(number)

    def boolean(self, key: str, default: bool | _Missing = _MISSING) -> bool:
        """True or false.

        Raises:
            ConfigError: The key is absent without a default, or has any other value.
        """
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.refusal(key, "true or false")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | _Missing = _MISSING) -> str:
        """One of the strings in `choices`.

        Raises:
            ConfigError: The key is absent without a default, or has any other value.
        """
        value = self.value(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.refusal(key, f"one of {', '.join(choices)}")
        return value


def _is_whole(value: JsonValue, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


# --- rules -----------------------------------------------------------------------------------

Code = Literal["reference", "published", "other"]
"""Whose code reads a config: the built-in reference's, the published model's, or other code, of
which only a trace can tell what it reads."""

KeyPath = tuple[str, ...]
"""Names of the objects around a key, from the top of the file, and the key's own name."""

_MOST_NAMED: Final = 20
"""Most unknown keys that are named individually."""


@dataclass(frozen=True, slots=True)
class Used:
    """Figures depend on the key."""


@dataclass(frozen=True, slots=True)
class Harmless:
    """No figure depends on the key.

    Attributes:
        reason: Why not.
        everywhere: Whether that holds in every object of the file, not only where the key belongs.
    """

    reason: str
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The key repeats another one.

    Attributes:
        of: The key that counts.
        default: The value that counts if that key is missing; `_MISSING` if it is required.
    """

    of: KeyPath
    default: JsonValue | _Missing = _MISSING


@dataclass(frozen=True, slots=True)
class Fixed:
    """Any value other than `values` changes the computation in a way that is not modelled.

    Attributes:
        values: The values that are modelled; null also means an absent key.
        reason: What another value would do, as in "it ...".
        ignored_by_published: Whether the published code ignores the key.
        counted_by_trace: Whether a trace of other code counts what the key does: it shows in the
            passes that run, and applies to the decode steps between them.
    """

    values: tuple[JsonValue, ...]
    reason: str
    ignored_by_published: bool = True
    counted_by_trace: bool = True


@dataclass(frozen=True, slots=True)
class Ignored:
    """The directory's code does not read the key.

    Attributes:
        built: What the code builds instead; `_MISSING` for nothing.
    """

    built: JsonValue | _Missing = _MISSING


KeyRule = Used | Harmless | Duplicate | Fixed | Ignored


@dataclass(frozen=True, slots=True)
class Conditional:
    """A key whose rule depends on the rest of the file.

    Attributes:
        holds: The condition, on the file's top-level object.
        then: The rule if it holds.
        otherwise: The rule if it does not.
    """

    holds: Callable[[Config], bool]
    then: KeyRule
    otherwise: KeyRule | Conditional


@dataclass(frozen=True)
class KeyTable:
    """Every key an architecture knows.

    Attributes:
        rules: What a key does, by its path.
        defaults: Values that count if a top-level key is missing, by name.
        copy: Name of the section that repeats the top level; nothing reads it.
        built: What the published code builds regardless of the file, section by section.
    """

    rules: Mapping[KeyPath, KeyRule | Conditional]
    defaults: Config
    copy: str
    built: Mapping[str, Config]

    @cached_property
    def sections(self) -> frozenset[KeyPath]:
        """Paths of the objects whose keys have rules of their own."""
        return frozenset(path[:length] for path in self.rules for length in range(1, len(path)))

    def is_section(self, path: KeyPath) -> bool:
        """Whether the keys of the object at `path` have rules of their own."""
        own = path[1:] if path[0] == self.copy else path
        return not own or own in self.sections

    def rule(self, path: KeyPath, config: Config, code: Code) -> KeyRule | None:
        """The rule for the key at `path`; None for an unknown key.

        Args:
            path: The key.
            config: The whole file.
            code: Whose code reads it.
        """
        if path[0] == self.copy:
            path = path[1:]
            repeated = self.rule(path, config, code) if path else None
            if not isinstance(repeated, Used | Fixed):
                return repeated
            if isinstance(repeated, Fixed):
                is_read = code != "published" or not repeated.ignored_by_published
                if not is_read or isinstance(_value_at(path, config), _Missing):
                    return replace(repeated, ignored_by_published=True)
            return Duplicate(path, _MISSING if path[1:] else self.defaults.get(path[0], _MISSING))
        rule = self.rules.get(path, self.rules.get(path[-1:]))
        if path not in self.rules and not (isinstance(rule, Harmless) and rule.everywhere):
            return None
        while isinstance(rule, Conditional):
            rule = rule.then if rule.holds(config) else rule.otherwise
        if code == "published" and path[0] in self.built and not isinstance(rule, Harmless):
            return Ignored(_value_at(path, self.built))
        return rule


@dataclass(frozen=True, slots=True)
class Refusal:
    """A value that changes the computation and is not modelled.

    Attributes:
        message: The key, its value, what is not modelled, and the right values.
        counted_by_trace: Whether a trace counts it anyway, for code that is neither the reference's
            nor the published model's.
    """

    message: str
    counted_by_trace: bool


@dataclass(frozen=True, slots=True)
class ConfigFindings:
    """Findings about a config, besides its dimensions.

    Attributes:
        warnings: Keys that do nothing although they may have been meant to.
        refusals: Keys that change the computation in ways that are not modelled.
    """

    warnings: tuple[str, ...]
    refusals: tuple[Refusal, ...]

    def check_modelled(self) -> None:
        """Raises ConfigError for the first key that closed forms do not model."""
        for refusal in self.refusals:
            raise ConfigError(refusal.message)

    def check_traced(self, code: Code) -> None:
        """Raises ConfigError for the first key that a trace of `code` does not count."""
        for refusal in self.refusals:
            if code == "reference" or not refusal.counted_by_trace:
                raise ConfigError(refusal.message)


def findings_of(config: Config, table: KeyTable, code: Code) -> ConfigFindings:
    """Checks every key of a config against the table.

    Args:
        config: The file's top-level object.
        table: The known keys.
        code: Whose code reads the file.
    """
    warnings: list[str] = []
    refusals: list[Refusal] = []
    unknown: list[KeyPath] = []
    for path, value in leaves_of(config, table.is_section):
        rule = table.rule(path, config, code)
        if isinstance(rule, Fixed):
            if any(_is_same(value, each) for each in rule.values):
                continue
            if code == "published" and rule.ignored_by_published:
                rule = Ignored()
            else:
                right = " or ".join(map(shown, rule.values))
                message = (
                    f"{_said(path, value)}: {rule.reason}, and that is not modelled; give {right}"
                )
                refusals.append(Refusal(message, rule.counted_by_trace))
        if isinstance(rule, Duplicate):
            warnings += _of_duplicate(path, value, rule, config)
        elif isinstance(rule, Ignored):
            warnings += _of_ignored(path, value, rule)
        elif rule is None and table.is_section(path):
            # If the section is read, the reader of its dimensions rejects this.
            if value is not None and (path == (table.copy,) or path[0] in table.built):
                warnings.append(f"{_said(path, value)}, which is not a JSON object and is not read")
        elif rule is None:
            unknown.append(path)
    left_out = "no closed form includes it" if code == "other" else "no figure includes it"
    for path in unknown[:_MOST_NAMED]:
        warnings.append(f"config.json: {_name(path)} is unknown; {left_out}")
    if len(unknown) > _MOST_NAMED:
        warnings.append(f"config.json: {len(unknown) - _MOST_NAMED:,} more keys are unknown")
    return ConfigFindings(tuple(warnings), tuple(refusals))


def leaves_of(
    section: Config, is_section: Callable[[KeyPath], bool], where: KeyPath = ()
) -> Iterator[tuple[KeyPath, JsonValue]]:
    """Every key below `section` that is not a section itself, with its value.

    Args:
        section: A JSON object.
        is_section: Whether the keys of the object at a path are listed individually.
        where: Path of `section`.
    """
    for key, value in section.items():
        path = (*where, key)
        if isinstance(value, Mapping) and is_section(path):
            yield from leaves_of(value, is_section, path)
        else:
            yield path, value


def _of_duplicate(
    path: KeyPath, value: JsonValue, rule: Duplicate, config: Config
) -> Iterator[str]:
    counts, default = _value_at(rule.of, config), ""
    if not isinstance(counts, _Missing):
        if not _is_same(value, counts):
            yield (
                f"{_said(path, value)}, but {_name(rule.of)}, which is read, is {shown(counts)};"
                f" {shown(counts)} counts"
            )
    elif value is not None and not _is_same(value, rule.default):
        if not isinstance(rule.default, _Missing):
            default = f" and counts as {shown(rule.default)}"
        yield (
            f"{_said(path, value)}, which nothing reads: {_name(rule.of)} is read instead, but is"
            f" missing{default}"
        )


def _of_ignored(path: KeyPath, value: JsonValue, rule: Ignored) -> Iterator[str]:
    if isinstance(rule.built, _Missing):
        yield (
            f"{_said(path, value)}, which the directory's code does not read; no figure includes it"
        )
    elif not _is_same(value, rule.built):
        built = shown(rule.built)
        yield (
            f"{_said(path, value)}, but the directory's code does not read it and builds {built};"
            f" {built} counts"
        )


def _said(path: KeyPath, value: JsonValue) -> str:
    return f"config.json: {_name(path)} is {shown(value)}"


def _name(path: KeyPath) -> str:
    """A key as shown in messages: quoted, escaped, and shortened to a readable length."""
    return shown(".".join(path))


def _value_at(path: KeyPath, config: Config) -> JsonValue | _Missing:
    value: JsonValue = config
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return _MISSING
        value = value[key]
    return value


def _is_same(one: JsonValue | _Missing, other: JsonValue | _Missing) -> bool:
    """Whether two JSON values are equal, distinguishing true from 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
