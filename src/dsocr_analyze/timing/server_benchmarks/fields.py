"""Fields of a benchmark's result, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsocr_analyze.errors import BenchmarkError

__all__ = ["Fields", "shown"]

_LARGEST: Final = 1e15
_SHOWN: Final = 60


def shown(value: object) -> str:
    """A value for messages: shortened, and without control characters."""
    text = ascii(value) if not isinstance(value, Mapping | list) else f"a {_KINDS[type(value)]}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_KINDS: Final[Mapping[type, str]] = {dict: "table", list: "list"}


@dataclass(frozen=True)
class Fields:
    """A table of a result.

    Attributes:
        values: By key.
        where: The file and the part of it, for messages.
        path: Keys that lead to the table, each followed by a dot.
    """

    values: Mapping[str, Any]
    where: str
    path: str = ""

    def has(self, key: str) -> bool:
        """Whether there is a value; null and the empty string count as missing."""
        return self.values.get(key) not in (None, "")

    def table(self, key: str) -> Fields:
        """The table under a key; an empty one if it is missing."""
        value = self.values.get(key) if self.has(key) else {}
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        return Fields(value, self.where, f"{self.path}{key}.")

    def number(self, key: str) -> float:
        """The positive number under a key."""
        value = self.values.get(key)
        if value is None:
            raise BenchmarkError(f"{self.where} lacks {self.path}{key}, a number above 0")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number above 0")
        if not 0 < value < _LARGEST:
            raise self.wrong(key, f"a number above 0 and below {_LARGEST:.0e}")
        return float(value)

    def some_number(self, key: str) -> float | None:
        """The same; None if it is missing."""
        return self.number(key) if self.has(key) else None

    def count(self, key: str, *, least: int = 1) -> int:
        """The whole number under a key, possibly written with a decimal point."""
        what = f"a whole number, {least} or more"
        value = self.values.get(key)
        if value is None:
            raise BenchmarkError(f"{self.where} lacks {self.path}{key}, {what}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value < _LARGEST or value != int(value):
            raise self.wrong(key, what)
        return int(value)

    def some_count(self, key: str, *, least: int = 1) -> int | None:
        """The same; None if it is missing."""
        return self.count(key, least=least) if self.has(key) else None

    def text(self, key: str) -> str | None:
        """The string under a key; None if it is missing."""
        if not self.has(key):
            return None
        value = self.values[key]
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        if not value.isprintable():
            raise self.wrong(key, "a string of printable characters")
        return value

    def wrong(self, key: str, right: str) -> BenchmarkError:
        """The error for a key with a wrong value."""
        value = shown(self.values[key])
        return BenchmarkError(f"{self.where}: {self.path}{key} is {value}; it must be {right}")
