"""Checked reads of a `config.json`: every error names the key, its value and the right values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, TypeGuard

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.escaping import shown

__all__ = ["LARGEST_WIDTH", "MOST_LAYERS", "Config", "ConfigKeys", "JsonValue"]

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


class _Required:
    """Marks a key without a default."""


_REQUIRED: Final = _Required()

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

    def value(self, key: str, default: JsonValue | _Required = _REQUIRED) -> JsonValue:
        """Value at `key`, unchecked.

        Raises:
            ConfigError: The key is absent and has no default.
        """
        if key in self._values:
            return self._values[key]
        if isinstance(default, _Required):
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
        default: int | _Required = _REQUIRED,
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
        default: tuple[int, ...] | _Required = _REQUIRED,
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

    def number(self, key: str, default: float | _Required = _REQUIRED, *, least: float) -> float:
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

    def boolean(self, key: str, default: bool | _Required = _REQUIRED) -> bool:
        """True or false.

        Raises:
            ConfigError: The key is absent without a default, or has any other value.
        """
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.refusal(key, "true or false")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | _Required = _REQUIRED) -> str:
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
