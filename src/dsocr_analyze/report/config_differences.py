"""The keys in which configs differ, as dotted paths."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["KeyDifference", "config_differences"]


class _Absent:
    """The value of a key that a config does not have."""


_ABSENT: Final = _Absent()


@dataclass(frozen=True)
class KeyDifference:
    """A key whose value is not the same in all configs.

    Attributes:
        path: Dotted path of the key from the top of the file.
        values: Value in each config, as parsed.
    """

    path: str
    values: tuple[object, ...]

    def text(self, index: int) -> str | None:
        """The value in config `index` as JSON; None if the key is absent."""
        value = self.values[index]
        return None if value is _ABSENT else _json(value)

    def by_name(self, names: Sequence[str]) -> dict[str, object]:
        """The values by config name, leaving out configs without the key."""
        named = zip(names, self.values, strict=True)
        return {name: value for name, value in named if value is not _ABSENT}


def config_differences(configs: Sequence[Mapping[str, Any]]) -> Iterator[KeyDifference]:
    """Every key whose value is not the same in all configs, in file order.

    Objects are compared key by key, lists as a whole; an absent key differs from a null one.

    Args:
        configs: Parsed `config.json` files.
    """
    if configs:
        yield from _differences("", configs)


def _differences(path: str, values: Sequence[object]) -> Iterator[KeyDifference]:
    present = [value for value in values if value is not _ABSENT]
    objects = [value for value in present if isinstance(value, Mapping)]
    if len(objects) == len(present) and any(objects):
        for key in dict.fromkeys(key for each in objects for key in each):
            below = [
                value.get(key, _ABSENT) if isinstance(value, Mapping) else _ABSENT
                for value in values
            ]
            yield from _differences(f"{path}.{key}" if path else key, below)
    elif len(present) < len(values) or len(set(map(_json, present))) > 1:
        yield KeyDifference(path, tuple(values))


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
