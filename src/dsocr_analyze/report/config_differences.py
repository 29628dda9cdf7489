"""The keys in which configs differ, as dotted paths."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

__all__ = ["ComparedKey", "config_differences"]


class ComparedKey(Struct, frozen=True, kw_only=True):
    """A key in which configs differ.

    Attributes:
        key: Dotted path of the key.
        values: Its value in each config, by the config's name; configs without the key are absent.
    """

    key: str
    values: Mapping[str, Any]

    def text(self, name: str) -> str | None:
        """The value in the config of that name as JSON; None if the key is absent."""
        return _json(self.values[name]) if name in self.values else None


def config_differences(configs: Mapping[str, Mapping[str, Any]]) -> Iterator[ComparedKey]:
    """Every key whose value is not the same in all configs, in file order.

    Objects are compared key by key, lists as a whole; an absent key differs from a null one.

    Args:
        configs: Parsed `config.json` files by name.
    """
    return _differences("", configs, len(configs))


def _differences(path: str, values: Mapping[str, Any], configs: int) -> Iterator[ComparedKey]:
    """The keys at or below a path at which some of the `configs` configs have values."""
    if any(values.values()) and all(isinstance(each, Mapping) for each in values.values()):
        for key in dict.fromkeys(key for each in values.values() for key in each):
            below = {name: each[key] for name, each in values.items() if key in each}
            yield from _differences(f"{path}.{key}" if path else key, below, configs)
    elif len(values) < configs or len(set(map(_json, values.values()))) > 1:
        yield ComparedKey(key=path, values=values)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
