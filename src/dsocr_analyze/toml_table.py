"""Checked reads of a TOML file; errors name file, key, value and the right values."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from dsocr_analyze.errors import AnalyzeError, ConfigError
from dsocr_analyze.escaping import shown
from dsocr_analyze.input_files import SETTINGS_BYTES, read_bytes


class _Required:
    """Marks a key without a default."""


REQUIRED: Final = _Required()

_Default = TypeVar("_Default")

TomlValue: TypeAlias = (
    "bool | int | float | str | date | time | list[TomlValue] | dict[str, TomlValue]"
)
"""What TOML can say."""

Table: TypeAlias = Mapping[str, Any]
"""A table as read, with unchecked values."""

_KEY: Final = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY: Final = re.compile(rf"""(?<![\w"'.\\-]){_KEY}(?:\.[ \t]*+{_KEY}){{64}}""", re.ASCII)


def parse_toml(text: str) -> dict[str, Any]:
    """The top-level table of a text; raises ValueError or RecursionError if it is not TOML.

    `tomllib` takes time and memory that grow with the square of a key's parts.
    """
    if _LONG_KEY.search(text):
        raise ValueError("a key has more than 64 parts")
    return tomllib.loads(text)


def read_toml(path: Path) -> TomlTable:
    """The top-level table of a file; raises ConfigError if it cannot be read."""
    return TomlTable(str(path), "", toml_of_file(path, "TOML", ConfigError))


def toml_of_file(path: Path, kind: str, error: type[AnalyzeError]) -> dict[str, Any]:
    """The top-level table of a file of some kind; raises an error if it cannot be read."""
    name = repr(str(path))
    try:
        # Some editors begin files with a byte order mark.
        return parse_toml(read_bytes(path, SETTINGS_BYTES).decode("utf-8-sig"))
    except OSError as wrong:
        raise error(f"cannot read {name}: {wrong.strerror or wrong}") from wrong
    except (ValueError, RecursionError) as wrong:  # includes TOMLDecodeError
        raise error(f"{name} is not {kind}: {wrong}") from wrong


class TomlTable:
    """One table, read key by key; at the end, keys that were never read are rejected.

    Messages name its file and `where`, its dotted path there.
    """

    def __init__(self, file: str, where: str, values: Table) -> None:
        self.file = file
        self._where = where
        self._values = values
        self._asked: list[str] = []

    def refusal(self, key: str, right: str) -> ConfigError:
        """The error that names `key`, its value and the `right` ones."""
        return ConfigError(
            f"{self.file}: '{self.path(key)}' is {shown(self._values.get(key))}; give {right}"
        )

    def path(self, key: str) -> str:
        """Dotted path of `key` in the file."""
        return f"{self._where}.{key}" if self._where else key

    def has(self, key: str) -> bool:
        """Whether `key` is present."""
        return key in self._values

    def value(
        self,
        key: str,
        default: Any,
        kind: type | tuple[type, ...],
        right: str,
        is_right: Callable[[Any], bool] = lambda _: True,
    ) -> Any:
        """The value at `key`, of a type; `right` says in messages what `is_right`."""
        self._asked.append(key)
        if key not in self._values:
            if default is REQUIRED:
                raise ConfigError(f"{self.file}: '{self.path(key)}' is missing; give {right}")
            return default
        value = self._values[key]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        is_flag = isinstance(value, bool) and bool not in kinds
        if is_flag or not isinstance(value, kinds) or not is_right(value):
            raise self.refusal(key, right)
        return value

    def text(self, key: str, default: _Default | _Required = REQUIRED) -> str | _Default:
        """A nonempty string, or the default."""
        found: str | _Default = self.value(key, default, str, "a text", bool)
        return found

    def choice(
        self, key: str, choices: Sequence[str], default: str | _Required | None = REQUIRED
    ) -> Any:
        """One of some strings, or the default."""
        right = f"one of {', '.join(choices)}"
        return self.value(key, default, str, right, choices.__contains__)

    def whole(
        self,
        key: str,
        default: int | _Required = REQUIRED,
        *,
        least: int = 0,
        most: int | None = None,
    ) -> int:
        """A whole number from `least` to `most`, if given."""
        right = f"a whole number from {least}" + ("" if most is None else f" to {most:,}")
        found: int = self.value(
            key, default, int, right, lambda n: least <= n and (most is None or n <= most)
        )
        return found

    def texts(self, key: str, default: Sequence[str] | _Required = REQUIRED) -> tuple[str, ...]:
        """A list of nonempty strings."""
        right = 'a list of texts, as ["a", "b"]'
        found = self.value(
            key, default, list, right,
            lambda items: all(isinstance(each, str) and each for each in items),
        )  # fmt: skip
        return tuple(found)

    def table(self, key: str) -> TomlTable:
        """A table; an empty one if absent."""
        return TomlTable(self.file, self.path(key), self.value(key, {}, dict, "a table"))

    def tables(
        self, key: str, default: Sequence[Table] | _Required = REQUIRED
    ) -> Iterator[TomlTable]:
        """Each of a list of tables, whose keys are read before the next."""
        found = self.value(
            key, default, list, "a list of tables",
            lambda items: all(isinstance(each, dict) for each in items),
        )  # fmt: skip
        for index, item in enumerate(found):
            table = TomlTable(self.file, f"{self.path(key)}[{index}]", item)
            yield table
            table.done()

    def items(self) -> Iterator[tuple[str, TomlValue]]:
        """Every key and value of a table whose keys are names."""
        for key, value in self._values.items():
            self._asked.append(key)
            yield key, value

    def done(self) -> None:
        """Raises for keys that were never read."""
        for key in self._values:
            if key not in self._asked:
                known = ", ".join(dict.fromkeys(self._asked))
                close = difflib.get_close_matches(key, self._asked, n=1)
                near = f"; did you mean '{close[0]}'?" if close else ""
                raise ConfigError(
                    f"{self.file}: '{self.path(key)}' is unknown; the known keys are {known}{near}"
                )
