"""Reads the data files that stand beside the package's own modules."""

from importlib import resources
from typing import TypeVar

from msgspec import toml

_Typed = TypeVar("_Typed")


def package_text(package: str, name: str) -> str:
    """The text of a file in a package, such as `page.html`."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def package_toml(package: str, name: str, kind: type[_Typed]) -> _Typed:
    """What a TOML file in a package says, as a value of that type."""
    return toml.decode(package_text(package, name), type=kind)
